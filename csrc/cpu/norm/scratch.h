// Divides the work of norms, and says how much scratch memory it needs.
#pragma once

#include "cpu/threads/work_division.h"

namespace fusedops {

// Norms interleave at most this many rows. With a residual they interleave two if rows of the sum
// are so long that four would not stay in the L2 cache until they are read again.
constexpr int64_t kMaxInterleavedRows = 4, kLongestSumBytes = int64_t(1) << 17;
constexpr int64_t interleaved_rows(const NormForward& args) {
  const bool is_long = args.cols * size_of(args.output.dtype) > kLongestSumBytes;
  return args.residual.data != nullptr && is_long ? 2 : kMaxInterleavedRows;
}

// A chunk of a row (kNormChunk in common.h) takes at most this many bytes of scratch memory, in
// which dropout is applied to the chunk.
constexpr int64_t kNormChunkBytes = 8192;

// Scratch memory holds weight, bias, a chunk of a row for dropout and, with a residual, the
// interleaved rows of input + residual.
constexpr int64_t norm_scratch_bytes(const NormForward& args) {
  const int64_t width = padded_cols(args.cols), dtype_bytes = size_of(args.output.dtype);
  const int64_t rows = args.residual.data == nullptr ? 0 : interleaved_rows(args);
  return 2 * width * compute_bytes(args.output.dtype) + kNormChunkBytes +
      rows * width * dtype_bytes;
}

// Scratch memory holds the weight, a chunk of a row for dropout and, if arithmetic is in float, the
// scaled copy of a row of tiny values (scale_if_tiny() in backward.h).
constexpr int64_t norm_scratch_bytes(const NormBackward& args) {
  const int64_t width = padded_cols(args.cols), dtype_bytes = size_of(args.input.dtype);
  const int64_t row_bytes = args.input.dtype == DType::kFloat64 ? 0 : width * dtype_bytes;
  return width * compute_bytes(args.input.dtype) + kNormChunkBytes + row_bytes;
}

// --- long rows ----------------------------------------------------------------------------------

constexpr int64_t kNormPartialBytes = 48;  // three numbers, at most long double

// Returns the bytes that a long row needs for its partials, one per segment, and for input +
// residual if there is a residual and the caller does not want the sum.
constexpr int64_t norm_partials_bytes(const NormForward& args) {
  const bool saves_sum = args.residual.data != nullptr && args.sum.data == nullptr;
  return row_segments(args.cols) * kNormPartialBytes +
      (saves_sum ? args.cols * size_of(args.output.dtype) : 0);
}

// Holds the sums of a norm's backward over a segment or a row: of g and of g * (input - mean),
// where g = grad_output * weight.
struct NormGradSums {
  double of_grad, of_product;
};

// In a backward, scratch memory holds for a segment: the weight, a chunk of gradients, for each
// column two sums over all partitions and two over one partition, and a scaled row of tiny values.
// A forward needs less.
constexpr int64_t kLongNormScratchBytes = 7 * kRowSegment * int64_t(sizeof(double));

// --- dimensions other than the last -------------------------------------------------------------

// The inner dimension of a spatial norm is divided into segments of about 64 K elements each, which
// are read from memory once and stay in the L2 cache. A segment has at most 512 columns, so that a
// lane adds up few values for an element of grad_weight, about as many as in a partition of rows.
// InnerSegments gets the `element_bytes` with which kElements elements fill its cache.
template <class Args>
constexpr InnerSegments norm_segments(const Args& args) {
  constexpr int64_t kElements = int64_t(1) << 16, kMaxCols = 512;
  const int64_t least = kElements / kMaxCols;
  return {
      args.dim_size < least ? least : args.dim_size, args.inner,
      /*element_bytes=*/InnerSegments::kCacheBytes / kElements};
}

// Scratch memory holds weight and bias, a column whose statistics are computed again (correct() in
// spatial.h), and seven numbers for each column of a segment.
constexpr int64_t spatial_norm_scratch_bytes(int64_t dim_size) {
  return (3 * padded_cols(dim_size) + 7 * InnerSegments::kMaxCols) * int64_t(sizeof(double));
}

// --- sums over rows -----------------------------------------------------------------------------

// A backward divides its rows, or its segments of inner columns, into at most kMaxPartitions
// partitions. The division depends on the number of rows or segments alone, so that sums over rows
// are added up in the same order whatever the number of threads.
struct NormPartition {
  static constexpr int64_t kMaxPartitions = 64;
  int64_t size, size_each, count;

  constexpr NormPartition(int64_t size_, int64_t least)
      : size(size_),
        size_each(size > least * kMaxPartitions ? ceil_div(size, kMaxPartitions) : least),
        count(ceil_div(size, size_each)) {}

  constexpr RowRange operator[](int64_t index) const {
    const int64_t end = (index + 1) * size_each;
    return {index * size_each, end < size ? end : size};
  }
};
// With at least 64 rows, clearing and adding a partition's sums takes under 2 % of a backward.
constexpr NormPartition partition_of(const NormBackward& args) { return {args.rows, /*least=*/64}; }
constexpr NormPartition partition_of(const SpatialNormBackward& args) {
  return {args.outer * norm_segments(args).count, /*least=*/1};
}

// Describes the sums over rows, grad_weight and grad_bias. The workspace holds both per partition.
struct NormColumnSums {
  DType dtype;  // the dtype of the rows
  Columns grad_weight, grad_bias;
  void* workspace;
  int64_t partitions, cols;

  constexpr bool are_wanted() const {
    return grad_weight.data != nullptr || grad_bias.data != nullptr;
  }
  constexpr int64_t workspace_bytes() const {
    return are_wanted() ? partitions * 2 * padded_cols(cols) * compute_bytes(dtype) : 0;
  }
};
constexpr NormColumnSums column_sums_of(const NormBackward& args) {
  return {args.input.dtype, args.grad_weight,         args.grad_bias,
          args.workspace,   partition_of(args).count, args.cols};
}
constexpr NormColumnSums column_sums_of(const SpatialNormBackward& args) {
  return {args.input.dtype, args.grad_weight,         args.grad_bias,
          args.workspace,   partition_of(args).count, args.dim_size};
}

}  // namespace fusedops
