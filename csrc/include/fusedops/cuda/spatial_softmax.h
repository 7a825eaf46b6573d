// Spatial softmax and log_softmax: over dim_size, for each outer and inner index, forward and
// backward.
//
// Contract: slices as in args.h; kWidth divides inner, and every run of inner elements is aligned
// for kWidth of them. A block has a segment of blockDim.x * kWidth neighbouring inner columns of
// one outer index, so that its loads are coalesced. blockDim.y threads, a power of two, share a
// column: thread y has the indices y, y + blockDim.y, ... of dim_size. Elements are read twice, the
// second time usually from L2.
//
// Numerics: as in softmax.h. The bits of a column depend on the dtypes and dim_size alone.
#pragma once

#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/reduce.h"
#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

// The inner columns of this thread in a launch with one segment a block. For a thread beyond the
// last column dim_size is 0.
struct InnerColumns {
  int64_t outer, inner;
  uint32_t dim_size;  // unsigned, so that a step beyond 2^31 - 1 does not overflow

  template <int kWidth, class Args>
  FUSEDOPS_DEVICE static InnerColumns of(const Args& args, int64_t first_segment) {
    const auto segment_cols = static_cast<uint32_t>(blockDim.x * kWidth);
    const uint64_t segments = (static_cast<uint64_t>(args.inner) + segment_cols - 1) / segment_cols;
    const uint64_t segment = static_cast<uint64_t>(first_segment) + blockIdx.x;
    const uint64_t outer = segment / segments;
    const auto inner = static_cast<int64_t>((segment - outer * segments) * segment_cols) +
        static_cast<int64_t>(threadIdx.x) * kWidth;
    const auto dim_size = static_cast<uint32_t>(inner < args.inner ? args.dim_size : 0);
    return {static_cast<int64_t>(outer), inner, dim_size};
  }

  // The columns' elements at index 0 of dim_size.
  template <class T>
  FUSEDOPS_DEVICE const T* begin(const ConstSlices& slices) const {
    return static_cast<const T*>(slices.data) + outer * slices.outer_stride + inner;
  }
  template <class T>
  FUSEDOPS_DEVICE T* begin(const Slices& slices) const {
    return static_cast<T*>(slices.data) + outer * slices.outer_stride + inner;
  }
};

// kWidth columns at several indices of dim_size, blockDim.y apart. All loads are issued before the
// first use.
template <class T, int kWidth>
struct SpatialTile {
  static constexpr int kVectors = kSpatialVectors<T>;
  Vec<T, kWidth> vectors[kVectors];

  FUSEDOPS_DEVICE static uint32_t index_of(uint32_t start, int i) {
    return start + i * blockDim.y + threadIdx.y;
  }

  FUSEDOPS_DEVICE void load(
      const T* begin, int64_t dim_stride, uint32_t start, uint32_t dim_size,
      AccumulatorOf<T> fill) {
    const T* from = begin + index_of(start, 0) * dim_stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i, from += blockDim.y * dim_stride) {
      vectors[i] =
          index_of(start, i) < dim_size ? Vec<T, kWidth>::load(from) : Vec<T, kWidth>::filled(fill);
    }
  }
};

// Reduces over the threads that share columns, in a tree; all of them get the result. `shared` has
// room for kWidth values of every thread of the block, and all of them call.
template <class Op, int kWidth, class Acc>
FUSEDOPS_DEVICE void column_reduce(Acc (&values)[kWidth], Acc* shared) {
  const int32_t dim_threads = blockDim.y, y = threadIdx.y;
  if (dim_threads == 1) return;
  Acc* const own = shared + (y * blockDim.x + threadIdx.x) * kWidth;
  store(own, values);
  for (int32_t half = dim_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y >= half) continue;
    const auto other = Vec<Acc, kWidth>::load_cached(own + half * blockDim.x * kWidth);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = Op::combine(values[j], other.at(j));
    store(own, values);
  }
  __syncthreads();
  const auto total = Vec<Acc, kWidth>::load_cached(shared + threadIdx.x * kWidth);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = total.at(j);
  __syncthreads();
}

template <class In, class Out, int kWidth>
FUSEDOPS_KERNEL((kSpatialMaxThreads<In, kWidth>))
spatial_softmax_forward(SpatialSoftmaxForward args, int64_t first_segment) {
  using Acc = AccumulatorOf<Out>;
  constexpr int32_t kSharedValues = kSpatialMaxThreads<In, kWidth> * kWidth;
  FUSEDOPS_SHARED(Acc, shared, kSharedValues);
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  constexpr int kVectors = kSpatialVectors<In>;
  const uint32_t step = blockDim.y * kVectors;
  const In* const input = columns.begin<In>(args.input);

  SpatialTile<In, kWidth> tile;
  Acc largest[kWidth], sums[kWidth] = {};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) largest[j] = -INFINITY;
  for (uint32_t start = 0; start < columns.dim_size; start += step) {
    tile.load(input, args.input.dim_stride, start, columns.dim_size, -INFINITY);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Acc larger = largest[j], exponentials[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        larger = device::maximum(larger, tile.vectors[i].at(j));
      }
      const Acc shift = finite_or_zero(larger);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        exponentials[i] = exponential<Out>(tile.vectors[i].at(j) - shift);
      }
      sums[j] = sums[j] * exponential<Out>(largest[j] - shift) + tree_sum<kVectors>(exponentials);
      largest[j] = larger;
    }
  }
  Acc own_largest[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) own_largest[j] = largest[j];
  column_reduce<Max>(largest, shared);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    sums[j] *= exponential<Out>(own_largest[j] - finite_or_zero(largest[j]));
  }
  column_reduce<Sum>(sums, shared);
  Acc last[kWidth];  // a factor or, for the logarithm, a summand
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    last[j] = args.log ? -device::log(sums[j]) : device::reciprocal(sums[j]);
  }

  Out* to = columns.begin<Out>(args.output) + threadIdx.y * args.output.dim_stride;
  for (uint32_t start = 0; start < columns.dim_size; start += step) {
    tile.load(input, args.input.dim_stride, start, columns.dim_size, 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc values[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc shifted = tile.vectors[i].at(j) - largest[j];
        values[j] = args.log ? shifted + last[j] : exponential<Out>(shifted) * last[j];
      }
      if (tile.index_of(start, i) < columns.dim_size) store(to, values);
      to += blockDim.y * args.output.dim_stride;
    }
  }
}

// Out is the type of grad_input, T that of grad_output and output.
template <class T, class Out, int kWidth>
FUSEDOPS_KERNEL((kSpatialMaxThreads<T, kWidth>))
spatial_softmax_backward(SpatialSoftmaxBackward args, int64_t first_segment) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<Out, T, kWidth>;
  constexpr int32_t kSharedValues = kSpatialMaxThreads<T, kWidth> * kWidth;
  FUSEDOPS_SHARED(Acc, shared, kSharedValues);
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  constexpr int kVectors = kSpatialVectors<T>;
  const uint32_t step = blockDim.y * kVectors;
  const T* const grad_output = columns.begin<T>(args.grad_output);
  const T* const output = columns.begin<T>(args.output);

  SpatialTile<T, kWidth> grads, outputs;
  Acc sums[kWidth] = {};
  for (uint32_t start = 0; start < columns.dim_size; start += step) {
    grads.load(grad_output, args.grad_output.dim_stride, start, columns.dim_size, 0);
    outputs.load(output, args.output.dim_stride, start, columns.dim_size, 0);
    Acc tile_sums[kWidth] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Gradient gradient(grads.vectors[i], outputs.vectors[i], args.log);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) tile_sums[j] += gradient.term(j);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[j] += tile_sums[j];
  }
  column_reduce<Sum>(sums, shared);

  Out* to = columns.begin<Out>(args.grad_input) + threadIdx.y * args.grad_input.dim_stride;
  for (uint32_t start = 0; start < columns.dim_size; start += step) {
    grads.load(grad_output, args.grad_output.dim_stride, start, columns.dim_size, 0);
    outputs.load(output, args.output.dim_stride, start, columns.dim_size, 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Gradient gradient(grads.vectors[i], outputs.vectors[i], args.log);
      Acc results[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) results[j] = gradient.result(j, sums[j]);
      if (grads.index_of(start, i) < columns.dim_size) store(to, results);
      to += blockDim.y * args.grad_input.dim_stride;
    }
  }
}

}  // namespace fusedops::cuda
