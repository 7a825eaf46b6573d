// Says how much scratch memory softmaxes need.
#pragma once

#include "cpu/threads/work_division.h"

namespace fusedops {

// Whatever the instruction set, a softmax chunk (kSoftmaxChunk) has no fewer columns than this.
constexpr int64_t kShortestSoftmaxChunk = 512;

// A SoftmaxChunk has at most this size: a vector of at most 64 bytes and two numbers, padded to the
// vector's alignment.
constexpr int64_t kSoftmaxChunkBytes = 128;
constexpr int64_t softmax_chunks_bytes(int64_t cols) {
  return (cols / kShortestSoftmaxChunk + 1) * kSoftmaxChunkBytes;
}

// Returns the bytes of a row's values and its chunks.
constexpr int64_t softmax_row_bytes(int64_t cols, DType dtype) {
  return padded_cols(cols) * compute_bytes(dtype) + softmax_chunks_bytes(cols);
}

// A softmax computes rows of up to this many columns in groups (rows.h). The values of a group take
// at most 16 KiB if they are floats: half of an L1 cache of 32 KiB.
constexpr int64_t kMaxSoftmaxGroupRows = 8, kMaxSoftmaxGroupCols = 512;

// Scratch memory holds the values of a group, or a row with its chunks.
constexpr int64_t softmax_scratch_bytes(int64_t cols, DType dtype) {
  if (cols > kMaxSoftmaxGroupCols) return softmax_row_bytes(cols, dtype);
  return kMaxSoftmaxGroupRows * padded_cols(cols) * compute_bytes(dtype);
}

constexpr InnerSegments inner_segments(const SpatialSoftmaxForward& args) {
  return {args.dim_size, args.inner, size_of(args.input.dtype) + size_of(args.output.dtype)};
}
constexpr InnerSegments inner_segments(const SpatialSoftmaxBackward& args) {
  const int64_t bytes = 2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype);
  return {args.dim_size, args.inner, bytes};
}

// Scratch memory holds the accumulators of a group of columns, which stay in the L1 cache, and for
// every chunk of rows and every column either a maximum and a sum, or five factors (ColumnFactors
// in spatial.h).
constexpr int64_t kAccumulatorBytes = 32768, kColumnPartialBytes = 5 * int64_t(sizeof(double));
constexpr int64_t spatial_scratch_bytes(int64_t dim_size, const InnerSegments& segments) {
  const int64_t chunks = dim_size / kShortestSoftmaxChunk + 1;
  return kAccumulatorBytes + chunks * segments.cols_each * kColumnPartialBytes;
}

}  // namespace fusedops
