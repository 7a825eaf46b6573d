// softmax in two steps: the statistics of a row, and the softmax from them.
//
// Contract: rows as in args.h; kWidth divides cols and every row is aligned for kWidth elements.
// softmax_forward_partials (rows.h) leaves the statistics of segments in the workspace.
#pragma once

#include "cuda/softmax/rows.h"

namespace fusedops::cuda {

// Merges the segments of a row; a block has one row.
template <class Acc>
FUSEDOPS_KERNEL(kSegmentThreads)
softmax_statistics_merge(SoftmaxStatistics args, int64_t first_row, Segments segments) {
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const int64_t row = first_row + blockIdx.x;
  const auto* const partials = partials_of<Pair<Acc>>(args.workspace, segments, row);
  const auto [largest, sum] =
      merged_softmax<Acc>(partials, segments.count, shared_max, shared_sums);
  if (threadIdx.x > 0) return;
  static_cast<Acc*>(args.max)[row] = largest;
  static_cast<Acc*>(args.sum)[row] = sum;
}

// A block has one segment.
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
      Acc exponentials[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) exponentials[j] = exponential<Out>(tile.at(i, j) - shift);
      const int32_t column = column_of<kWidth>(i);
      if (column < left) store_normalised(output + start + column, exponentials, affine);
    }
  }
}

}  // namespace fusedops::cuda
