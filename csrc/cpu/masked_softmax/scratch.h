// Says how much scratch memory masked softmaxes need.
#pragma once

#include "cpu/softmax/scratch.h"

namespace fusedops {

// A mask or bias that has one value for all columns is repeated for the columns of a chunk. The
// copies take at most this many bytes of scratch memory for the mask, and as many for the bias.
constexpr int64_t kRepeatedBytes = 16384;

// A masked softmax computes each step for all rows of a group before the next step, so that the end
// of one row's step, a sum over lanes or a division, overlaps with the next row's. A group stays in
// the L1 cache.
constexpr int64_t kMaskedGroupBytes = 8192, kMaxMaskedGroupRows = 16;
constexpr int64_t masked_group_rows(int64_t cols, DType dtype) {
  const int64_t rows = kMaskedGroupBytes / (padded_cols(cols) * compute_bytes(dtype));
  return rows < 1 ? 1 : rows < kMaxMaskedGroupRows ? rows : kMaxMaskedGroupRows;
}
constexpr int64_t masked_row_bytes(int64_t cols, DType dtype) {
  return ceil_div(softmax_row_bytes(cols, dtype), 64) * 64;
}

constexpr int64_t masked_softmax_scratch_bytes(int64_t cols, DType dtype) {
  return 2 * kRepeatedBytes + masked_group_rows(cols, dtype) * masked_row_bytes(cols, dtype);
}

// With dropout, the backward pass keeps a row of gradients. Without dropout it needs no scratch
// memory.
constexpr int64_t masked_softmax_backward_scratch_bytes(const MaskedSoftmaxBackward& args) {
  if (args.dropout.seed == nullptr) return 0;
  return padded_cols(args.cols) * compute_bytes(args.probabilities.dtype);
}

}  // namespace fusedops
