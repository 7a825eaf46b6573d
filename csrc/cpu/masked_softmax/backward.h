// Computes the backward of a masked softmax of rows on the CPU, with and without dropout.
#pragma once

#include "cpu/masked_softmax/operands.h"
#include "cpu/simd/philox.h"
#include "cpu/softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Returns the sum of grad * probabilities over the visible columns. All tiles round alike, so that
// the bits do not depend on which tiles have hidden columns.
template <class T, class Grad, class C = Compute<T>>
C dot(Grad grad, const T* probabilities, RowRange visible, int64_t cols) {
  const Tile<C> sum = fold_visible<T>(
      visible, cols, Broadcast(C(0)),
      [&](Tile<C> so_far, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
        const Tile<C> g = filled<T>(grad.at(col, part), seen, C(0));
        return MulAdd(g, load(probabilities + col, part), so_far);
      });
  return C(sum_of(sum, Broadcast(C(0))));
}

template <class In, class Out>
struct GradRow {
  using C = Compute<Out>;
  const Out* probabilities;
  In* result;
  const Out *next_grad, *next_probabilities;  // prefetched while this row is written
  C scale, sum;
  RowRange visible;
  int64_t cols;
  bool prefetches;  // whether the next rows are prefetched

  // Writes the gradient of the row, with 0 in the columns that are not visible or that the mask
  // hides.
  template <class Grad, class BoolMask>
  FUSEDOPS_INLINE void write(Grad grad, BoolMask mask, StoreMode mode) const {
    const auto prefetch = [&](int64_t col) FUSEDOPS_LAMBDA {
      if (!prefetches) return;
      prefetch_tile<Cache::kL2>(next_grad + col);
      prefetch_tile<Cache::kL2>(next_probabilities + col);
    };
    fold_visible<Out>(
        visible, cols, NoOperand{},
        [&](NoOperand none, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
          prefetch(col);
          const Tile<C> p = load(probabilities + col, part);
          const Tile<C> all = (grad.at(col, part) - sum) * p * scale;
          const Tile<C> unmasked = with_operand<Out>(all, mask, col, part, C(0));
          mode.store(result + col, part, in_order<Out, In>(filled<Out>(unmasked, seen, C(0))));
          return none;
        });
    const RowRange computed = columns_computed<Out>(visible, cols);
    prefetch(computed.end);  // the column that is_rest_zero() reads, or one more visible column
    write_zeros_around<Out>(result, computed, cols, mode);
  }
};

// Whether the probabilities of hidden columns, which are all equal, are 0. The column that is read
// is next to a visible one: one far away would be a cache miss, which takes as long as 250 columns.
template <class Out>
FUSEDOPS_INLINE bool is_rest_zero(const Out* probabilities, RowRange visible, int64_t cols) {
  const int64_t before = visible.begin > 0 ? visible.begin - 1 : 0;
  const int64_t hidden = visible.end < cols ? visible.end : before;
  return load(probabilities + hidden, Tail{1}).v[0][0] == 0;
}

// Returns the distances from a row to those that are prefetched while it is written. Where rows
// have intervals, the hardware prefetchers do not find the next row. Such rows are prefetched
// earlier, and even if results stay in the cache: on a Zen 4 this takes a fifth to a third less
// time from 512 columns on, and half of it for 1.5 million floats in rows of 128.
template <class Out>
FUSEDOPS_INLINE RowsAhead rows_ahead(const MaskedSoftmaxBackward& args, bool has_intervals) {
  const int64_t row_bytes = args.cols * int64_t(sizeof(Out));
  const int64_t rows = !has_intervals ? RowsAhead::of_single_rows<Out>()
      : row_bytes < 1024              ? ceil_div(2048, row_bytes + 1)
                                      : 2;
  return RowsAhead(args.grad_output, args.probabilities, row_bytes, rows);
}

// Writes the gradient of a row, and returns the sum of grad * probabilities.
template <class In, class Out, class Grad>
FUSEDOPS_INLINE Compute<Out> masked_softmax_backward_row(
    GradRow<In, Out> row, RowRange summed, Grad grad, const Bool* mask, StoreMode mode) {
  row.sum = dot<Out>(grad, row.probabilities, summed, row.cols);
  if (mask != nullptr) {
    row.write(grad, mask, mode);
  } else {
    row.write(grad, NoOperand{}, mode);
  }
  return row.sum;
}

template <class In, class Out>
FUSEDOPS_INLINE void masked_softmax_backward_rows(
    const MaskedSoftmaxBackward& args, RowRange range, void* memory, StoreMode mode) {
  using C = Compute<Out>;
  C* scratch = static_cast<C*>(memory);
  const Scores& scores = args.scores;
  const bool drops = args.dropout.seed != nullptr;
  const double kept_scale = drops ? args.dropout.scale : 1.0;
  const C scale = C(scores.scale * kept_scale);
  const bool has_intervals = scores.causal.on || scores.has_bounds();
  const RowsAhead ahead = rows_ahead<Out>(args, has_intervals);
  OperandRows operands(scores, range.begin);
  for (int64_t index = range.begin; index < range.end; ++index, operands.next()) {
    const Out* grad = start_of<Out>(args.grad_output, index);
    const Out* probabilities = start_of<Out>(args.probabilities, index);
    In* result = start_of<In>(args.grad_input, index);
    const auto [visible, all] = operands.visible(args.cols);
    const bool only_visible = is_rest_zero(probabilities, visible, args.cols);
    const RowRange summed = only_visible ? visible : RowRange{0, args.cols};
    const Bool* mask = all ? nullptr : static_cast<const Bool*>(operands.mask());
    const GradRow<In, Out> row{
        probabilities, result,  grad + ahead.grad, probabilities + ahead.output, scale,
        C(0),          visible, args.cols,         mode.streams || has_intervals};
    C sum;
    if (drops) {
      const int64_t first = summed.begin / kTile<float> * kTile<float>;
      for_columns<Out>(summed.end - first, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
        store(scratch + first + col, load(grad + first + col, part));
      });
      drop_columns<Out>(
          DropoutRow(args.dropout, index), scratch + first, first, summed.end - first);
      sum = masked_softmax_backward_row(row, summed, FromScratch<C>{scratch}, mask, mode);
    } else {
      sum = masked_softmax_backward_row(row, summed, FromMemory<Out>{grad}, mask, mode);
    }
    if (args.grad_sinks != nullptr) {
      const C sink = static_cast<const C*>(args.sink_probabilities)[index];
      static_cast<C*>(args.grad_sinks)[index] = -sink * (sum * C(kept_scale));
    }
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
