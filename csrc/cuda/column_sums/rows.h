// The kernel of the sums over rows.
#pragma once

#include "cuda/block/vec.h"

namespace fusedops::cuda {

// A thread has kColumnsEach columns, a block's width apart, and all their loads of a row in flight.
inline constexpr int kColumnThreads = 256, kColumnsEach = 8;

// Adds the rows to the sums from column `first` on.
template <class T>
FUSEDOPS_KERNEL(kColumnThreads)
column_sums(ColumnSums args, int64_t first) {
  using Acc = AccumulatorOf<T>;
  auto* const sums = static_cast<Acc*>(args.sums);
  const int64_t begin = first + int64_t{blockIdx.x} * kColumnThreads * kColumnsEach + threadIdx.x;
  Acc own[kColumnsEach];
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t col = begin + i * kColumnThreads;
    own[i] = col < args.cols ? sums[col] : Acc(0);
  }
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* const input = static_cast<const T*>(args.input.data) + args.input.spacing.offset(row);
#pragma unroll
    for (int i = 0; i < kColumnsEach; ++i) {
      const int64_t col = begin + i * kColumnThreads;
      if (col < args.cols) own[i] += widen(input[col]);
    }
  }
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t col = begin + i * kColumnThreads;
    if (col < args.cols) sums[col] = own[i];
  }
}

}  // namespace fusedops::cuda
