// Computes softmax and log_softmax along rows, and their gradients.
//
// Contract: rows are as in args.h; kWidth divides cols and every row is aligned for kWidth
// elements. In kernels *_registers the row stays in registers, blockDim.x * kVectors * kWidth >=
// cols; blockDim.x threads share a row, and a block has blockDim.y rows. In *_cluster the threads
// of all blocks of a cluster share a row. *_partials and *_apply take any cols, cut into segments
// (segments.h); together they read the row twice. Workspace: [rows][segments] partials, which are a
// segment's maximum and its sum of exponentials, or in the backward pass a sum alone.
//
// Numerics: results are computed in float (double for double) and rounded once. The maximum is
// subtracted before anything is multiplied by log2(e), so that a row of finfo.min does not
// overflow. A row with NaN or +inf, or of nothing but -inf, becomes NaN as a whole; -inf beside
// finite values becomes 0, or -inf for the logarithm.
//
// The logarithm is a run-time option, which costs one select an element and saves half the kernels.
#pragma once

#include "cuda/block/cluster.h"
#include "cuda/block/reduce.h"
#include "cuda/block/segments.h"
#include "cuda/block/tile.h"
#include "cuda/launch/plan.h"

namespace fusedops::cuda {

// Returns e^x to the precision of `Out`. Floats get expf (1 ulp). For 16 bits one ex2 is enough:
// its error, at most 2^-17 of values above 1e-30, is far below half an ulp of the output.
template <class Out, class Acc>
FUSEDOPS_DEVICE Acc exponential(Acc x) {
  constexpr float kLog2E = 1.44269504f;
  if constexpr (sizeof(Out) == 2) {
    return device::fast_exp2(x * kLog2E);
  } else {
    return device::exp(x);
  }
}

// Returns e^x to the precision of T or of `dtype`, the dtype of the results, whichever is wider.
template <class T, class Acc>
FUSEDOPS_DEVICE Acc exponential_for(DType dtype, Acc x) {
  return with_wider<T>(dtype, [&](auto type) { return exponential<decltype(type)>(x); });
}

// Returns the maximum to subtract from values: 0 if all of them are -inf, so that their
// exponentials are 0, not NaN.
template <class Acc>
FUSEDOPS_DEVICE Acc finite_or_zero(Acc max) {
  return max == -INFINITY ? Acc(0) : max;
}

// The last step of a row is value * scale + offset. Both numbers follow from the row's sum.
template <class Acc>
struct Affine {
  Acc scale, offset;

  FUSEDOPS_DEVICE Affine(bool log, Acc sum)
      : scale(log ? Acc(1) : device::reciprocal(sum)), offset(log ? -device::log(sum) : Acc(0)) {}
};

// Stores `values`, exponentials or, for the logarithm, x - max, after the last step (Affine).
template <class Out, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_normalised(Out* to, const Acc (&values)[kWidth], Affine<Acc> affine) {
  Acc result[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) result[j] = values[j] * affine.scale + affine.offset;
  store(to, result);
}

// Sets `values` to the exponentials of a tile or, for the logarithm, to x - largest, and returns
// the sum of the exponentials.
template <class Out, class In, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE Acc exponentiate(
    Acc (&values)[kVectors][kWidth], const Tile<In, kWidth, kVectors>& tile, Acc largest,
    bool log) {
  Acc sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Acc exponentials[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Acc shifted = tile.at(i, j) - largest;
      exponentials[j] = exponential<Out>(shifted);
      values[i][j] = log ? shifted : exponentials[j];
    }
    sums[i] = tree_sum<kWidth>(exponentials);
  }
  return tree_sum<kVectors>(sums);
}

// Computes the softmax of this thread's row, which stays in registers. A row past the last one has
// no columns.
template <class RowScope, class In, int kWidth, int kVectors>
FUSEDOPS_DEVICE void softmax_row(const SoftmaxForward& args, int64_t row) {
  using Acc = AccumulatorOf<In>;
  constexpr int kThreads = RowScope::kThreads;
  RowScope scope;
  const ColumnRange own = scope.template own_columns<kWidth * kVectors>(
      row < args.rows ? static_cast<int32_t>(args.cols) : 0);

  Tile<In, kWidth, kVectors> tile;
  tile.template load<kThreads>(row_of<In>(args.input, row) + own.start, own.cols, -INFINITY);
  scope.join();

  const Acc largest = scope.template reduce<Max>(tile.max());
  Acc values[kVectors][kWidth], own_sum;
  with_wider<In>(args.output.dtype, [&](auto type) {
    own_sum = exponentiate<decltype(type)>(values, tile, largest, args.log);
  });
  const Affine<Acc> affine(args.log, scope.template reduce<Sum>(own_sum));

  with_wider<In>(args.output.dtype, [&](auto type) {
    using Out = decltype(type);
    store_by<kWidth, kVectors, kThreads>(
        row_of<Out>(args.output, row) + own.start, own.cols,
        [&](int i, int32_t, Out* to) { store_normalised(to, values[i], affine); });
  });
}

template <class In, int kWidth, int kVectors, int kThreads = 0>
FUSEDOPS_KERNEL((kSoftmaxThreads<In, kWidth, kWidth * kVectors, kThreads>))
softmax_forward_registers(SoftmaxForward args, int64_t first_row) {
  assume_row_threads<kThreads>();
  softmax_row<RowInBlock<kThreads>, In, kWidth, kVectors>(args, launch_row(first_row));
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kSoftmaxThreads<T, kWidth, kWidth * kVectors>))
softmax_stack_registers(SoftmaxStack stack) {
  const StackBlock at(stack.count);
  softmax_row<OneBlock, T, kWidth, kVectors>(stack[at.tensor], at.row());
}

template <class In, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kClusterThreads<In, kWidth, kWidth * kVectors>))
softmax_forward_cluster(SoftmaxForward args, int64_t first_row) {
  softmax_row<ClusterOf<In, kWidth>, In, kWidth, kVectors>(args, cluster_row(first_row));
}

// Holds the maximum of some values and the sum of their exponentials, e^(x - max). The sum is 0 as
// long as all values are -inf, and finite values can be added later.
template <class Acc>
struct RunningSoftmax {
  Acc largest = -INFINITY, sum = 0;

  // Moves the sum to another maximum, which is not smaller, with the precision of `Out`.
  template <class Out = Acc>
  FUSEDOPS_DEVICE void move_to(Acc other) {
    sum *= exponential<Out>(largest - finite_or_zero(other));
    largest = other;
  }
};

// Leaves the maximum and the sum of exponentials of a segment in the workspace.
template <class In, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<In>)
softmax_forward_partials(SoftmaxForward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<In>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/1>;
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, blockIdx.x);
  const In* const input = row_of<In>(args.input, segment.row) + segment.start;

  Tile<In, kWidth, kVectors> tile;
  RunningSoftmax<Acc> own;
  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    tile.load(input + start, segment.cols - start, -INFINITY);
    Acc exponentials[kVectors][kWidth];
    with_wider<In>(args.output.dtype, [&](auto type) {
      using Out = decltype(type);
      own.template move_to<Out>(device::maximum(own.largest, tile.max()));
      own.sum += exponentiate<Out>(exponentials, tile, finite_or_zero(own.largest), /*log=*/false);
    });
  }
  const Acc largest = row_reduce<Max>(own.largest, shared_max);
  own.move_to(largest);
  const Acc sum = row_reduce<Sum>(own.sum, shared_sums);
  save_partial(args.workspace, segments, segment, Pair<Acc>{largest, sum});
}

// Returns a row's maximum and sum, merged from those of its segments. All blocks of the row add in
// the same order, and so get the same bits.
template <class Acc>
FUSEDOPS_DEVICE Pair<Acc> merged_softmax(
    const Pair<Acc>* partials, int32_t count, Acc* shared_max, Acc* shared_sums) {
  Acc largest = -INFINITY, sum = 0;
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) {
    largest = device::maximum(largest, partials[i].first);
  }
  largest = row_reduce<Max>(largest, shared_max);
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) {
    RunningSoftmax<Acc> partial{partials[i].first, partials[i].second};
    partial.move_to(largest);
    sum += partial.sum;
  }
  return {largest, row_reduce<Sum>(sum, shared_sums)};
}

// Stores the softmax of a tile, of which `cols` columns are inside the row, from `to` on.
template <class Out, class In, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void store_softmax(
    Out* to, int32_t cols, const Tile<In, kWidth, kVectors>& tile, Acc largest, Affine<Acc> affine,
    bool log) {
  store_by<kWidth, kVectors>(to, cols, [&](int i, int32_t, Out* at) {
    Acc values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Acc shifted = tile.at(i, j) - largest;
      values[j] = log ? shifted : exponential<Out>(shifted);
    }
    store_normalised(at, values, affine);
  });
}

// Holds the maxima and sums of rows, from SoftmaxStatistics. They are null if the kernel merges the
// partials of segments instead.
struct RowStatistics {
  const void *max, *sum;
};

// Stores the softmax of a segment. Its first tile is loaded while the partials are merged.
template <class In, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<In>)
softmax_forward_apply(
    SoftmaxForward args, int64_t first_row, Segments segments, RowStatistics statistics) {
  using Acc = AccumulatorOf<In>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/1>;
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, backwards(blockIdx.x));
  const In* const input = row_of<In>(args.input, segment.row) + segment.start;

  Tile<In, kWidth, kVectors> tile;
  tile.load(input, segment.cols, -INFINITY);
  Pair<Acc> merged;  // the maximum and the sum
  if (statistics.max != nullptr) {
    merged.first = finite_or_zero(static_cast<const Acc*>(statistics.max)[segment.row]);
    merged.second = static_cast<const Acc*>(statistics.sum)[segment.row];
  } else {
    const auto* const partials = partials_of<Pair<Acc>>(args.workspace, segments, segment.row);
    merged = merged_softmax(partials, segments.count, shared_max, shared_sums);
  }
  const Affine<Acc> affine(args.log, merged.second);

  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    const int32_t left = segment.cols - start;
    if (start > 0) tile.load(input + start, left, -INFINITY);
    with_wider<In>(args.output.dtype, [&](auto type) {
      auto* const to = row_of<decltype(type)>(args.output, segment.row) + segment.start + start;
      store_softmax(to, left, tile, merged.first, affine, args.log);
    });
  }
}

// Computes the gradient of one vector. `probability` is the output or, for the logarithm, its
// exponential.
template <class T, int kWidth>
struct SoftmaxGradient {
  using Acc = AccumulatorOf<T>;
  Acc grad[kWidth], probability[kWidth];
  bool log;

  FUSEDOPS_DEVICE SoftmaxGradient(
      const Vec<T, kWidth>& grad_output, const Vec<T, kWidth>& output, bool log)
      : log(log) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      grad[j] = grad_output.at(j);
      const Acc value = output.at(j);
      probability[j] = log ? exponential<T>(value) : value;
    }
  }

  // Returns the summand of element j in the sum of its row.
  FUSEDOPS_DEVICE Acc term(int j) const { return grad[j] * (log ? Acc(1) : probability[j]); }

  FUSEDOPS_DEVICE Acc sum() const {
    Acc sum = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum += term(j);
    return sum;
  }

  // Returns the gradient of element j of the input; `sum` is that of the whole row's terms.
  FUSEDOPS_DEVICE Acc result(int j, Acc sum) const {
    return log ? grad[j] - probability[j] * sum : probability[j] * (grad[j] - sum);
  }

  template <class Out>
  FUSEDOPS_DEVICE void store_to(Out* to, Acc sum) const {
    Acc results[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) results[j] = result(j, sum);
    store(to, results);
  }
};

// Computes the gradient of this thread's row, which stays in registers. T is the type of
// grad_output and output.
template <class RowScope, class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE void softmax_gradient_row(const SoftmaxBackward& args, int64_t row) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<T, kWidth>;
  constexpr int kThreads = RowScope::kThreads;
  RowScope scope;
  const ColumnRange own = scope.template own_columns<kWidth * kVectors>(
      row < args.rows ? static_cast<int32_t>(args.cols) : 0);

  Tile<T, kWidth, kVectors> grads, outputs;
  grads.template load<kThreads>(row_of<T>(args.grad_output, row) + own.start, own.cols, 0);
  outputs.template load<kThreads>(row_of<T>(args.output, row) + own.start, own.cols, 0);
  scope.join();

  Acc sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sums[i] = Gradient(grads.vectors[i], outputs.vectors[i], args.log).sum();
  }
  const Acc sum = scope.template reduce<Sum>(tree_sum<kVectors>(sums));

  with_narrower<T>(args.grad_input.dtype, [&](auto type) {
    using Out = decltype(type);
    store_by<kWidth, kVectors, kThreads>(
        row_of<Out>(args.grad_input, row) + own.start, own.cols, [&](int i, int32_t, Out* to) {
          Gradient(grads.vectors[i], outputs.vectors[i], args.log).store_to(to, sum);
        });
  });
}

template <class T, int kWidth, int kVectors, int kThreads = 0>
FUSEDOPS_KERNEL((kSoftmaxBackwardThreads<T, kWidth, kThreads>), (kLeastBlocks<T, kWidth>))
softmax_backward_registers(SoftmaxBackward args, int64_t first_row) {
  assume_row_threads<kThreads>();
  softmax_gradient_row<RowInBlock<kThreads>, T, kWidth, kVectors>(args, launch_row(first_row));
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL(kMaxThreads)
softmax_backward_cluster(SoftmaxBackward args, int64_t first_row) {
  softmax_gradient_row<ClusterOf<T, kWidth>, T, kWidth, kVectors>(args, cluster_row(first_row));
}

// Leaves the sum of a segment's terms (SoftmaxGradient::term) in the workspace.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
softmax_backward_partials(SoftmaxBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<T, kWidth>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/2>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, blockIdx.x);
  const T* const grad_output = row_of<T>(args.grad_output, segment.row) + segment.start;
  const T* const output = row_of<T>(args.output, segment.row) + segment.start;

  Tile<T, kWidth, kVectors> grads, outputs;
  Acc sum = 0;
  for (int32_t start = 0; start < segment.cols; start += grads.step()) {
    grads.load(grad_output + start, segment.cols - start, 0);
    outputs.load(output + start, segment.cols - start, 0);
    Acc sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = Gradient(grads.vectors[i], outputs.vectors[i], args.log).sum();
    }
    sum += tree_sum<kVectors>(sums);
  }
  save_partial(args.workspace, segments, segment, row_reduce<Sum>(sum, shared_sums));
}

// Stores the gradients of a segment. Its first tiles are loaded while the partials are added.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
softmax_backward_apply(SoftmaxBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  using Gradient = SoftmaxGradient<T, kWidth>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/2>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, backwards(blockIdx.x));
  const T* const grad_output = row_of<T>(args.grad_output, segment.row) + segment.start;
  const T* const output = row_of<T>(args.output, segment.row) + segment.start;

  Tile<T, kWidth, kVectors> grads, outputs;
  grads.load(grad_output, segment.cols, 0);
  outputs.load(output, segment.cols, 0);
  const auto* const partials = partials_of<Acc>(args.workspace, segments, segment.row);
  const Acc sum = row_reduce<Sum>(sum_of(partials, segments.count), shared_sums);

  for (int32_t start = 0; start < segment.cols; start += grads.step()) {
    const int32_t left = segment.cols - start;
    if (start > 0) {
      grads.load(grad_output + start, left, 0);
      outputs.load(output + start, left, 0);
    }
    with_narrower<T>(args.grad_input.dtype, [&](auto type) {
      using Out = decltype(type);
      store_by<kWidth, kVectors>(
          row_of<Out>(args.grad_input, segment.row) + segment.start + start, left,
          [&](int i, int32_t, Out* to) {
            Gradient(grads.vectors[i], outputs.vectors[i], args.log).store_to(to, sum);
          });
    });
  }
}

}  // namespace fusedops::cuda
