// Clusters whose blocks write to each other's shared memory.
#pragma once

#include "bug.h"
#include "cuda/block/device.h"
#include "reduction.h"

namespace planted {

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
  if (kBug == Bug::kRelaxedArrival && threadIdx.x == 0) result[blockIdx.x] = 0;
  if constexpr (kBug == Bug::kDivergentArrival) {
    if (warp == 0) {
      device::cluster_arrive();
    } else {
      device::cluster_arrive();
    }
  } else if constexpr (kBug != Bug::kLoneClusterWait) {
    device::cluster_arrive();
  }
  if constexpr (kBug == Bug::kSecondArrival) device::cluster_arrive();
  if constexpr (kBug != Bug::kMissingClusterWait) device::cluster_wait();
  // What another block has written before a relaxed arrival may not be read after it.
  if (kBug == Bug::kRelaxedArrival && result[blockIdx.x ^ 1] != 0) return;

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
