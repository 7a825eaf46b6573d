// softmax in two steps: what all of a row comes to, and the softmax from it.
//
// Contract: rows as in args.h; kWidth divides cols and every row is aligned for kWidth elements.
// What segments of a row come to is found by softmax_forward_parts (softmax.h).
#pragma once

#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

// The statistics of rows whose segments are in the workspace; a block takes a row.
template <class Acc>
FUSEDOPS_KERNEL(kSegmentThreads)
softmax_statistics_merge(SoftmaxStatistics args, int64_t first_row, Segments segments) {
  FUSEDOPS_SHARED(Acc, max_slots, kMaxWarps);
  FUSEDOPS_SHARED(Acc, sum_slots, kMaxWarps);
  const int64_t row = first_row + blockIdx.x;
  const auto* const parts = parts_of<Pair<Acc>>(args.workspace, segments, row);
  const auto [largest, sum] = merged_softmax<Acc>(parts, segments.count, max_slots, sum_slots);
  if (threadIdx.x > 0) return;
  static_cast<Acc*>(args.max)[row] = largest;
  static_cast<Acc*>(args.sum)[row] = sum;
}

// A segment a block.
template <class In, class Out, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<In>)
softmax_statistics_apply(SoftmaxApply args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<Out>;
  constexpr int kVectors = kLoopVectors<kWidth, 1>;
  const Segment segment(segments, args.cols, first_row, blockIdx.x);
  const In* const input = row_of<In>(args.input, segment.row) + segment.start;
  Out* const output = row_of<Out>(args.output, segment.row) + segment.start;
  const Acc shift = finite_or_zero(static_cast<const Acc*>(args.max)[segment.row]);
  const Affine<Acc> affine(false, static_cast<const Acc*>(args.sum)[segment.row]);

  Tile<In, kWidth, kVectors> tile;
  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    const int32_t left = segment.cols - start;
    tile.load(input + start, left, -INFINITY);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc powers[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) powers[j] = exponential<Out>(tile.at(i, j) - shift);
      const int32_t column = column_of<kWidth>(i);
      if (column < left) store_normalised(output + start + column, powers, affine);
    }
  }
}

}  // namespace fusedops::cuda
