// How the CPU's work is divided (chunks and segments of rows, partitions of rows), and how much
// scratch memory it needs. The division is the same for every instruction set and number of
// threads.
#pragma once

#include "args.h"

namespace fusedops {

struct RowRange {
  int64_t begin, end;
};

// A multiple of every instruction set's tile: rows in scratch memory are written in whole tiles,
// past the end of the row.
constexpr int64_t kColumnPadding = 32;
constexpr int64_t padded_cols(int64_t cols) {
  return (cols + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
}

// The minimum length of a softmax chunk, over all instruction sets.
constexpr int64_t kShortestSoftmaxChunk = 512;

// Bytes per compute element.
constexpr int64_t compute_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// A chunk has a vector and two numbers.
constexpr int64_t kSoftmaxChunkBytes = 128;
constexpr int64_t softmax_chunks_bytes(int64_t cols) {
  return (cols / kShortestSoftmaxChunk + 1) * kSoftmaxChunkBytes;
}

// Scratch memory for a row of values and its chunks.
constexpr int64_t softmax_scratch_bytes(int64_t cols, DType dtype) {
  return padded_cols(cols) * compute_bytes(dtype) + softmax_chunks_bytes(cols);
}

// Threads share a long row by segments of columns. Each segment gives a partial, and the row is
// written once all partials are there. Whether a row is long, and what its partials are, does not
// depend on the number of threads; therefore neither do the bits of the results.
constexpr int64_t kLongestShortRow = 65536, kRowSegment = 4096;
constexpr bool is_long_row(int64_t cols) { return cols > kLongestShortRow; }
constexpr int64_t row_segments(int64_t cols) { return (cols + kRowSegment - 1) / kRowSegment; }
constexpr int64_t kNormPartialBytes = 48;  // three numbers, at most long double

// A partial for each segment, and the row itself if it is a sum that the caller does not want.
constexpr int64_t norm_partials_bytes(const NormForward& args) {
  const bool saves_sum = args.residual.data != nullptr && args.sum.data == nullptr;
  return row_segments(args.cols) * kNormPartialBytes +
      (saves_sum ? args.cols * size_of(args.output.dtype) : 0);
}

// Sums of a norm's backward, over a segment or a row: of g and of g * (input - mean), where g =
// grad_output * weight.
struct NormGradSums {
  double of_grad, of_product;
};

// Room to repeat a mask's or bias's only value for the columns of a chunk.
constexpr int64_t kRepeatedBytes = 16384;

// A masked softmax computes a group of rows one step after the other, so that the end of a step, a
// sum over lanes or a division, overlaps with the next row's step. A group stays in the L1 cache.
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

// The inner dimension of a spatial softmax is divided into segments, each a unit of work. A segment
// is so wide that all its rows fit into the L2 cache, but at least kMinCols wide, so that one of
// its rows is worth a DRAM burst and a page.
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

// The accumulators of a group of columns, which stay in the L1 cache, and for every chunk of rows
// and every column a maximum and a sum, or five factors.
constexpr int64_t kAccumulatorBytes = 32768, kColumnPartialBytes = 5 * int64_t(sizeof(double));
constexpr int64_t spatial_scratch_bytes(int64_t dim_size, const InnerSegments& segments) {
  const int64_t chunks = dim_size / kShortestSoftmaxChunk + 1;
  return kAccumulatorBytes + chunks * segments.cols_each * kColumnPartialBytes;
}

// Norms interleave this many rows. With a residual it is fewer if the sums would not stay in the L2
// cache until they are read again.
constexpr int64_t kMaxInterleavedRows = 4, kLongestSumBytes = int64_t(1) << 17;
constexpr int64_t interleaved_rows(const NormForward& args) {
  const bool is_long = args.cols * size_of(args.output.dtype) > kLongestSumBytes;
  return args.residual.data != nullptr && is_long ? 2 : kMaxInterleavedRows;
}

// A chunk of a row to which dropout has yet to be applied.
constexpr int64_t kNormChunkBytes = 8192;

// Weight, bias, the dropout chunk, and the rows of sums.
constexpr int64_t norm_scratch_bytes(const NormForward& args) {
  const int64_t width = padded_cols(args.cols), dtype_bytes = size_of(args.output.dtype);
  const int64_t rows = args.residual.data == nullptr ? 0 : interleaved_rows(args);
  return 2 * width * compute_bytes(args.output.dtype) + kNormChunkBytes +
      rows * width * dtype_bytes;
}

// Weight, the dropout chunk and, if arithmetic is in float, a tiny row.
constexpr int64_t norm_scratch_bytes(const NormBackward& args) {
  const int64_t width = padded_cols(args.cols), dtype_bytes = size_of(args.input.dtype);
  const int64_t row_bytes = args.input.dtype == DType::kFloat64 ? 0 : width * dtype_bytes;
  return width * compute_bytes(args.input.dtype) + kNormChunkBytes + row_bytes;
}

// A norm's backward divides its rows into at most kMaxPartitions partitions, by the number of rows
// alone: sums over rows are added up in the same order whatever the number of threads. A partition
// has at least 64 rows, so that clearing and adding its two accumulators costs under 2 %.
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

// The inner dimension of a spatial norm is divided into segments whose strip has 64 K elements: it
// is read from memory once, and stays in the L2 cache. A segment has at most 512 columns, so that a
// lane adds up no more values for a weight than in a partition of rows.
template <class Args>
constexpr InnerSegments norm_segments(const Args& args) {
  constexpr int64_t kElements = int64_t(1) << 16, kMostCols = 512;
  const int64_t least = kElements / kMostCols;
  return {
      args.dim_size < least ? least : args.dim_size, args.inner,
      InnerSegments::kCacheBytes / kElements};
}

// Weight and bias, a column that is computed again, and seven numbers for each column of a segment.
constexpr int64_t spatial_norm_scratch_bytes(int64_t dim_size) {
  return (3 * padded_cols(dim_size) + 7 * InnerSegments::kMaxCols) * int64_t(sizeof(double));
}

// The backward of a spatial norm divides its segments into at most as many partitions as that of
// rows has, by the number of segments alone.
struct SegmentPartition {
  int64_t segments, segments_each, count;

  explicit constexpr SegmentPartition(const SpatialNormBackward& args)
      : segments(args.outer * norm_segments(args).count),
        segments_each((segments + RowPartition::kMaxPartitions - 1) / RowPartition::kMaxPartitions),
        count((segments + segments_each - 1) / segments_each) {}

  constexpr RowRange operator[](int64_t index) const {
    const int64_t end = (index + 1) * segments_each;
    return {index * segments_each, end < segments ? end : segments};
  }

  // A number of rows with as many partitions.
  constexpr int64_t rows() const { return count * RowPartition::kMinRows; }
};

// What the partitions' sums of a spatial norm's backward are to norm_finish(): those of rows.
constexpr NormBackward sums_as_of_rows(const SpatialNormBackward& args) {
  NormBackward rows{};
  rows.kind = args.kind;
  rows.input.dtype = args.input.dtype;
  rows.weight = args.weight;
  rows.grad_weight = args.grad_weight;
  rows.grad_bias = args.grad_bias;
  rows.workspace = args.workspace;
  rows.rows = SegmentPartition(args).rows();
  rows.cols = args.dim_size;
  return rows;
}

// Weight and bias of a segment, two sums per column, two more of a partition, and a tiny row.
constexpr int64_t kLongNormScratchBytes = 7 * kRowSegment * int64_t(sizeof(double));

}  // namespace fusedops
