// softmax and log_softmax over the rows of planes, lane by lane, forward and backward.
//
// Contract: planes as in args.h; kWidth divides lanes and every row is aligned for kWidth elements.
// A block takes a strip of blockDim.x * kWidth neighbouring lanes of one plane, read coalesced;
// blockDim.y threads, a power of two, share a lane: thread y takes rows y, y + blockDim.y, ... Rows
// are read twice, the second time as a rule from L2.
//
// Numerics: as in softmax.h. A lane's bits depend on dtypes and the number of rows alone.
#pragma once

#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/reduce.h"
#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

// The lanes of this thread in a launch with one strip a block. A thread beyond the last lane has no
// rows.
struct PlaneLanes {
  int64_t plane, lane;
  uint32_t rows;  // unsigned: a step beyond the last of 2^31 - 1 does not overflow

  template <int kWidth, class Args>
  FUSEDOPS_DEVICE static PlaneLanes of(const Args& args, int64_t first_strip) {
    const auto strip_lanes = static_cast<uint32_t>(blockDim.x * kWidth);
    const uint64_t strips = (static_cast<uint64_t>(args.lanes) + strip_lanes - 1) / strip_lanes;
    const uint64_t strip = static_cast<uint64_t>(first_strip) + blockIdx.x;
    const uint64_t plane = strip / strips;
    const auto lane = static_cast<int64_t>((strip - plane * strips) * strip_lanes) +
        static_cast<int64_t>(threadIdx.x) * kWidth;
    const auto rows = static_cast<uint32_t>(lane < args.lanes ? args.rows : 0);
    return {static_cast<int64_t>(plane), lane, rows};
  }

  // Row 0 of the lanes.
  template <class T>
  FUSEDOPS_DEVICE const T* begin(const ConstPlanes& planes) const {
    return static_cast<const T*>(planes.data) + plane * planes.stride + lane;
  }
  template <class T>
  FUSEDOPS_DEVICE T* begin(const Planes& planes) const {
    return static_cast<T*>(planes.data) + plane * planes.stride + lane;
  }
};

// Rows row, row + blockDim.y, ... of kWidth lanes, all loads ahead of the first use.
template <class T, int kWidth>
struct PlaneTile {
  static constexpr int kRows = kPlaneRows<T>;
  Vec<T, kWidth> vectors[kRows];

  FUSEDOPS_DEVICE static uint32_t row_of(uint32_t start, int i) {
    return start + i * blockDim.y + threadIdx.y;
  }

  FUSEDOPS_DEVICE void load(
      const T* begin, int64_t row_stride, uint32_t start, uint32_t rows, AccumulatorOf<T> fill) {
    const T* from = begin + row_of(start, 0) * row_stride;
#pragma unroll
    for (int i = 0; i < kRows; ++i, from += blockDim.y * row_stride) {
      vectors[i] =
          row_of(start, i) < rows ? Vec<T, kWidth>::load(from) : Vec<T, kWidth>::filled(fill);
    }
  }
};

// Over the threads that share lanes, in a tree; all of them get the result. `slots` has room for
// kWidth values of every thread, and every thread of the block calls.
template <class Op, int kWidth, class Acc>
FUSEDOPS_DEVICE void lane_reduce(Acc (&values)[kWidth], Acc* slots) {
  const int32_t sharers = blockDim.y, y = threadIdx.y;
  if (sharers == 1) return;
  Acc* const own = slots + (y * blockDim.x + threadIdx.x) * kWidth;
  store(own, values);
  for (int32_t half = sharers / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y >= half) continue;
    const auto other = Vec<Acc, kWidth>::load_cached(own + half * blockDim.x * kWidth);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = Op::combine(values[j], other.at(j));
    store(own, values);
  }
  __syncthreads();
  const auto total = Vec<Acc, kWidth>::load_cached(slots + threadIdx.x * kWidth);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = total.at(j);
  __syncthreads();
}

template <class In, class Out, int kWidth>
FUSEDOPS_KERNEL((kPlaneMaxThreads<In, kWidth>))
spatial_softmax_forward(SpatialSoftmaxForward args, int64_t first_strip) {
  using Acc = AccumulatorOf<Out>;
  constexpr int32_t kSlots = kPlaneMaxThreads<In, kWidth> * kWidth;
  FUSEDOPS_SHARED(Acc, slots, kSlots);
  const PlaneLanes lanes = PlaneLanes::of<kWidth>(args, first_strip);
  constexpr int kRows = kPlaneRows<In>;
  const uint32_t step = blockDim.y * kRows;
  const In* const input = lanes.begin<In>(args.input);

  PlaneTile<In, kWidth> tile;
  Acc largest[kWidth], sums[kWidth] = {};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) largest[j] = -INFINITY;
  for (uint32_t start = 0; start < lanes.rows; start += step) {
    tile.load(input, args.input.row_stride, start, lanes.rows, -INFINITY);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Acc larger = largest[j], powers[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        larger = device::maximum(larger, tile.vectors[i].at(j));
      }
      const Acc shift = finite_or_zero(larger);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        powers[i] = exponential<Out>(tile.vectors[i].at(j) - shift);
      }
      sums[j] = sums[j] * exponential<Out>(largest[j] - shift) + tree_sum<kRows>(powers);
      largest[j] = larger;
    }
  }
  Acc own_largest[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) own_largest[j] = largest[j];
  lane_reduce<Max>(largest, slots);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    sums[j] *= exponential<Out>(own_largest[j] - finite_or_zero(largest[j]));
  }
  lane_reduce<Sum>(sums, slots);
  Acc last[kWidth];  // a factor or, of a logarithm, a summand
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    last[j] = args.log ? -device::log(sums[j]) : device::reciprocal(sums[j]);
  }

  Out* to = lanes.begin<Out>(args.output) + threadIdx.y * args.output.row_stride;
  for (uint32_t start = 0; start < lanes.rows; start += step) {
    tile.load(input, args.input.row_stride, start, lanes.rows, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      Acc values[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc shifted = tile.vectors[i].at(j) - largest[j];
        values[j] = args.log ? shifted + last[j] : exponential<Out>(shifted) * last[j];
      }
      if (tile.row_of(start, i) < lanes.rows) store(to, values);
      to += blockDim.y * args.output.row_stride;
    }
  }
}

// Out is grad_input's type, T that of grad_output and output.
template <class T, class Out, int kWidth>
FUSEDOPS_KERNEL((kPlaneMaxThreads<T, kWidth>))
spatial_softmax_backward(SpatialSoftmaxBackward args, int64_t first_strip) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<Out, T, kWidth>;
  constexpr int32_t kSlots = kPlaneMaxThreads<T, kWidth> * kWidth;
  FUSEDOPS_SHARED(Acc, slots, kSlots);
  const PlaneLanes lanes = PlaneLanes::of<kWidth>(args, first_strip);
  constexpr int kRows = kPlaneRows<T>;
  const uint32_t step = blockDim.y * kRows;
  const T* const grad_output = lanes.begin<T>(args.grad_output);
  const T* const output = lanes.begin<T>(args.output);

  PlaneTile<T, kWidth> grads, outputs;
  Acc sums[kWidth] = {};
  for (uint32_t start = 0; start < lanes.rows; start += step) {
    grads.load(grad_output, args.grad_output.row_stride, start, lanes.rows, 0);
    outputs.load(output, args.output.row_stride, start, lanes.rows, 0);
    Acc parts[kWidth] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Gradient gradient(grads.vectors[i], outputs.vectors[i], args.log);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) parts[j] += gradient.term(j);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[j] += parts[j];
  }
  lane_reduce<Sum>(sums, slots);

  Out* to = lanes.begin<Out>(args.grad_input) + threadIdx.y * args.grad_input.row_stride;
  for (uint32_t start = 0; start < lanes.rows; start += step) {
    grads.load(grad_output, args.grad_output.row_stride, start, lanes.rows, 0);
    outputs.load(output, args.output.row_stride, start, lanes.rows, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Gradient gradient(grads.vectors[i], outputs.vectors[i], args.log);
      Acc results[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) results[j] = gradient.result(j, sums[j]);
      if (grads.row_of(start, i) < lanes.rows) store(to, results);
      to += blockDim.y * args.grad_input.row_stride;
    }
  }
}

}  // namespace fusedops::cuda
