// Who shares a row that stays in registers: the threads of a block, or those of all blocks of a
// cluster, each with a part of neighbouring columns.
//
// Contract: reduce() as row_reduce() of reduce.h, with kSlots slots that nothing else is kept in
// before leave(), which every thread calls last.
// Order: over the threads of each block, then a butterfly over the ranks of the blocks; all threads
// of a cluster hold the same bits.
#pragma once

#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/reduce.h"

namespace fusedops::cuda {

struct RowPart {
  int32_t start, cols;
};

struct OneBlock {
  static constexpr int32_t kSlots = kMaxWarps;

  template <int kWidth>
  static FUSEDOPS_DEVICE RowPart part_of(int32_t cols) {
    return {0, cols};
  }
  template <class Op, class T>
  static FUSEDOPS_DEVICE T reduce(T value, T* slots) {
    return row_reduce<Op>(value, slots);
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
  static constexpr int32_t kSlots = kMaxWarps + 1;  // the last is for the other blocks

  template <int kWidth>
  static FUSEDOPS_DEVICE RowPart part_of(int32_t cols) {
    const int32_t each = cluster_cols(cols, kWidth);
    const int32_t start = static_cast<int32_t>(device::cluster_rank()) * each;
    return {start, each < cols - start ? each : cols - start};
  }

  template <class Op, class T>
  static FUSEDOPS_DEVICE T reduce(T value, T* slots) {
    value = row_reduce<Op>(value, slots);
    T* const own = slots + kMaxWarps;
    if (threadIdx.x == 0) *own = value;
    device::cluster_barrier();
    return warp_reduce<Op>(load_cluster(own, threadIdx.x % kClusterBlocks), kClusterBlocks);
  }

  static FUSEDOPS_DEVICE bool is_first() { return device::cluster_rank() == 0; }
  static FUSEDOPS_DEVICE void leave() { device::cluster_barrier(); }
};

}  // namespace fusedops::cuda
