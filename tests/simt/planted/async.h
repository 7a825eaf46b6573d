// Copies that run beside the threads, and clusters that read and write each other's shared memory.
#pragma once

#include "bug.h"
#include "cuda/block/device.h"
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

// After the barrier the values of the other blocks are there.
template <Bug kBug>
void cluster_barrier() {
  if constexpr (kBug != Bug::kLoneClusterWait) {
    simt::cluster_arrive(kBug == Bug::kRelaxedArrival, simt::Site::current());
  }
  if constexpr (kBug == Bug::kSecondArrival) simt::cluster_arrive(false, simt::Site::current());
  simt::cluster_wait(simt::Site::current());
}

// result[block] = the sum of one value from each block of the cluster.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
cluster_sum(const float* values, float* result) {
  FUSEDOPS_SHARED(float, own, 1);
  if (threadIdx.x == 0) own[0] = values[blockIdx.x];
  if constexpr (kBug != Bug::kClusterRead) cluster_barrier<kBug>();
  float sum = 0;
  for (unsigned rank = 0; rank < simt::self->cluster_size; ++rank) {
    sum += *static_cast<float*>(simt::map_shared(own, rank, simt::Site::current()));
  }
  if (threadIdx.x == 0) result[blockIdx.x] = sum;
  // No block leaves while others may still read its shared memory.
  if constexpr (kBug != Bug::kClusterExit) cluster_barrier<kBug>();
}

// result[round][block] = the sum of the block's value plus the round, from each warp of the
// cluster. The warps write to mailboxes in all blocks; two mailboxes take turns.
inline constexpr int kRounds = 4;

template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
mailbox_sums(const float* values, float* result) {
  namespace device = fusedops::device;
  FUSEDOPS_SHARED(uint64_t, barriers, 2);
  FUSEDOPS_SHARED(float, mailboxes, 2 * kWarps * 16);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned blocks = device::cluster_blocks(), count = kWarps * blocks;
  if (threadIdx.x < 2) device::mbarrier_init(barriers + threadIdx.x);
  if constexpr (kBug == Bug::kDivergentArrival) {
    if (warp == 0) {
      device::cluster_arrive();
    } else {
      device::cluster_arrive();
    }
  } else {
    device::cluster_arrive();
  }
  if constexpr (kBug != Bug::kMissingClusterWait) device::cluster_wait();

  for (int round = 0; round < kRounds; ++round) {
    uint64_t* const barrier = barriers + round % 2;
    float* const mailbox = mailboxes + round % 2 * count;
    const unsigned expected = kBug == Bug::kLostBytes ? count + 1 : count;
    if (threadIdx.x == 0) device::mbarrier_expect(barrier, expected * sizeof(float));
    // All lanes have read the values of the round before.
    if constexpr (kBug != Bug::kMailSentEarly) __syncwarp();
    const float value = values[blockIdx.x] + round;
    if (lane < blocks) {
      device::store_cluster(mailbox + warp * blocks + device::cluster_rank(), value, barrier, lane);
    }
    if constexpr (kBug == Bug::kEarlyClusterExit) {
      if (round == kRounds - 1) return;
    }
    device::mbarrier_wait(barrier, kBug == Bug::kStuckPhase ? 0 : round / 2 % 2);
    float sum = 0;
    for (unsigned i = 0; i < count; ++i) sum += mailbox[i];
    if (threadIdx.x == 0) result[round * gridDim.x + blockIdx.x] = sum;
  }
}

}  // namespace planted
