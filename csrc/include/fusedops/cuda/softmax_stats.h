// softmax in two steps: what all of a row comes to, and the softmax from it.
//
// Contract: rows as in args.h; kWidth divides cols and every row is aligned for kWidth elements.
#pragma once

#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

// One row a block. A thread whose part is all -inf keeps the sum 0, and does not poison the rest.
template <class In, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads)
softmax_statistics(SoftmaxStatistics args, int64_t first_row) {
  using Acc = AccumulatorOf<In>;
  constexpr int kVectors = kLoopVectors<kWidth, 1>;
  FUSEDOPS_SHARED(Acc, max_slots, kMaxWarps);
  FUSEDOPS_SHARED(Acc, sum_slots, kMaxWarps);
  const int64_t row = launch_row(first_row), step = int64_t{blockDim.x} * kVectors * kWidth;
  const In* const input = row_of<In>(args.input, row);

  Tile<In, kWidth, kVectors> tile;
  Acc largest = -INFINITY, sum = 0;
  for (int64_t start = 0; start < args.cols; start += step) {
    tile.load(input + start, static_cast<int32_t>(args.cols - start), -INFINITY);
    const Acc larger = device::maximum(largest, tile.max());
    const Acc shift = finite_or_zero(larger);
    Acc powers[kVectors * kWidth];
#pragma unroll
    for (int k = 0; k < kVectors * kWidth; ++k) {
      powers[k] = device::exp(tile.at(k / kWidth, k % kWidth) - shift);
    }
    sum = sum * device::exp(largest - shift) + tree_sum<kVectors * kWidth>(powers);
    largest = larger;
  }
  const Acc row_largest = row_reduce<Max>(largest, max_slots);
  sum *= device::exp(largest - finite_or_zero(row_largest));
  sum = row_reduce<Sum>(sum, sum_slots);
  if (threadIdx.x > 0) return;
  static_cast<Acc*>(args.max)[row] = row_largest;
  static_cast<Acc*>(args.sum)[row] = sum;
}

// A part of a row a block: `parts` of each row, of as many columns as a block has in flight.
template <class In, class Out, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads)
softmax_apply(SoftmaxApply args, int64_t first_part) {
  using Acc = AccumulatorOf<Out>;
  constexpr int kVectors = kLoopVectors<kWidth, 1>;
  const int64_t step = int64_t{blockDim.x} * kVectors * kWidth;
  const int64_t parts = (args.cols + step - 1) / step, part = first_part + blockIdx.x;
  const int64_t row = part / parts, start = part % parts * step;
  const auto left = static_cast<int32_t>(args.cols - start);

  Tile<In, kWidth, kVectors> tile;
  tile.load(row_of<In>(args.input, row) + start, left, -INFINITY);
  const Acc shift = finite_or_zero(Acc(static_cast<const AccumulatorOf<In>*>(args.max)[row]));
  const Affine<Acc> affine(false, static_cast<const AccumulatorOf<In>*>(args.sum)[row]);
  Out* const output = row_of<Out>(args.output, row) + start;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Acc powers[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) powers[j] = exponential<Out>(tile.at(i, j) - shift);
    const int32_t column = column_of<kWidth>(i);
    if (column < left) store_normalised(output + column, powers, affine);
  }
}

}  // namespace fusedops::cuda
