// Computes the statistics of rows, for a softmax in two steps. The kernels of rows.h leave the
// statistics of segments in the workspace, and compute the softmax from the statistics of rows.
#pragma once

#include "cuda/softmax/rows.h"

namespace fusedops::cuda {

// Merges the statistics of a row's segments; a block has one row.
template <class Acc>
FUSEDOPS_KERNEL(kSegmentThreads)
softmax_statistics_merge(SoftmaxStatistics args, int64_t first_row, Segments segments) {
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const int64_t row = first_row + blockIdx.x;
  const auto* const partials = partials_of<Pair<Acc>>(args.workspace, segments, row);
  const auto [largest, sum] = merged_softmax(partials, segments.count, shared_max, shared_sums);
  if (threadIdx.x > 0) return;
  static_cast<Acc*>(args.max)[row] = largest;
  static_cast<Acc*>(args.sum)[row] = sum;
}

}  // namespace fusedops::cuda
