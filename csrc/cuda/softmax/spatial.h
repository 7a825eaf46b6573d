// Spatial softmax and log_softmax: over dim_size, for each outer and inner index, forward and
// backward.
//
// Contract: slices as in args.h; kWidth divides inner, and every run of inner elements is aligned
// for kWidth of them. A block has a segment of blockDim.x * kWidth neighbouring inner columns of
// one outer index, so that its loads are coalesced. blockDim.y threads, a power of two, share a
// column: thread y has the indices y, y + blockDim.y, ... of dim_size. kStaging says where elements
// stay between the two passes over them: in registers, where kSpatialVectors * blockDim.y >=
// dim_size; in dynamic shared memory, where each tensor has room for dim_size rounded up to a
// multiple of that; or nowhere, so that they are loaded again, usually from L2.
//
// Numerics: as in rows.h. The bits of a column depend on the dtypes, dim_size and blockDim.y
// alone.
#pragma once

#include "cuda/block/reduce.h"
#include "cuda/launch/plan.h"
#include "cuda/softmax/rows.h"

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

  // The address of this thread's first column, at index 0 of the softmax's dimension.
  template <class T>
  FUSEDOPS_DEVICE const T* begin(const ConstSlices& slices) const {
    return static_cast<const T*>(slices.data) + outer * slices.outer_stride + inner;
  }
  template <class T>
  FUSEDOPS_DEVICE T* begin(const Slices& slices) const {
    return static_cast<T*>(slices.data) + outer * slices.outer_stride + inner;
  }
};

// This thread's part of a strip: kWidth columns at every blockDim.y-th index of dim_size, a tile of
// kSpatialVectors of them at a time. The first pass calls load(), the second one load_again().
template <class T, int kWidth, int kStaging>
class SpatialStrip {
 public:
  static constexpr int kVectors = kSpatialVectors<T>;
  Vec<T, kWidth> vectors[kVectors];

  // `tensor` numbers the tensors of which the block keeps a strip.
  FUSEDOPS_DEVICE SpatialStrip(
      const T* begin, int64_t dim_stride, uint32_t dim_size, uint32_t tensor_dim_size, int tensor)
      : begin_(begin), dim_stride_(dim_stride), dim_size_(dim_size) {
    if constexpr (kStaging == kStagedInShared) {
      const uint32_t tiles = (tensor_dim_size + step() - 1) / step();
      kept_ = device::dynamic_shared<T>() +
          (tensor * tiles * kVectors * block_threads() + own_thread()) * kWidth;
    }
  }

  // The number of indices in a tile.
  FUSEDOPS_DEVICE static uint32_t step() { return blockDim.y * kVectors; }
  FUSEDOPS_DEVICE static uint32_t index_of(uint32_t start, int i) {
    return start + i * blockDim.y + threadIdx.y;
  }

  // All loads are issued before the first use. Elements beyond dim_size are `fill`.
  FUSEDOPS_DEVICE void load(uint32_t start, AccumulatorOf<T> fill) {
    load_global(start, fill);
    if constexpr (kStaging == kStagedInShared) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) vectors[i].store(kept(start, i));
    }
  }

  // Elements beyond dim_size are undefined.
  FUSEDOPS_DEVICE void load_again(uint32_t start) {
    if constexpr (kStaging == kStagedNowhere) load_global(start, 0);
    if constexpr (kStaging == kStagedInShared) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        vectors[i] = Vec<T, kWidth>::load_cached(kept(start, i));
      }
    }
  }

 private:
  FUSEDOPS_DEVICE static uint32_t block_threads() { return blockDim.x * blockDim.y; }
  FUSEDOPS_DEVICE static uint32_t own_thread() { return threadIdx.y * blockDim.x + threadIdx.x; }

  // Each thread reads what it wrote, so that no barrier is needed.
  FUSEDOPS_DEVICE T* kept(uint32_t start, int i) const {
    return kept_ + (start * blockDim.x + i * block_threads()) * kWidth;
  }

  FUSEDOPS_DEVICE void load_global(uint32_t start, AccumulatorOf<T> fill) {
    const T* from = begin_ + index_of(start, 0) * dim_stride_;
#pragma unroll
    for (int i = 0; i < kVectors; ++i, from += blockDim.y * dim_stride_) {
      vectors[i] = index_of(start, i) < dim_size_ ? Vec<T, kWidth>::load(from)
                                                  : Vec<T, kWidth>::filled(fill);
    }
  }

  const T* begin_;
  int64_t dim_stride_;
  uint32_t dim_size_;
  T* kept_ = nullptr;
};

// Reduces over the threads that share columns, in a tree; all of them get the result. `shared` has
// room for kWidth values of every thread of the block; all threads of the block call.
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

template <class In, class Out, int kWidth, int kStaging>
FUSEDOPS_KERNEL((kSpatialMaxThreads<In, kWidth>))
spatial_softmax_forward(SpatialSoftmaxForward args, int64_t first_segment) {
  using Acc = AccumulatorOf<Out>;
  constexpr int32_t kSharedValues = kSpatialMaxThreads<In, kWidth> * kWidth;
  FUSEDOPS_SHARED(Acc, shared, kSharedValues);
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  constexpr int kVectors = kSpatialVectors<In>;
  SpatialStrip<In, kWidth, kStaging> strip(
      columns.begin<In>(args.input), args.input.dim_stride, columns.dim_size, args.dim_size, 0);
  Acc largest[kWidth], sums[kWidth] = {};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) largest[j] = -INFINITY;
  for (uint32_t start = 0; start < columns.dim_size; start += strip.step()) {
    strip.load(start, -INFINITY);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Acc new_max = largest[j], exponentials[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        new_max = device::maximum(new_max, strip.vectors[i].at(j));
      }
      const Acc shift = finite_or_zero(new_max);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        exponentials[i] = exponential<Out>(strip.vectors[i].at(j) - shift);
      }
      sums[j] = sums[j] * exponential<Out>(largest[j] - shift) + tree_sum<kVectors>(exponentials);
      largest[j] = new_max;
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
  for (uint32_t start = 0; start < columns.dim_size; start += strip.step()) {
    strip.load_again(start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc values[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc shifted = strip.vectors[i].at(j) - largest[j];
        values[j] = args.log ? shifted + last[j] : exponential<Out>(shifted) * last[j];
      }
      if (strip.index_of(start, i) < columns.dim_size) store(to, values);
      to += blockDim.y * args.output.dim_stride;
    }
  }
}

// Out is the type of grad_input, T that of grad_output and output.
template <class T, class Out, int kWidth, int kStaging>
FUSEDOPS_KERNEL((kSpatialMaxThreads<T, kWidth>))
spatial_softmax_backward(SpatialSoftmaxBackward args, int64_t first_segment) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<Out, T, kWidth>;
  constexpr int32_t kSharedValues = kSpatialMaxThreads<T, kWidth> * kWidth;
  FUSEDOPS_SHARED(Acc, shared, kSharedValues);
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  constexpr int kVectors = kSpatialVectors<T>;
  using Strip = SpatialStrip<T, kWidth, kStaging>;
  Strip grads(
      columns.begin<T>(args.grad_output), args.grad_output.dim_stride, columns.dim_size,
      args.dim_size, 0);
  Strip outputs(
      columns.begin<T>(args.output), args.output.dim_stride, columns.dim_size, args.dim_size, 1);
  Acc sums[kWidth] = {};
  for (uint32_t start = 0; start < columns.dim_size; start += Strip::step()) {
    grads.load(start, 0);
    outputs.load(start, 0);
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
  for (uint32_t start = 0; start < columns.dim_size; start += Strip::step()) {
    grads.load_again(start);
    outputs.load_again(start);
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
