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

// Long rows are divided into segments of columns, which threads share: each segment gives a partial
// result, and the row is written once it has them all. Whether a row is long, and its partials, do
// not depend on the number of threads, and so neither do the bits of the results.
constexpr int64_t kLongestShortRow = 65536, kRowSegment = 4096;
constexpr bool is_long_row(int64_t cols) { return cols > kLongestShortRow; }
constexpr int64_t row_segments(int64_t cols) { return (cols + kRowSegment - 1) / kRowSegment; }
constexpr int64_t kNormPartialBytes = 32;  // two numbers, at most long double

// A partial for each segment, and the row itself where it is a sum that the caller does not want.
constexpr int64_t norm_partials_bytes(const NormForward& args) {
  const bool saves_sum = args.residual.data != nullptr && args.sum.data == nullptr;
  return row_segments(args.cols) * kNormPartialBytes +
      (saves_sum ? args.cols * size_of(args.input.dtype) : 0);
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
constexpr int64_t kMaskedGroupBytes = 8192, kMaxMaskedGroupRows = 16;
constexpr int64_t masked_group_rows(int64_t cols, DType dtype) {
  const int64_t rows = kMaskedGroupBytes / (padded_cols(cols) * compute_bytes(dtype));
  return rows < 1 ? 1 : rows < kMaxMaskedGroupRows ? rows : kMaxMaskedGroupRows;
}
constexpr int64_t masked_row_bytes(int64_t cols, DType dtype) {
  return (softmax_scratch_bytes(cols, dtype) + 63) / 64 * 64;
}
constexpr int64_t masked_softmax_scratch_bytes(int64_t cols, DType dtype) {
  return 2 * kRepeatedBytes + masked_group_rows(cols, dtype) * masked_row_bytes(cols, dtype);
}

// The inner dimension of a spatial softmax is divided into segments, each a unit of work: as wide
// as the second level of cache holds a segment of all rows for, but at least so wide that one row
// of it is worth a DRAM burst and a page.
struct InnerSegments {
  static constexpr int64_t kCacheBytes = int64_t(1) << 20, kMinCols = 64, kMaxCols = 1024;
  int64_t cols, cols_each, count;  // for one outer index

  constexpr InnerSegments(int64_t dim_size, int64_t inner, int64_t element_bytes)
      : cols(inner),
        cols_each(width(kCacheBytes / (dim_size * element_bytes))),
        count((cols + cols_each - 1) / cols_each) {}

  constexpr RowRange operator[](int64_t index) const {
    const int64_t end = (index + 1) * cols_each;
    return {index * cols_each, end < cols ? end : cols};
  }

 private:
  static constexpr int64_t width(int64_t fit) {
    return fit < kMinCols ? kMinCols : fit < kMaxCols ? fit / kMinCols * kMinCols : kMaxCols;
  }
};

constexpr InnerSegments inner_segments(const SpatialSoftmaxForward& args) {
  return {args.dim_size, args.inner, size_of(args.input.dtype) + size_of(args.output.dtype)};
}
constexpr InnerSegments inner_segments(const SpatialSoftmaxBackward& args) {
  const int64_t bytes = 2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype);
  return {args.dim_size, args.inner, bytes};
}

// The accumulators of a group of columns, in the L1 cache, and for each chunk of rows and column of
// a segment a maximum and a sum, or five factors.
constexpr int64_t kAccumulatorBytes = 32768, kColumnPartialBytes = 5 * int64_t(sizeof(double));
constexpr int64_t spatial_scratch_bytes(int64_t dim_size, const InnerSegments& segments) {
  const int64_t chunks = dim_size / kShortestSoftmaxChunk + 1;
  return kAccumulatorBytes + chunks * segments.cols_each * kColumnPartialBytes;
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
