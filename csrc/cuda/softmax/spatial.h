// Computes spatial softmax and log_softmax, which are over dim_size for each outer and inner index,
// and their gradients.
//
// Contract: slices are as in args.h; kWidth divides inner, and every run of inner elements is
// aligned for kWidth of them. A block has a segment of blockDim.x * kWidth neighbouring inner
// columns of one outer index, so that its loads are coalesced. blockDim.y threads, a power of two,
// share a column: thread y has the indices y, y + blockDim.y, ... of dim_size. Where are the
// elements between the two passes over them? If a tile of kSpatialVectors * blockDim.y indices
// holds dim_size, they stay in registers. If a launch is `staged`, they are in dynamic shared
// memory, which has room for dim_size rounded up to whole tiles, for each tensor. Otherwise they
// are loaded again, usually from L2.
//
// Numerics: as in rows.h. The bits of a column depend on the dtypes, dim_size and blockDim.y alone.
#pragma once

#include "cuda/block/reduce.h"
#include "cuda/launch/plan.h"
#include "cuda/softmax/rows.h"

namespace fusedops::cuda {

// Says which inner columns this thread has, kWidth from `inner` on, in a launch with one segment a
// block. dim_size is 0 for a thread beyond the last column.
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

  // Returns the address of this thread's first column, at index 0 of the softmax's dimension.
  template <class T>
  FUSEDOPS_DEVICE const T* begin(const ConstSlices& slices) const {
    return static_cast<const T*>(slices.data) + outer * slices.outer_stride + inner;
  }
  template <class T>
  FUSEDOPS_DEVICE T* begin(const Slices& slices) const {
    return static_cast<T*>(slices.data) + outer * slices.outer_stride + inner;
  }
};

// Loads this thread's part of a strip, which is what the block reads of one tensor: kWidth columns
// at every blockDim.y-th index of dim_size, in tiles of kSpatialVectors indices. The first pass
// calls load(), the second one load_again().
template <class T, int kWidth>
class SpatialStrip {
 public:
  static constexpr int kVectors = kSpatialVectors<T>;
  Vec<T, kWidth> vectors[kVectors];

  // `dim_size` is the same for all threads, including threads beyond the last column. `tensor` is
  // the number of this tensor among those of which the block has a strip. `staged` says whether
  // strips are kept in shared memory; strips of doubles never are.
  FUSEDOPS_DEVICE SpatialStrip(
      InnerColumns columns, ConstSlices slices, uint32_t dim_size, int tensor, bool staged)
      : begin_(columns.begin<T>(slices)),
        dim_stride_(slices.dim_stride),
        dim_size_(columns.dim_size),
        is_one_tile_(dim_size <= step()) {
    if (sizeof(T) == 8 || !staged) return;
    const uint32_t tiles = (dim_size + step() - 1) / step();
    staged_ = device::dynamic_shared<T>() +
        (tensor * tiles * kVectors * block_threads() + own_thread()) * kWidth;
  }

  // Returns the number of indices in a tile of the block.
  FUSEDOPS_DEVICE static uint32_t step() { return blockDim.y * kVectors; }
  // Returns the index in dim_size of this thread's vector i in the tile from `start` on.
  FUSEDOPS_DEVICE static uint32_t index_of(uint32_t start, int i) {
    return start + i * blockDim.y + threadIdx.y;
  }

  // Loads a tile for the first pass, and copies it to shared memory if the strip is staged there.
  // All loads are issued before the first use. Elements beyond dim_size become `fill`.
  FUSEDOPS_DEVICE void load(uint32_t start, AccumulatorOf<T> fill) {
    load_global(start, fill);
    if (staged_ == nullptr) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i].store_plain(place(start, i));
  }

  // Loads a tile for the second pass, unless it is the only one of the strip, and so still in
  // registers. Elements beyond dim_size are undefined. Doubles are loaded again even then: kept in
  // registers beside the exponentials, they would spill.
  FUSEDOPS_DEVICE void load_again(uint32_t start) {
    if (sizeof(T) < 8 && is_one_tile_) return;
    if (staged_ == nullptr) return load_global(start, /*fill=*/0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = Vec<T, kWidth>::load_cached(place(start, i));
  }

 private:
  FUSEDOPS_DEVICE static uint32_t block_threads() { return blockDim.x * blockDim.y; }
  FUSEDOPS_DEVICE static uint32_t own_thread() { return threadIdx.y * blockDim.x + threadIdx.x; }

  // Returns the place in shared memory of vector i of the tile from `start` on. Each thread reads
  // only what it wrote, so that no barrier is needed.
  FUSEDOPS_DEVICE T* place(uint32_t start, int i) const {
    return staged_ + (start * blockDim.x + i * block_threads()) * kWidth;
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
  bool is_one_tile_;
  T* staged_ = nullptr;  // in shared memory; null if the strip is not staged
};

// Reduces over the threads that share columns, in a tree, and gives all of them the result.
// `shared` has room for kWidth values of every thread of the block. All threads of the block must
// call it.
template <class Op, int kWidth, class Acc>
FUSEDOPS_DEVICE void column_reduce(Acc (&values)[kWidth], Acc* shared) {
  const int32_t dim_threads = blockDim.y, y = threadIdx.y;
  if (dim_threads == 1) return;
  Acc* const own = shared + (y * blockDim.x + threadIdx.x) * kWidth;
  store_plain(own, values);
  for (int32_t half = dim_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y >= half) continue;
    const auto other = Vec<Acc, kWidth>::load_cached(own + half * blockDim.x * kWidth);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = Op::combine(values[j], other.at(j));
    store_plain(own, values);
  }
  __syncthreads();
  const auto total = Vec<Acc, kWidth>::load_cached(shared + threadIdx.x * kWidth);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = total.at(j);
  __syncthreads();
}

// Adds the loaded tile to the running softmax of each column.
template <class Out, class Strip, int kWidth, class Acc>
FUSEDOPS_DEVICE void add_tile(RunningSoftmax<Acc> (&columns)[kWidth], const Strip& strip) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    Acc largest = columns[j].largest, exponentials[Strip::kVectors];
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i) {
      largest = device::maximum(largest, strip.vectors[i].at(j));
    }
    columns[j].template move_to<Out>(largest);
    const Acc shift = finite_or_zero(largest);
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i) {
      exponentials[i] = exponential<Out>(strip.vectors[i].at(j) - shift);
    }
    columns[j].sum += tree_sum<Strip::kVectors>(exponentials);
  }
}

// Stores the softmax of the loaded tile; `to` is the first element of the columns. `last` is the
// factor of the exponentials or, for the logarithm, what is added to x - max.
template <class Out, class Strip, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_tile(
    Out* to, int64_t dim_stride, const Strip& strip, uint32_t start, uint32_t dim_size, bool log,
    const RunningSoftmax<Acc> (&columns)[kWidth], const Acc (&last)[kWidth]) {
  to += Strip::index_of(start, 0) * dim_stride;
#pragma unroll
  for (int i = 0; i < Strip::kVectors; ++i, to += blockDim.y * dim_stride) {
    Acc values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Acc shifted = strip.vectors[i].at(j) - columns[j].largest;
      values[j] = log ? shifted + last[j] : exponential<Out>(shifted) * last[j];
    }
    if (Strip::index_of(start, i) < dim_size) store(to, values);
  }
}

// Computes the softmax of a block's columns: the first pass over their elements finds each column's
// maximum and sum, and the second stores the results.
template <class In, int kWidth>
FUSEDOPS_KERNEL((kSpatialMaxThreads<In, kWidth>))
spatial_softmax_forward(SpatialSoftmaxForward args, int64_t first_segment, bool staged) {
  using Acc = AccumulatorOf<In>;
  FUSEDOPS_SHARED(Acc, shared, (kSpatialMaxThreads<In, kWidth> * kWidth));
  const InnerColumns at = InnerColumns::of<kWidth>(args, first_segment);
  SpatialStrip<In, kWidth> strip(at, args.input, args.dim_size, /*tensor=*/0, staged);
  RunningSoftmax<Acc> columns[kWidth];
  for (uint32_t start = 0; start < at.dim_size; start += strip.step()) {
    strip.load(start, -INFINITY);
    with_wider<In>(args.output.dtype, [&](auto type) { add_tile<decltype(type)>(columns, strip); });
  }
  Acc largest[kWidth], sums[kWidth], last[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) largest[j] = columns[j].largest;
  column_reduce<Max>(largest, shared);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    columns[j].move_to(largest[j]);
    sums[j] = columns[j].sum;
  }
  column_reduce<Sum>(sums, shared);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    last[j] = args.log ? -device::log(sums[j]) : device::reciprocal(sums[j]);
  }

  for (uint32_t start = 0; start < at.dim_size; start += strip.step()) {
    strip.load_again(start);
    with_wider<In>(args.output.dtype, [&](auto type) {
      store_tile(
          at.begin<decltype(type)>(args.output), args.output.dim_stride, strip, start, at.dim_size,
          args.log, columns, last);
    });
  }
}

// Computes the gradients of a block's columns: the first pass adds up each column's terms
// (SoftmaxGradient::term), and the second stores the results. T is the type of grad_output and
// output.
template <class T, int kWidth>
FUSEDOPS_KERNEL((kSpatialMaxThreads<T, kWidth>))
spatial_softmax_backward(SpatialSoftmaxBackward args, int64_t first_segment, bool staged) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<T, kWidth>;
  FUSEDOPS_SHARED(Acc, shared, (kSpatialMaxThreads<T, kWidth> * kWidth));
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  using Strip = SpatialStrip<T, kWidth>;
  Strip grads(columns, args.grad_output, args.dim_size, /*tensor=*/0, staged);
  Strip outputs(columns, args.output, args.dim_size, /*tensor=*/1, staged);
  Acc sums[kWidth] = {};
  for (uint32_t start = 0; start < columns.dim_size; start += Strip::step()) {
    grads.load(start, 0);
    outputs.load(start, 0);
    Acc tile_sums[kWidth] = {};
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i) {
      const Gradient gradient(grads.vectors[i], outputs.vectors[i], args.log);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) tile_sums[j] += gradient.term(j);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[j] += tile_sums[j];
  }
  column_reduce<Sum>(sums, shared);

  for (uint32_t start = 0; start < columns.dim_size; start += Strip::step()) {
    grads.load_again(start);
    outputs.load_again(start);
    with_narrower<T>(args.grad_input.dtype, [&](auto type) {
      const int64_t dim_stride = args.grad_input.dim_stride;
      auto* to =
          columns.begin<decltype(type)>(args.grad_input) + Strip::index_of(start, 0) * dim_stride;
#pragma unroll
      for (int i = 0; i < Strip::kVectors; ++i, to += blockDim.y * dim_stride) {
        const Gradient gradient(grads.vectors[i], outputs.vectors[i], args.log);
        Acc results[kWidth];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) results[j] = gradient.result(j, sums[j]);
        if (Strip::index_of(start, i) < columns.dim_size) store(to, results);
      }
    });
  }
}

}  // namespace fusedops::cuda
