// RowScope: what holds a row that stays in registers, a block or all blocks of a cluster. Each
// block of a cluster has neighbouring columns.
//
// Contract: reduce() is as row_reduce() of reduce.h. Its shared memory has room for kSharedValues
// values and serves nothing else until leave(), which every thread calls last.
// Order: over the threads of each block, then a butterfly over the ranks of the blocks; all threads
// of a cluster get the same bits.
#pragma once

#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/reduce.h"

namespace fusedops::cuda {

struct ColumnRange {
  int32_t start, cols;
};

struct OneBlock {
  static constexpr int32_t kSharedValues = kMaxWarps;

  template <int kWidth>
  static FUSEDOPS_DEVICE ColumnRange own_columns(int32_t cols) {
    return {0, cols};
  }
  template <class Op, class T>
  static FUSEDOPS_DEVICE T reduce(T value, T* shared) {
    return row_reduce<Op>(value, shared);
  }
  static FUSEDOPS_DEVICE bool is_first() { return true; }
  static FUSEDOPS_DEVICE void leave() {}
};

FUSEDOPS_DEVICE float load_cluster(const float* own, uint32_t rank) {
  return device::load_cluster(own, rank);
}
FUSEDOPS_DEVICE Pair<float> load_cluster(const Pair<float>* own, uint32_t rank) {
  return {device::load_cluster(&own->first, rank), device::load_cluster(&own->second, rank)};
}

struct Cluster {
  static constexpr int32_t kSharedValues = kMaxWarps + 1;  // the other blocks read the last one

  template <int kWidth>
  static FUSEDOPS_DEVICE ColumnRange own_columns(int32_t cols) {
    const int32_t each = cluster_cols(cols, kWidth);
    const int32_t start = static_cast<int32_t>(device::cluster_rank()) * each;
    return {start, each < cols - start ? each : cols - start};
  }

  template <class Op, class T>
  static FUSEDOPS_DEVICE T reduce(T value, T* shared) {
    value = row_reduce<Op>(value, shared);
    T* const own = shared + kMaxWarps;
    if (threadIdx.x == 0) *own = value;
    device::cluster_barrier();
    return warp_reduce<Op>(load_cluster(own, threadIdx.x % kClusterBlocks), kClusterBlocks);
  }

  static FUSEDOPS_DEVICE bool is_first() { return device::cluster_rank() == 0; }
  static FUSEDOPS_DEVICE void leave() { device::cluster_barrier(); }
};

}  // namespace fusedops::cuda
