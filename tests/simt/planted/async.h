// Copies that run beside the threads, and clusters that read each other's shared memory.
#pragma once

#include "bug.h"
#include "fusedops/device.h"
#include "reduction.h"

namespace planted {

// result = 2 * values, 16 bytes a thread by cp.async.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
double_copied(const float* values, float* result) {
  FUSEDOPS_SHARED(float, staged, 4 * kThreads);
  float* const own = staged + 4 * threadIdx.x;
  simt::copy_async(own, values + 4 * threadIdx.x, 16, 16, simt::Site::current());
  simt::commit_copies();
  simt::wait_copies(kBug == Bug::kWeakCopyWait ? 1 : 0);
  for (int i = 0; i < 4; ++i) result[4 * threadIdx.x + i] = 2 * own[i];
}

// The same with one bulk copy a block into dynamic shared memory.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
double_bulk(const float* values, float* result) {
  FUSEDOPS_SHARED(uint64_t, arrived, 1);
  auto* const staged = static_cast<float*>(simt::dynamic_shared());
  constexpr size_t kBytes = kThreads * sizeof(float);
  if (threadIdx.x == 0) simt::barrier_init(arrived, 1, simt::Site::current());
  __syncthreads();
  if (threadIdx.x == 0) {
    simt::barrier_arrive_expecting(arrived, kBytes, simt::Site::current());
    simt::copy_bulk(staged, values, kBytes, arrived, simt::Site::current());
  }
  if constexpr (kBug != Bug::kMissingBulkWait) {
    simt::barrier_wait(arrived, false, simt::Site::current());
  }
  result[threadIdx.x] = 2 * staged[threadIdx.x];
}

// result[block] = the sum of one value from each block of the cluster.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
cluster_sum(const float* values, float* result) {
  FUSEDOPS_SHARED(float, own, 1);
  if (threadIdx.x == 0) own[0] = values[blockIdx.x];
  // After the barrier the values of the other blocks are there.
  if constexpr (kBug != Bug::kClusterRead) simt::cluster_barrier(simt::Site::current());
  float sum = 0;
  for (unsigned rank = 0; rank < simt::self->cluster_size; ++rank) {
    sum += *static_cast<float*>(simt::map_shared(own, rank, simt::Site::current()));
  }
  if (threadIdx.x == 0) result[blockIdx.x] = sum;
  // No block leaves while others may still read its shared memory.
  if constexpr (kBug != Bug::kClusterExit) simt::cluster_barrier(simt::Site::current());
}

}  // namespace planted
