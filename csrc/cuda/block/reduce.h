// Reduces values over the lanes of a warp, then over the warps of a row. Every thread gets the
// result.
//
// Order: values are combined by a butterfly over lanes, then over warps. The order depends only on
// the number of threads that share a row, so that a row has the same bits in any batch. All threads
// get the same bits, since a + b = b + a.
// Values: a scalar, or a Pair, whose two values share one barrier.
// Contract: a block has at most 32 warps, and all of its threads must call row_reduce().
#pragma once

#include "cuda/block/device.h"

namespace fusedops::cuda {

inline constexpr int32_t kMaxWarps = 32;

template <class T>
struct Pair {
  T first, second;
};

template <class T>
FUSEDOPS_DEVICE Pair<T> operator+(Pair<T> a, Pair<T> b) {
  return {a.first + b.first, a.second + b.second};
}

using device::shuffle_xor;
template <class T>
FUSEDOPS_DEVICE Pair<T> shuffle_xor(Pair<T> value, int32_t lane_mask) {
  return {
      device::shuffle_xor(value.first, lane_mask), device::shuffle_xor(value.second, lane_mask)};
}

// maximum() ignores NaN. The results of a row with a NaN become NaN all the same, because exp(NaN -
// max), which is NaN, is one of the terms of the sum.
struct Max {
  template <class T>
  static FUSEDOPS_DEVICE T identity() {
    return -INFINITY;
  }
  template <class T>
  static FUSEDOPS_DEVICE T combine(T a, T b) {
    return device::maximum(a, b);
  }
};

struct Sum {
  template <class T>
  static FUSEDOPS_DEVICE T identity() {
    return T{};
  }
  template <class T>
  static FUSEDOPS_DEVICE T combine(T a, T b) {
    return a + b;
  }
};

// Reduces over groups of `lanes` adjacent lanes, a power of two.
template <class Op, class T>
FUSEDOPS_DEVICE T warp_reduce(T value, int32_t lanes) {
#pragma unroll
  for (int32_t step = device::kWarpLanes / 2; step > 0; step /= 2) {
    if (step < lanes) value = Op::combine(value, shuffle_xor(value, step));
  }
  return value;
}

// Reduces over the blockDim.x threads of a row, a power of two up to 32 or a multiple of 32; the
// block has blockDim.y rows. `shared` has room for kMaxWarps values. If it was used before, a
// barrier must separate that use from this one.
template <class Op, class T>
FUSEDOPS_DEVICE T row_reduce(T value, T* shared) {
  constexpr int32_t kLanes = device::kWarpLanes;
  const int32_t threads = blockDim.x;
  if (threads <= kLanes) return warp_reduce<Op>(value, threads);
  const int32_t lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int32_t warps = threads / kLanes;
  T* row_values = shared + threadIdx.y * warps;
  value = warp_reduce<Op>(value, kLanes);
  if (lane == 0) row_values[warp] = value;
  __syncthreads();
  value = lane < warps ? row_values[lane] : Op::template identity<T>();
  return warp_reduce<Op>(value, kLanes);
}

}  // namespace fusedops::cuda
