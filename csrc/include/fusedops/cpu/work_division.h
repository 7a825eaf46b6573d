// How the CPU's work is divided (chunks and segments of rows, partitions of many rows), and the
// scratch memory that it needs. The same for every instruction set and number of threads.
#pragma once

#include "fusedops/args.h"

namespace fusedops {

struct RowRange {
  int64_t begin, end;
};

// Whole tiles of any width: scratch rows are written without regard to where the row ends.
constexpr int64_t kColumnPadding = 32;
constexpr int64_t padded_cols(int64_t cols) {
  return (cols + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
}

// A softmax row is taken in chunks; no instruction set uses shorter ones.
constexpr int64_t kShortestSoftmaxChunk = 512;

// Bytes of an element of the type that arithmetic is done in.
constexpr int64_t compute_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// A vector and two numbers for each chunk.
constexpr int64_t kSoftmaxChunkBytes = 128;
constexpr int64_t softmax_chunks_bytes(int64_t cols) {
  return (cols / kShortestSoftmaxChunk + 1) * kSoftmaxChunkBytes;
}

// A row of values, and its chunks.
constexpr int64_t softmax_scratch_bytes(int64_t cols, DType dtype) {
  return padded_cols(cols) * compute_bytes(dtype) + softmax_chunks_bytes(cols);
}

// Long rows are taken in segments of columns, which threads share: what each has to say of the row
// is noted, and results are written once all of a row is. Whether a row is long, and what is noted,
// does not depend on the number of threads, nor do the bits of the results.
constexpr int64_t kLongestShortRow = 65536, kRowSegment = 4096;
constexpr bool is_long_row(int64_t cols) { return cols > kLongestShortRow; }
constexpr int64_t row_segments(int64_t cols) { return (cols + kRowSegment - 1) / kRowSegment; }
constexpr int64_t kNormNoteBytes = 32;  // of a segment: two numbers, at most long double

// A note for each segment, and the row where it is a sum that is not wanted.
constexpr int64_t norm_partials_bytes(const NormForward& args) {
  const bool keeps_sum = args.residual.data != nullptr && args.sum.data == nullptr;
  return row_segments(args.cols) * kNormNoteBytes +
      (keeps_sum ? args.cols * size_of(args.input.dtype) : 0);
}

// In a norm's backward of a segment, or of a row: the sums of g and of g * (input - mean), where g
// = grad_output * weight.
struct NormGradSums {
  double of_grad, of_product;
};

// The values of a mask or bias that has one for all columns, repeated for one chunk.
constexpr int64_t kRepeatedBytes = 16384;

// Rows of a masked softmax are taken in groups, one step of each after the other: what ends a step,
// a sum over lanes or a division, overlaps with the next row's. A group stays in the L1 cache.
constexpr int64_t kMaskedGroupBytes = 8192, kMostMaskedGroupRows = 16;
constexpr int64_t masked_group_rows(int64_t cols, DType dtype) {
  const int64_t rows = kMaskedGroupBytes / (padded_cols(cols) * compute_bytes(dtype));
  return rows < 1 ? 1 : rows < kMostMaskedGroupRows ? rows : kMostMaskedGroupRows;
}
constexpr int64_t masked_row_bytes(int64_t cols, DType dtype) {
  return (softmax_scratch_bytes(cols, dtype) + 63) / 64 * 64;
}
constexpr int64_t masked_softmax_scratch_bytes(int64_t cols, DType dtype) {
  return 2 * kRepeatedBytes + masked_group_rows(cols, dtype) * masked_row_bytes(cols, dtype);
}

// The lanes of planes fall into strips, one a unit of work: as wide as the second level of cache
// holds a strip for, but at least so wide that a row of it is worth a DRAM burst and a page.
struct PlaneStrips {
  static constexpr int64_t kCacheBytes = int64_t(1) << 20, kMinLanes = 64, kMaxLanes = 1024;
  int64_t lanes, lanes_each, count;  // of one plane

  constexpr PlaneStrips(int64_t rows, int64_t lanes_, int64_t element_bytes)
      : lanes(lanes_),
        lanes_each(width(kCacheBytes / (rows * element_bytes))),
        count((lanes + lanes_each - 1) / lanes_each) {}

  constexpr RowRange operator[](int64_t index) const {
    const int64_t end = (index + 1) * lanes_each;
    return {index * lanes_each, end < lanes ? end : lanes};
  }

 private:
  static constexpr int64_t width(int64_t fit) {
    return fit < kMinLanes ? kMinLanes : fit < kMaxLanes ? fit / kMinLanes * kMinLanes : kMaxLanes;
  }
};

constexpr PlaneStrips plane_strips(const SpatialSoftmaxForward& args) {
  return {args.rows, args.lanes, size_of(args.input.dtype) + size_of(args.output.dtype)};
}
constexpr PlaneStrips plane_strips(const SpatialSoftmaxBackward& args) {
  return {args.rows, args.lanes, 2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype)};
}

// Sums of a group of lanes, in the L1 cache, and, of each chunk of rows and lane of a strip, a
// maximum and a sum or five factors.
constexpr int64_t kPlacesBytes = 32768, kLaneNoteBytes = 5 * int64_t(sizeof(double));
constexpr int64_t planes_scratch_bytes(int64_t rows, const PlaneStrips& strips) {
  const int64_t chunks = rows / kShortestSoftmaxChunk + 1;
  return kPlacesBytes + chunks * strips.lanes_each * kLaneNoteBytes;
}

// Rows of a norm are taken side by side, but sums that would not stay in the L2 cache until they
// are read fewer at a time.
constexpr int64_t kMaxInterleavedRows = 4, kLongestSumBytes = int64_t(1) << 17;
constexpr int64_t interleaved_rows(const NormForward& args) {
  const bool is_long = args.cols * size_of(args.input.dtype) > kLongestSumBytes;
  return args.residual.data != nullptr && is_long ? 2 : kMaxInterleavedRows;
}

// A chunk of a row that dropout is still to take from.
constexpr int64_t kNormChunkBytes = 8192;

// Weight, bias, that chunk, and rows that are sums.
constexpr int64_t norm_scratch_bytes(const NormForward& args) {
  const int64_t width = padded_cols(args.cols), dtype_bytes = size_of(args.input.dtype);
  const int64_t rows = args.residual.data == nullptr ? 0 : interleaved_rows(args);
  return 2 * width * compute_bytes(args.input.dtype) + kNormChunkBytes + rows * width * dtype_bytes;
}

// Weight, a chunk and, of what is computed in float, a tiny row.
constexpr int64_t norm_scratch_bytes(const NormBackward& args) {
  const int64_t width = padded_cols(args.cols), dtype_bytes = size_of(args.input.dtype);
  const int64_t row_bytes = args.input.dtype == DType::kFloat64 ? 0 : width * dtype_bytes;
  return width * compute_bytes(args.input.dtype) + kNormChunkBytes + row_bytes;
}

// The rows of a norm's backward fall into at most kMaxPartitions runs, by their number alone:
// the sums over rows are added up in the same order whatever the number of threads. A run has at
// least 64 rows, so that clearing and adding its two accumulators costs under 2 %.
struct RowPartition {
  static constexpr int64_t kMaxPartitions = 64, kMinRows = 64;
  int64_t rows, rows_each, count;

  explicit constexpr RowPartition(int64_t rows_)
      : rows(rows_),
        rows_each(
            rows_ > kMinRows * kMaxPartitions ? (rows_ + kMaxPartitions - 1) / kMaxPartitions
                                              : kMinRows),
        count((rows_ + rows_each - 1) / rows_each) {}

  constexpr RowRange operator[](int64_t index) const {
    const int64_t end = (index + 1) * rows_each;
    return {index * rows_each, end < rows ? end : rows};
  }
};

constexpr int64_t norm_workspace_bytes(int64_t rows, int64_t cols, DType dtype) {
  return RowPartition(rows).count * 2 * padded_cols(cols) * compute_bytes(dtype);
}

// Weight and bias of a segment, of its columns two sums and two of a run of rows, and a tiny row's.
constexpr int64_t kLongNormScratchBytes = 7 * kRowSegment * int64_t(sizeof(double));

}  // namespace fusedops
