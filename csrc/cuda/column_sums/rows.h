// Adds up the rows of a tensor, column by column, in the order of the rows (ColumnSums in args.h).
#pragma once

#include "cuda/block/vec.h"

namespace fusedops::cuda {

// A thread has one column, so that a vocabulary of 50,257 classes has 197 blocks. It loads the
// elements of kRowsAtOnce rows before it adds them.
inline constexpr int kColumnThreads = 256, kRowsAtOnce = 8;

// These functions load and store the sum of a column between launches. Beside a 16-bit input the
// sum is a float in two halves (ColumnSums in args.h), until the last launch rounds it.
template <class T>
FUSEDOPS_DEVICE AccumulatorOf<T> load_sum(const ColumnSums& args, int64_t col) {
  if (args.is_first) return 0;
  if constexpr (sizeof(T) == 2) {
    const uint32_t upper = static_cast<const uint16_t*>(args.sums)[col];
    return bit_cast<float>(upper << 16 | args.lower[col]);
  } else {
    return static_cast<const T*>(args.sums)[col];
  }
}
template <class T>
FUSEDOPS_DEVICE void store_sum(const ColumnSums& args, int64_t col, AccumulatorOf<T> sum) {
  if constexpr (sizeof(T) == 2) {
    if (!args.is_last) {
      const auto bits = bit_cast<uint32_t>(sum);
      static_cast<uint16_t*>(args.sums)[col] = static_cast<uint16_t>(bits >> 16);
      args.lower[col] = static_cast<uint16_t>(bits);
      return;
    }
  }
  round_to(sum, static_cast<T*>(args.sums)[col]);
}

// Adds the rows to the sums from column `first` on.
template <class T>
FUSEDOPS_KERNEL(kColumnThreads)
column_sums(ColumnSums args, int64_t first) {
  using Acc = AccumulatorOf<T>;
  const int64_t col = first + int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (col >= args.cols) return;
  const T* const column = static_cast<const T*>(args.input.data) + col;
  Acc sum = load_sum<T>(args, col);
  for (int64_t row = 0; row < args.rows; row += kRowsAtOnce) {
    Acc values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const bool is_row = row + i < args.rows;
      values[i] = is_row ? widen(column[args.input.spacing.offset(row + i)]) : Acc(-0.0);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) sum += values[i];
  }
  store_sum<T>(args, col, sum);
}

}  // namespace fusedops::cuda
