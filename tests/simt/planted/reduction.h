// Reductions as kernels do them: over a warp by shuffles, over a block through shared memory, over
// blocks by atomics.
#pragma once

#include "bug.h"
#include "cuda/block/device.h"

namespace planted {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;

template <Bug kBug>
float warp_max(float value) {
  const unsigned lane = threadIdx.x % 32;
  if constexpr (kBug == Bug::kHalfWarpShuffle) {
    if (lane < 16) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 8));
  }
  if constexpr (kBug == Bug::kShuffleOutsideMask) {
    if (lane < 16) value = fmaxf(value, __shfl_xor_sync(0x0000ffffu, value, 16));
  }
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// result[0] = max(values), result[1] = max(-values), in one block and through the same shared
// memory.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
extremes(const float* values, float* result, int count) {
  FUSEDOPS_SHARED(float, shared_max, kWarps);
  const int thread = threadIdx.x, warp = thread / 32;
  if constexpr (kBug == Bug::kEarlyExit) {
    if (thread >= count) return;
  }
  const bool inside = kBug == Bug::kGlobalOverrun ? thread <= count : thread < count;
  const float value = inside ? values[thread] : -INFINITY;
  for (int round = 0; round < 2; ++round) {
    const float largest = warp_max<kBug>(inside && round == 1 ? -value : value);
    const bool writes = kBug != Bug::kUninitialised || warp < kWarps - 1;
    if (thread % 32 == 0 && writes)
      shared_max[warp + (kBug == Bug::kSharedOverrun ? 1 : 0)] = largest;
    if constexpr (kBug == Bug::kDivergentBarrier) {
      if (warp == 0) {
        __syncthreads();
      } else {
        __syncthreads();
      }
    } else {
      __syncthreads();
    }
    float all = shared_max[0];
    for (int i = 1; i < kWarps; ++i) all = fmaxf(all, shared_max[i]);
    if (thread == 0) result[round] = all;
    if constexpr (kBug != Bug::kMissingReuseBarrier) __syncthreads();
  }
}

// result[0] = sum(values) of kThreads values, halving the threads.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
tree_sum(const float* values, float* result) {
  FUSEDOPS_SHARED(float, sums, kThreads);
  const int thread = threadIdx.x;
  float* const own = sums + thread + (kBug == Bug::kSharedOverrunByPointer ? 1 : 0);
  *own = values[thread];
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    if constexpr (kBug != Bug::kMissingTreeBarrier) __syncthreads();
  }
  if (thread == 0) result[0] = sums[0];
}

// Each lane's value moves to the next lane through shared memory. Shuffles order no memory.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
rotate_lanes(const float* values, float* result) {
  FUSEDOPS_SHARED(float, places, kThreads);
  const int thread = threadIdx.x;
  places[thread] = values[thread];
  if constexpr (kBug == Bug::kMissingSyncwarp) {
    __shfl_xor_sync(0xffffffffu, 0, 1);
  } else {
    __syncwarp();
  }
  result[thread] = places[thread / 32 * 32 + (thread + 1) % 32];
}

// result[c] += the values of this block's row; every block adds to the same columns.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
column_sums(const float* values, float* result) {
  const float value = values[blockIdx.x * kThreads + threadIdx.x];
  if constexpr (kBug == Bug::kPlainAddAcrossBlocks) {
    result[threadIdx.x] += value;
  } else {
    atomicAdd(&result[threadIdx.x], value);
  }
}

struct alignas(32) Octet {
  float values[8];
};

// Copies four values at a time through shared memory. A 16-byte load may not be 4 bytes off, and
// shared memory is not aligned to 32 bytes.
template <Bug kBug>
FUSEDOPS_KERNEL(kThreads)
copy_vectors(const float* values, float* result) {
  const float* const from = values + 4 * threadIdx.x + (kBug == Bug::kMisaligned ? 1 : 0);
  FUSEDOPS_SHARED(float, staged, 4 * kThreads);
  auto* const vectors = reinterpret_cast<uint4*>(staged);
  vectors[threadIdx.x] = *reinterpret_cast<const uint4*>(from);
  if constexpr (kBug == Bug::kMisalignedShared) {
    *reinterpret_cast<Octet*>(staged) = Octet{};
  }
  reinterpret_cast<uint4*>(result)[threadIdx.x] = vectors[threadIdx.x];
}

}  // namespace planted
