// Computes softmax and log_softmax of groups of short rows, and spatial softmax over a dim_size
// that is no larger than a short row. In both, a tile holds the same element of several softmaxes,
// each in a lane of its own, and nothing moves between lanes.
//
// Results have the bits of rows.h and spatial.h, because sums use the same accumulators
// in the same order. A group stays in the L1 cache, so that each element is read once and costs one
// exp.
#pragma once

#include "cpu/simd/short_rows.h"
#include "cpu/softmax/spatial.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Returns the sum of each row of a group, in the order of fold_columns() for T. `of_col(col)`
// returns the tile of a column.
template <class T, class Source, class C = Compute<T>>
FUSEDOPS_INLINE WideTile<C> sum_of_group(int64_t cols, Source of_col) {
  Tile<C> accumulators[kAccumulators<T>];
  const int64_t used = accumulators_used<T>(cols);
  for (int64_t col = 0; col < used; ++col) accumulators[col] = Broadcast(C(0)) + of_col(col);
  for (int64_t col = used; col < cols; ++col) {
    Tile<C>& accumulator = accumulators[accumulator_of<T>(col, cols)];
    accumulator = accumulator + of_col(col);
  }
  const int64_t count = accumulators_read<T>(cols);
  for (int64_t i = used; i < count; ++i) accumulators[i] = Broadcast(C(0));
  return sum_of_accumulators<T>(TileAccumulators<C>{accumulators, /*stride=*/1, count});
}

template <class C>
FUSEDOPS_INLINE Tile<C> max_of_group(const Tile<C>* group, int64_t cols) {
  Tile<C> even = Broadcast(-kInfinity<C>), odd = even;
  for (int64_t col = 0; col < cols; col += 2) {
    even = Max(even, group[col]);
    odd = Max(odd, group[col + 1 < cols ? col + 1 : col]);
  }
  return Max(even, odd);
}

// Replaces the values of a group by their softmax or, with Log, by its logarithm.
template <bool Log, class In, class Out, class C = Compute<In>>
FUSEDOPS_NOINLINE void softmax_group(Tile<C>* group, int64_t cols) {
  const Tile<C> max = max_of_group(group, cols), shift = shift_of(max);
  const auto sum = sum_of_group<In>(cols, [=](int64_t col) FUSEDOPS_LAMBDA {
    Vec<C> unused = {};
    const Tile<C> e = softmax_exp<Log, Out>(group[col] - shift, unused);
    if constexpr (!Log) group[col] = e;
    return e;
  });
  const auto factors = column_factors<Log, Out>(ColumnMaxSum<C>{max, sum});
  for (int64_t col = 0; col < cols; ++col) {
    if constexpr (Log) {
      group[col] = normalized<Log, Out>(group[col], factors);
    } else {
      group[col] = divided_as_needed<Out>(group[col], factors);
    }
  }
}

// Replaces the tiles of grad_output by those of the gradient of the input.
template <bool Log, class In, class Out, class C = Compute<Out>>
FUSEDOPS_NOINLINE void softmax_backward_group(Tile<C>* grad, const Tile<C>* output, int64_t cols) {
  const Tile<C> sum = demoted(sum_of_group<Out>(cols, [=](int64_t col) FUSEDOPS_LAMBDA {
    return Log ? grad[col] : grad[col] * output[col];
  }));
  for (int64_t col = 0; col < cols; ++col) {
    grad[col] = softmax_gradient<Log, In>(grad[col], output[col], sum);
  }
}

// --- rows ---------------------------------------------------------------------------------------

// Whether rows of this length are faster with a row in each lane than in softmax_rows(). Rows of
// few columns are, and so are 16-bit rows whose last columns take a function call to load.
template <class In>
constexpr bool forward_gains_from_groups(int64_t cols) {
  if constexpr (sizeof(In) > 2) return cols < 64;
  return cols < 96 || (cols <= kMaxGroupCols && end_within_a_tile<In>(cols));
}

// Computes as many whole groups of `rows` as there are, if rows of this length are faster in
// groups. Returns the rows that remain.
template <class In, class Out>
RowRange short_softmax_groups(const SoftmaxForward& args, RowRange rows) {
  if (!forward_gains_from_groups<In>(args.cols)) return rows;
  Tile<Compute<In>> group[kMaxGroupCols];
  return for_row_groups<In>(rows, [&](int64_t first) {
    prefetch_group<Out>(args.output, first, args.cols);
    load_group<In>(args.input, first, args.cols, group);
    prefetch_group<In>(args.input, first + kGroupRows<In>, args.cols);
    with_bool(args.log, [&](auto log) { softmax_group<log.value, In, Out>(group, args.cols); });
    store_group<Out>(args.output, first, args.cols, group);
  });
}

// Computes rows of exactly one vector, as many at once as a vector has doubles. Compared with
// groups this saves the transposition, and compared with softmax_backward_rows() a second, empty
// vector.
template <bool Log, class T, class C = Compute<T>>
FUSEDOPS_INLINE void softmax_backward_vectors(const SoftmaxBackward& args, int64_t first) {
  constexpr int kCount = kLanes<double>;
  Vec<C> grad[kCount], output[kCount];
  Vec<double> lanes[kCount];
  for (int r = 0; r < kCount; ++r) {
    grad[r] = Load<Vec<C>>(start_of<T>(args.grad_output, first + r));
    output[r] = Load<Vec<C>>(start_of<T>(args.output, first + r));
    lanes[r] = promoted_sum(Vec<C>{} + (Log ? grad[r] : grad[r] * output[r])) + Vec<double>{};
  }
  double sums[kCount];
  sums_over_lanes<double>(lanes, sums);
  for (int r = 0; r < kCount; ++r) {
    const Vec<C> sum = Set(C(sums[r]));
    Store(
        start_of<T>(args.grad_input, first + r), softmax_gradient<Log, T>(grad[r], output[r], sum));
  }
}

template <class T>
FUSEDOPS_NOINLINE RowRange softmax_backward_vectors(const SoftmaxBackward& args, RowRange rows) {
  constexpr int kCount = kLanes<double>;
  for (; rows.begin + kCount <= rows.end; rows.begin += kCount) {
    with_bool(args.log, [&](auto log) FUSEDOPS_LAMBDA {
      softmax_backward_vectors<log.value, T>(args, rows.begin);
    });
  }
  return rows;
}

// Whether rows of this length are faster in groups than in softmax_backward_rows(). These are rows
// of at most kShortRowCols columns that do not fill a vector (a tile, for 16 bits) or, where there
// are no masked loads, that end within a tile.
template <class Out>
constexpr bool backward_gains_from_groups(int64_t cols) {
  if (cols > kShortRowCols) return false;
  return cols < kTile<Out> / (sizeof(Out) == 2 ? 1 : 2) || end_within_a_tile<Out>(cols);
}

// Computes as many whole groups, or batches of rows of one vector each, as there are, if rows of
// this length are faster so. Returns the rows that remain.
template <class In, class Out, class C = Compute<Out>>
RowRange short_softmax_backward_groups(const SoftmaxBackward& args, RowRange rows) {
  if constexpr (sizeof(In) == sizeof(C) && sizeof(Out) == sizeof(C)) {
    if (args.cols == kLanes<C>) return softmax_backward_vectors<Out>(args, rows);
  }
  if (!backward_gains_from_groups<Out>(args.cols)) return rows;
  Tile<C> grad[kShortRowCols], output[kShortRowCols];
  return for_row_groups<Out>(rows, [&](int64_t first) {
    load_group<Out>(args.grad_output, first, args.cols, grad);
    load_group<Out>(args.output, first, args.cols, output);
    with_bool(args.log, [&](auto log) {
      softmax_backward_group<log.value, In, Out>(grad, output, args.cols);
    });
    store_group<In>(args.grad_input, first, args.cols, grad);
  });
}

// --- spatial softmax ----------------------------------------------------------------------------

// Whether dim_size is small enough for the functions below rather than those of spatial.h. If inner
// is large, each row of the matrix [dim_size, inner] lies on a memory page of its own, and
// spatial.h is faster from 17 rows on.
template <class Args>
FUSEDOPS_INLINE bool are_short(const Args& args) {
  return args.dim_size <= 16 ||
      (args.dim_size <= kShortRowCols && args.inner <= InnerSegments::kMaxCols);
}

template <class In, class Out>
void softmax_short_segments(const SpatialSoftmaxForward& args, RowRange range, StoreMode mode) {
  using C = Compute<In>;
  Tile<C> group[kShortRowCols];
  for_segments(inner_segments(args), range, [&](int64_t outer, RowRange cols) FUSEDOPS_LAMBDA {
    const Segment<const In> input{args.input, outer, cols};
    const Segment<Out> output{args.output, outer, cols};
    for_columns<In>(cols.end - cols.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      for (int64_t r = 0; r < args.dim_size; ++r) group[r] = load(input.row(r) + col, part);
      if (args.log) {
        softmax_group<true, In, Out>(group, args.dim_size);
      } else {
        softmax_group<false, In, Out>(group, args.dim_size);
      }
      for (int64_t r = 0; r < args.dim_size; ++r) {
        mode.store(output.row(r) + col, part, in_order<In, Out>(group[r]));
      }
    });
  });
}

// Computes the gradient of some segments. For each tile of columns, a second pass reads the rows
// again, because only the sums stay in registers.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE void softmax_backward_short_segments(
    const SpatialSoftmaxBackward& args, RowRange range, StoreMode mode) {
  for_segments(inner_segments(args), range, [&](int64_t outer, RowRange cols) FUSEDOPS_LAMBDA {
    const Segment<const Out> grad{args.grad_output, outer, cols};
    const Segment<const Out> output{args.output, outer, cols};
    const Segment<In> result{args.grad_input, outer, cols};
    for_columns<Out>(cols.end - cols.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const auto sum = demoted(sum_of_group<Out>(args.dim_size, [&](int64_t row) FUSEDOPS_LAMBDA {
        const auto g = load(grad.row(row) + col, part);
        return Log ? g : g * load(output.row(row) + col, part);
      }));
      for (int64_t row = 0; row < args.dim_size; ++row) {
        const auto g = load(grad.row(row) + col, part), y = load(output.row(row) + col, part);
        const auto gradient = softmax_gradient<Log, In>(g, y, sum);
        mode.store(result.row(row) + col, part, in_order<Out, In>(gradient));
      }
    });
  });
}

template <class In, class Out>
void softmax_backward_short_segments(
    const SpatialSoftmaxBackward& args, RowRange range, StoreMode mode) {
  if (args.log) return softmax_backward_short_segments<true, In, Out>(args, range, mode);
  softmax_backward_short_segments<false, In, Out>(args, range, mode);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
