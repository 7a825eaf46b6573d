// Computes masked_softmax with dropout along rows, and its gradient.
//
// Contract: as in softmax/rows.h; operands are as in args.h, and aligned for kWidth elements too.
// In kernels *_looped, for any cols, a block has a row and reads it twice.
//
// Numerics: results are computed in float (double for double) and rounded once. Vectors outside of
// the row's interval are not read: their score is mask_value, whose exponential is added to the sum
// once for each of their columns. NaN and infinities are handled as in softmax/rows.h, so that the
// results are those of masked_fill and softmax.
//
// Kernels are compiled for scores (scores.h) of no, one or all terms. Only kernels for all terms
// take sinks and intervals that begin after column 0: a row's tile then begins at the row's first
// vector with a visible column, so that the vectors that a thread holds (ScoreTile) come before
// those that it skips, as with causality. Dropout, and whether probabilities are wanted, are
// run-time options: each costs a branch, and compiled in they would make four times as many
// kernels.
#pragma once

#include "cuda/block/cluster.h"
#include "cuda/block/philox.h"
#include "cuda/block/reduce.h"
#include "cuda/launch/plan.h"
#include "cuda/masked_softmax/scores.h"
#include "cuda/softmax/rows.h"

namespace fusedops::cuda {

using ForwardArgs = WithDivisors<MaskedSoftmaxForward>;
using BackwardArgs = WithDivisors<MaskedSoftmaxBackward>;

// Holds the numbers that turn the scores of a row into exponentials. A row whose results are zeros
// (`zero`) needs no exponentials: all of its columns get `hidden`, which is 0.
template <int kTerms, class In>
struct MaskedExponentials {
  using Acc = AccumulatorOf<In>;
  Acc largest;           // the largest score of the row, with sink and hidden columns
  Acc hidden = 0;        // the exponential of a column in a skipped vector
  Acc sink = -INFINITY;  // the score of the sink
  int32_t skipped;       // the number of columns in skipped vectors
  DType results;
  bool zero;

  // `visible_largest` is the largest score in the vectors that threads hold, without the sink.
  FUSEDOPS_DEVICE MaskedExponentials(
      const MaskedSoftmaxForward& args, const ScoreRow& row, int32_t skipped_cols,
      Acc visible_largest, bool is_zero)
      : largest(visible_largest), skipped(skipped_cols), results(args.output.dtype), zero(is_zero) {
    if constexpr (kHasAll<kTerms>) {
      if (args.scores.sinks.data != nullptr && row.cols > 0 && !zero) {
        sink = static_cast<const Acc*>(args.scores.sinks.data)[row.sinks];
        largest = device::maximum(largest, sink);
      }
    }
    if (skipped == 0 || zero) return;
    const auto mask_value = static_cast<Acc>(args.scores.mask_value);
    largest = device::maximum(largest, mask_value);
    hidden = exponential_for<In>(results, mask_value - largest);
  }

  FUSEDOPS_DEVICE Acc exponential_of_sink() const {
    return sink == -INFINITY ? Acc(0) : exponential_for<In>(results, sink - largest);
  }
};

// Holds the numbers that turn exponentials into probabilities, from the sum of the row.
template <class Acc>
struct Normaliser {
  Acc scale;
  Acc hidden;    // the probability of a column in a skipped vector
  Acc sink = 1;  // the probability of the sink; 1 where the row is zeros

  template <int kTerms, class In>
  FUSEDOPS_DEVICE Normaliser(const MaskedExponentials<kTerms, In>& exponentials, Acc held_sum) {
    Acc sum = held_sum + static_cast<Acc>(exponentials.skipped) * exponentials.hidden;
    if constexpr (kHasAll<kTerms>) {
      sink = exponentials.exponential_of_sink();
      sum += sink;
    }
    scale = exponentials.zero ? Acc(0) : device::reciprocal(sum);
    hidden = exponentials.hidden * scale;
    if constexpr (kHasAll<kTerms>) sink = exponentials.zero ? Acc(1) : sink * scale;
  }
};

// These functors store a vector `offset` columns after the thread's first column. StoreVector
// stores the values that it is called with, and StoreSame always the same vector. StoreDropped
// first applies dropout, to the values that it is called with or, if there are none, to `hidden` in
// every column. The compiler might not inline lambdas, and would then keep their arrays on a stack.
template <class Out>
struct StoreVector {
  Out* to;

  template <int kWidth, class Acc>
  FUSEDOPS_DEVICE void operator()(int32_t offset, const Acc (&result)[kWidth]) const {
    store(moved_by(to, offset), result);
  }
};

template <class Out, int kWidth>
struct StoreSame {
  Out* to;
  Vec<Out, kWidth> vector;

  FUSEDOPS_DEVICE void operator()(int32_t offset) const { vector.store(moved_by(to, offset)); }
};

template <class Out, int kWidth>
struct StoreDropped {
  using Acc = AccumulatorOf<Out>;
  Out* to;
  int32_t first;  // the thread's first column
  Acc hidden;
  DropoutRow<Acc> dropout;

  FUSEDOPS_DEVICE void operator()(int32_t offset, Acc (&result)[kWidth]) const {
    dropout.apply(result, first + offset);
    store(moved_by(to, offset), result);
  }

  FUSEDOPS_DEVICE void operator()(int32_t offset) const {
    Acc result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) result[j] = hidden;
    (*this)(offset, result);
  }
};

// Stores this thread's vectors in the next `cols` columns of a row, both those that the tile holds
// and those that it skips. `to` is the address of the thread's first column.
template <class Out, int kWidth, class ScoreTile, class Acc>
FUSEDOPS_DEVICE void store_tile(
    Out* to, int32_t cols, const ScoreTile& tile, const Normaliser<Acc>& normaliser) {
  tile.for_each_held(normaliser.scale, StoreVector<Out>{to});
  const auto hidden = Vec<Out, kWidth>::filled(normaliser.hidden);
  tile.for_each_skipped(cols, StoreSame<Out, kWidth>{to, hidden});
}

// Stores what store_tile() stores, after dropout. Dropout is not computed where skipped columns are
// zeros, as they usually are, because it leaves zeros as they are.
template <class Out, int kWidth, class ScoreTile, class Acc>
FUSEDOPS_DEVICE void store_dropped(
    Out* to, int32_t first, int32_t cols, const ScoreTile& tile, const Normaliser<Acc>& normaliser,
    const DropoutRow<Acc>& dropout) {
  const StoreDropped<Out, kWidth> drop = {to, first, normaliser.hidden, dropout};
  tile.for_each_held(normaliser.scale, drop);
  if (normaliser.hidden != 0) {
    tile.for_each_skipped_in_loop(cols, drop);
  } else {
    tile.for_each_skipped(cols, StoreSame<Out, kWidth>{to, Vec<Out, kWidth>::filled(0)});
  }
}

// Stores the columns of a row from `start` on, as far as `tile` reaches, in the output and, if they
// are wanted, in the probabilities. Each combination of options has loops of its own; all threads
// take the same ones.
template <class Out, int kWidth, class ScoreTile, class Acc>
FUSEDOPS_DEVICE void store_row(
    const MaskedSoftmaxForward& args, const ScoreRow& row, int64_t start, const ScoreTile& tile,
    const Normaliser<Acc>& normaliser) {
  const auto cols = static_cast<int32_t>(row.cols - start);
  const int64_t first = start + column_of<kWidth>(0);
  if (args.probabilities.data != nullptr) {
    Out* const to = row_of<Out>(args.probabilities, row.index) + first;
    store_tile<Out, kWidth>(to, cols, tile, normaliser);
  }
  Out* const to = row_of<Out>(args.output, row.index) + first;
  const DropoutRow<Acc> dropout(args.dropout, row.index);
  if (dropout.is_on()) {
    const auto column = static_cast<int32_t>(first);
    store_dropped<Out, kWidth>(to, column, cols, tile, normaliser, dropout);
  } else {
    store_tile<Out, kWidth>(to, cols, tile, normaliser);
  }
}

// Calls f(column) for each of the thread's vectors before column `end`. No tile holds these.
template <int kWidth, class F>
FUSEDOPS_DEVICE void for_each_before(int32_t end, F f) {
  for (int64_t column = column_of<kWidth>(0); column < end; column += columns_before<kWidth>(1)) {
    f(column);
  }
}

// Stores what no tile reaches: columns before the first visible vector, and the sink's probability.
template <class Out, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_rest(
    const MaskedSoftmaxForward& args, const ScoreRow& row, const Normaliser<Acc>& normaliser) {
  if (args.sink_probabilities != nullptr && row.cols > 0 && column_of<kWidth>(0) == 0) {
    static_cast<Acc*>(args.sink_probabilities)[row.index] = normaliser.sink;
  }
  const int32_t first = row.template first<kWidth>();
  const auto hidden = Vec<Out, kWidth>::filled(normaliser.hidden);
  if (args.probabilities.data != nullptr) {
    Out* const to = row_of<Out>(args.probabilities, row.index);
    for_each_before<kWidth>(first, [&](int64_t column) { hidden.store(to + column); });
  }
  Out* const to = row_of<Out>(args.output, row.index);
  const DropoutRow<Acc> dropout(args.dropout, row.index);
  if (dropout.is_on() && normaliser.hidden != 0) {
    for_each_before<kWidth>(first, [&](int64_t column) {
      const auto at = static_cast<int32_t>(column);
      StoreDropped<Out, kWidth>{to + column, at, normaliser.hidden, dropout}(0);
    });
  } else {
    for_each_before<kWidth>(first, [&](int64_t column) { hidden.store(to + column); });
  }
}

// Computes the softmax of a row that the threads of a scope share. Each of them reads its part of
// the row once, keeps the scores in registers, and writes the same columns.
template <class RowScope, class In, int kWidth, int kVectors, int kTerms, int kThreads = 0>
FUSEDOPS_DEVICE void masked_softmax_row(const ForwardArgs& args, int64_t index) {
  using Acc = AccumulatorOf<In>;
  RowScope scope;
  const auto row = ScoreRow::with_terms<kTerms>(args, index);
  const int32_t own = scope.template own_columns<kWidth * kVectors>(row.cols).start;
  const int32_t start = row.template first<kWidth>() + own;

  ScoreTile<kTerms, In, kWidth, kVectors, kThreads> tile;
  tile.load(args, row, start);
  scope.join();

  const Acc largest = scope.template reduce<Max>(tile.largest);
  bool zero = false;
  if (args.zero_masked_rows) zero = scope.template reduce<Max>(Acc(tile.sees())) == 0;
  if (zero) tile.skip();
  const MaskedExponentials<kTerms, In> exponentials(
      args, row, row.template skipped_cols<kWidth>(), largest, zero);

  Acc own_sum;
  with_wider<In>(args.output.dtype, [&](auto type) {
    own_sum = tile.template exponentiate<decltype(type)>(exponentials.largest);
  });
  const Normaliser<Acc> normaliser(exponentials, scope.template reduce<Sum>(own_sum));

  with_wider<In>(args.output.dtype, [&](auto type) {
    using Out = decltype(type);
    store_row<Out, kWidth>(args, row, start, tile, normaliser);
    if constexpr (kHasAll<kTerms>) {
      if (scope.is_first()) store_rest<Out, kWidth>(args, row, normaliser);
    }
  });
}

// This is the number of threads of the largest block, as launch/plan.h has it for other kernels.
// With a bool mask, kernels that hold 32 elements spill on sm_100 unless threads have 80 registers.
template <class In, int kWidth, int kElements, int kTerms>
inline constexpr int32_t kMaskedSoftmaxThreads = !kIsWide<In, kWidth> || kElements > 32 ? 512
    : kElements > 16 && (kTerms & kBoolTerm) != 0                                       ? 768
    : kElements > 16 || (kElements == 16 && kHasAll<kTerms>)                            ? 896
                                                             : kMaxThreads;

template <class In, int kWidth, int kVectors, int kTerms, int kThreads = 0>
FUSEDOPS_KERNEL(
    (kMaskedSoftmaxThreads<In, kWidth, kWidth * kVectors, kTerms>), (kLeastBlocks<In, kWidth>))
masked_softmax_forward_registers(ForwardArgs args, int64_t first_row) {
  assume_row_threads<kThreads>();
  masked_softmax_row<OneBlock, In, kWidth, kVectors, kTerms, kThreads>(args, launch_row(first_row));
}

// The launch bound of the cluster kernels asks for room for one block a multiprocessor, because the
// kernels of floats spill if the compiler makes room for two. A bound of 768 threads leaves each
// thread 80 registers. Most rows of floats have blocks of 256 threads, three of which then fit on a
// multiprocessor.
template <class T>
inline constexpr int kMaskedClusterBound = sizeof(T) == 4 ? 768 : kMaskedClusterThreads;

template <class In, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kMaskedClusterBound<In>), 1)
masked_softmax_forward_cluster(ForwardArgs args, int64_t first_row) {
  masked_softmax_row<Cluster, In, kWidth, kVectors, kGeneralTerms>(args, cluster_row(first_row));
}

// Computes the softmax of one row a block, in two passes over the row: the first finds the largest
// score and the sum, and the second stores the results. A thread's sum stays 0 as long as all its
// scores are -inf, and finite scores can be added later.
template <class In, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads, (kLeastBlocks<In, kWidth>))
masked_softmax_forward_looped(ForwardArgs args, int64_t first_row) {
  using Acc = AccumulatorOf<In>;
  constexpr int kTerms = kGeneralTerms;
  // The 2 stands for scores and terms. With twice as many vectors, the exponentials would spill.
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/2>;
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_seen, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const auto row = ScoreRow::with_terms<kTerms>(args, launch_row(first_row));
  const int64_t step = int64_t{blockDim.x} * kVectors * kWidth;

  ScoreTile<kTerms, In, kWidth, kVectors> tile;
  RunningSoftmax<Acc> own;
  Acc seen = 0;
  const int64_t first = row.template first<kWidth>();
  with_wider<In>(args.output.dtype, [&](auto type) {
    using Out = decltype(type);
    for (int64_t start = first; start < row.visible; start += step) {
      tile.load(args, row, start);
      if (args.zero_masked_rows) seen = device::maximum(seen, Acc(tile.sees()));
      own.template move_to<Out>(device::maximum(own.largest, tile.largest));
      own.sum += tile.template exponentiate<Out>(finite_or_zero(own.largest));
    }
  });
  const Acc row_largest = row_reduce<Max>(own.largest, shared_max);
  const bool zero = args.zero_masked_rows && row_reduce<Max>(seen, shared_seen) == 0;
  const MaskedExponentials<kTerms, In> exponentials(
      args, row, row.template skipped_cols<kWidth>(), row_largest, zero);
  own.move_to(exponentials.largest);

  const Normaliser<Acc> normaliser(exponentials, row_reduce<Sum>(own.sum, shared_sums));
  with_wider<In>(args.output.dtype, [&](auto type) {
    using Out = decltype(type);
    for (int64_t start = first; start < row.cols; start += step) {
      tile.load(args, row, start);
      if (zero) tile.skip();
      tile.template exponentiate<Out>(exponentials.largest);
      store_row<Out, kWidth>(args, row, start, tile, normaliser);
    }
    store_rest<Out, kWidth>(args, row, normaliser);
  });
}

// Returns whether the backward pass reads the hidden columns too, because their probability is not
// 0. All hidden columns have the same probability: it is read in the last column or, if that is
// visible, in the first.
template <class T>
FUSEDOPS_DEVICE bool reads_hidden(const MaskedSoftmaxBackward& args, const ScoreRow& row) {
  if (row.hidden_cols() == 0) return false;
  const int32_t hidden = row.visible < row.cols ? row.cols - 1 : 0;
  return Vec<T, 1>::load(row_of<T>(args.probabilities, row.index) + hidden).at(0) != 0;
}

// Holds a tile of grad_output and one of the probabilities. As in ScoreTile, a thread holds only
// the vectors that begin within its `read` columns.
template <class T, int kWidth, int kVectors>
struct MaskedGradientTile {
  using Acc = AccumulatorOf<T>;
  Tile<T, kWidth, kVectors> probabilities;
  Acc grads[kVectors][kWidth];  // gradients of the probabilities: grad_output after dropout
  int32_t read;                 // columns read, from this thread's first one on

  FUSEDOPS_DEVICE bool holds(int i) const { return columns_before<kWidth>(i) < read; }

  // Loads `cols` columns from `start` on. The first `front` of them, fewer than a vector has, get
  // gradients of 0.
  FUSEDOPS_DEVICE void load(
      const MaskedSoftmaxBackward& args, int64_t row, int64_t start, int32_t cols,
      int32_t front = 0) {
    read = cols - column_of<kWidth>(0);
    const int64_t own = start + column_of<kWidth>(0);
    const T* const grad_output = row_of<T>(args.grad_output, row) + own;
    const T* const probability = row_of<T>(args.probabilities, row) + own;
    Tile<T, kWidth, kVectors> grad_outputs;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!holds(i)) continue;
      const int32_t offset = columns_before<kWidth>(i);
      grad_outputs.vectors[i] = Vec<T, kWidth>::load(grad_output + offset);
      probabilities.vectors[i] = Vec<T, kWidth>::load(probability + offset);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!holds(i)) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) grads[i][j] = grad_outputs.at(i, j);
      replace_from(grads[i], read - columns_before<kWidth>(i), Acc(0));
    }
    if (front <= column_of<kWidth>(0)) return;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) grads[0][j] = j < front ? Acc(0) : grads[0][j];
  }

  // Applies the forward's dropout to the gradients.
  FUSEDOPS_DEVICE void drop(const DropoutRow<Acc>& dropout, int64_t start) {
    if (!dropout.is_on()) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (holds(i)) dropout.apply(grads[i], static_cast<int32_t>(start + column_of<kWidth>(i)));
    }
  }

  // Returns the sum of gradients times probabilities.
  FUSEDOPS_DEVICE Acc sum() const {
    Acc sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = 0;
      if (!holds(i)) continue;
      Acc products[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) products[j] = grads[i][j] * probabilities.at(i, j);
      sums[i] = tree_sum<kWidth>(products);
    }
    return tree_sum<kVectors>(sums);
  }

  // Stores the gradients of the scores, which are 0 where scores are hidden, at `to`, the address
  // of column `start`. `sum` is sum() of the whole row.
  template <class Out>
  FUSEDOPS_DEVICE void store_to(
      Out* to, const ScoreRow& row, int64_t start, const ShownElements<kWidth, kVectors>& shown,
      Acc scale, Acc sum) const {
    const auto left = static_cast<int32_t>(row.cols - start);
    const auto visible = static_cast<int32_t>(row.visible - start) - column_of<kWidth>(0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column >= left) continue;
      Acc result[kWidth] = {};
      if (columns_before<kWidth>(i) < visible) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const Acc gradient = scale * probabilities.at(i, j) * (grads[i][j] - sum);
          result[j] = shown.at(i, j) ? gradient : Acc(0);
        }
        replace_from(result, visible - columns_before<kWidth>(i), Acc(0));
      }
      store(to + column, result);
    }
  }
};

// Stores what no tile reaches: zeros in the columns before `first`, and the sink's gradient.
template <class Out, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_rest(
    const MaskedSoftmaxBackward& args, const ScoreRow& row, int32_t first, Acc sum) {
  if (args.grad_sinks != nullptr && row.cols > 0 && column_of<kWidth>(0) == 0) {
    const Acc sink = static_cast<const Acc*>(args.sink_probabilities)[row.index];
    static_cast<Acc*>(args.grad_sinks)[row.index] = -sink * sum;
  }
  Out* const to = row_of<Out>(args.grad_input, row.index);
  const auto zeros = Vec<Out, kWidth>::filled(Acc(0));
  for_each_before<kWidth>(first, [&](int64_t column) { zeros.store(to + column); });
}

// Computes the gradient of a row that the threads of a scope share, and that stays in registers. T
// is the type of grad_output and the probabilities.
template <class RowScope, class T, int kWidth, int kVectors, int kTerms>
FUSEDOPS_DEVICE void masked_softmax_gradient_row(const BackwardArgs& args, int64_t index) {
  using Acc = AccumulatorOf<T>;
  RowScope scope;
  const auto row = ScoreRow::with_terms<kTerms>(args, index);
  const int32_t own = scope.template own_columns<kWidth * kVectors>(row.cols).start;
  int32_t first = row.template first<kWidth>(), start = first + own;

  MaskedGradientTile<T, kWidth, kVectors> tile;
  tile.load(args, row.index, start, row.visible - start, row.begin - start);
  if constexpr ((kTerms & kCausalTerm) != 0) {
    if (reads_hidden<T>(args, row)) {
      first = 0;
      start = own;
      tile.load(args, row.index, start, row.cols - start);
    }
  }
  ShownElements<kWidth, kVectors> shown;
  const Operand& mask = args.scores.mask;
  shown.template load<kTerms>(
      mask, row.mask + start * int64_t{mask.col_stride}, row.visible - start);
  if constexpr (kTerms == kAllTerms) {
    shown.hide_before(row.begin - start - column_of<kWidth>(0));
  }
  scope.join();

  tile.drop(DropoutRow<Acc>(args.dropout, row.index), start);
  const Acc sum = scope.template reduce<Sum>(tile.sum());
  const auto scale = static_cast<Acc>(args.scores.scale);
  with_narrower<T>(args.grad_input.dtype, [&](auto type) {
    using Out = decltype(type);
    Out* const to = row_of<Out>(args.grad_input, row.index) + start;
    tile.store_to(to, row, start, shown, scale, sum);
    if constexpr (kTerms == kAllTerms) {
      if (scope.is_first()) store_rest<Out, kWidth>(args, row, first, sum);
    }
  });
}

template <class T, int kWidth, int kVectors, int kTerms>
FUSEDOPS_KERNEL((kMaskedSoftmaxBackwardThreads<T, kWidth, kWidth * kVectors>))
masked_softmax_backward_registers(BackwardArgs args, int64_t first_row) {
  masked_softmax_gradient_row<OneBlock, T, kWidth, kVectors, kTerms>(args, launch_row(first_row));
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL(kMaskedClusterThreads, 1)
masked_softmax_backward_cluster(BackwardArgs args, int64_t first_row) {
  masked_softmax_gradient_row<Cluster, T, kWidth, kVectors, kAllTerms>(
      args, cluster_row(first_row));
}

// Computes the gradient of one row a block, in two passes: the first finds the row's sum, and the
// second stores the results. The launch bound is one block a multiprocessor, which has 32 KB in
// flight: without it the compiler makes room for two blocks of 16-bit rows, and registers spill.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads, 1)
masked_softmax_backward_looped(BackwardArgs args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/2>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const auto row = ScoreRow::with_terms<kAllTerms>(args, launch_row(first_row));
  const int64_t step = int64_t{blockDim.x} * kVectors * kWidth;
  const DropoutRow<Acc> dropout(args.dropout, row.index);
  const bool reads_all = reads_hidden<T>(args, row);
  const int32_t begin = reads_all ? 0 : row.begin, end = reads_all ? row.cols : row.visible;
  const int32_t first = begin / kWidth * kWidth;

  MaskedGradientTile<T, kWidth, kVectors> tile;
  Acc sum = 0;
  for (int64_t start = first; start < end; start += step) {
    const auto front = static_cast<int32_t>(begin - start);
    tile.load(args, row.index, start, static_cast<int32_t>(end - start), front);
    tile.drop(dropout, start);
    sum += tile.sum();
  }
  sum = row_reduce<Sum>(sum, shared_sums);

  const Operand& mask = args.scores.mask;
  const auto scale = static_cast<Acc>(args.scores.scale);
  for (int64_t start = first; start < row.cols; start += step) {
    const auto left = static_cast<int32_t>(row.visible - start);
    tile.load(args, row.index, start, left);
    ShownElements<kWidth, kVectors> shown;
    shown.template load<kAllTerms>(mask, row.mask + start * mask.col_stride, left);
    shown.hide_before(static_cast<int32_t>(row.begin - start) - column_of<kWidth>(0));
    tile.drop(dropout, start);
    with_narrower<T>(args.grad_input.dtype, [&](auto type) {
      auto* const to = row_of<decltype(type)>(args.grad_input, row.index) + start;
      tile.store_to(to, row, start, shown, scale, sum);
    });
  }
  with_narrower<T>(args.grad_input.dtype, [&](auto type) {
    store_rest<decltype(type), kWidth>(args, row, first, sum);
  });
}

}  // namespace fusedops::cuda
