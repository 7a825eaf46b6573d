// Computes cross entropies of groups of short rows: each column has a tile, and each row a lane of
// it (cpu/simd/short_rows.h). All rows of a call are computed in groups, of which the last may have
// fewer rows, so that a row has the same bits in every batch. Rows that need not be read are
// computed with the others of their group, and the results are not used.
#pragma once

#include "cpu/cross_entropy/backward.h"
#include "cpu/cross_entropy/rows.h"
#include "cpu/simd/short_rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Rows of up to this many columns are faster in groups, in the forward and in the backward. Each of
// the forward's two accumulators then adds at most 64 values, which limits its rounding error.
constexpr int64_t kMaxLossGroupCols = 128, kMaxGradientGroupCols = 32;

// Holds a value of each row of a group.
template <class C>
struct alignas(kVectorBytes) RowLanes {
  C of_row[kTile<C>];

  FUSEDOPS_INLINE C& operator[](int64_t row) { return of_row[row]; }
  FUSEDOPS_INLINE Tile<C> tile() const { return load(of_row); }
};

// Loads a group of rows, and computes the bases of their logits (LogitsOf).
template <class In, class AnyLogits, class C = Compute<In>>
FUSEDOPS_NOINLINE void load_bases(
    const ConstRows& input, int64_t first, int64_t count, int64_t cols, AnyLogits logits,
    Tile<C>* bases) {
  load_group<In>(input, first, cols, bases, count);
  for (int64_t col = 0; AnyLogits::kIsCapped && col < cols; ++col)
    bases[col] = logits.base(bases[col]);
}

// Returns the base of the logit in one row and column of a group.
template <class C>
FUSEDOPS_INLINE double base_in_group(const Tile<C>* bases, int64_t row, int64_t col) {
  return double(reinterpret_cast<const C*>(bases + col)[row]);
}

// --- forward ------------------------------------------------------------------------------------

// Holds for each row of a group the shift and two sums over its columns: of exp(logit - shift),
// without the class, and of logit - shift.
template <class C>
struct alignas(kVectorBytes) GroupSums {
  RowLanes<C> shift;
  double exponentials[kTile<C>], differences[kTile<C>];
};

// Adds up the two accumulators of a sum in double, and writes the total for each row of a group.
template <class C>
FUSEDOPS_INLINE void store_sum(double* to, Tile<C> even, Tile<C> odd) {
  const WideTile<C> sum = promoted(even) + promoted(odd);
  for (int64_t i = 0; i < kWideVectors<C>; ++i) Store(to + i * kLanes<double>, vector_of(sum, i));
}

// Computes the shift and the two sums of each row of a group. The shift is the row's maximum, or 0
// if the maximum is infinite.
template <class C, class AnyLogits>
FUSEDOPS_NOINLINE void sum_group(
    const Tile<C>* bases, int64_t cols, Tile<C> class_cols, AnyLogits logits,
    GroupSums<C>& result) {
  Tile<C> shift = Broadcast(-kInfinity<C>);
  for (int64_t col = 0; col < cols; ++col) shift = Max(shift, bases[col] * logits.outer);
  for (auto& vec : shift.v) vec = vec - vec == C(0) ? vec : Vec<C>{};
  const auto add = [&](TileSums<C> sums, int64_t col) FUSEDOPS_LAMBDA {
    const Tile<C> d = bases[col] * logits.outer - shift, e = exp_or_zero<SumOf<C>>(d);
    for (int half = 0; half < 2; ++half) {
      Vec<C>& sum = sums.exponentials.v[half];
      sum = class_cols.v[half] == C(col) ? sum : sum + e.v[half];
    }
    sums.differences = sums.differences + d;
    return sums;
  };
  TileSums<C> even{Broadcast(C(0)), Broadcast(C(0))}, odd = even;
  int64_t col = 0;
  for (; col + 1 < cols; col += 2) {
    even = add(even, col);
    odd = add(odd, col + 1);
  }
  if (col < cols) even = add(even, col);
  store(result.shift.of_row, shift);
  store_sum(result.exponentials, even.exponentials, odd.exponentials);
  store_sum(result.differences, even.differences, odd.differences);
}

template <class In, class AnyLogits>
FUSEDOPS_INLINE void cross_entropy_groups(
    const CrossEntropyForward& args, RowRange range, AnyLogits logits) {
  using C = Compute<In>;
  Tile<C> bases[kMaxLossGroupCols];
  for_parts<kGroupRows<In>>(range, [&](int64_t first, int count) {
    load_bases<In>(args.logits.input, first, count, args.cols, logits, bases);
    RowClass targets[kGroupRows<In>];
    RowLanes<C> class_cols = {};
    for (int64_t row = 0; row < count; ++row) {
      targets[row] = class_of(args.targets, first + row, args.cols);
      class_cols[row] = C(targets[row].col);
    }
    GroupSums<C> sums;
    sum_group(bases, args.cols, class_cols.tile(), logits, sums);
    for_parts<kBatchRows>(RowRange{0, count}, [&](int64_t begin, int rows) FUSEDOPS_LAMBDA {
      LossBatch batch = {};
      for (int i = 0; i < rows; ++i) {
        const int64_t row = begin + i;
        const RowClass target = targets[row];
        batch.set_class(i, target);
        if (target.col >= 0) {
          batch.logit[i] = logits.logit_of(base_in_group(bases, row, target.col));
        }
        if (!is_read(args, target)) continue;
        const double sum = sums.exponentials[row];
        if (__builtin_expect(is_usable(sum), true)) {
          const double shift = sums.shift[row];
          batch.set(i, sums_of(shift, sum, sums.differences[row], shift, args.cols));
        } else {
          const In* input = start_of<In>(args.logits.input, first + row);
          // No differences are wanted: a logit is +inf or NaN, so the loss is NaN.
          const Segment<In> segment{input, args.cols, target.col, /*wants_differences=*/false};
          batch.set(i, sums_of_special_segment(segment, logits));
        }
      }
      write_losses<C>(args, first + begin, rows, batch);
    });
  });
}

// --- backward -----------------------------------------------------------------------------------

// Holds those numbers of GradientBatch that the gradient of each column needs, in the lane of the
// row.
template <class C>
struct GroupFactors {
  RowLanes<C> lse, factor, lowest, smoothing;
  RowLanes<C> class_col, of_class;
  RowLanes<C> has_gradient;  // 1, or 0 if the row's gradient is all zeros

  void set(int64_t row, const GradientBatch& batch, int index, int64_t col) {
    lse[row] = C(batch.lse[index]), factor[row] = C(batch.factor[index]);
    lowest[row] = C(batch.lowest[index]), smoothing[row] = C(batch.smoothing[index]);
    class_col[row] = C(col), of_class[row] = C(batch.of_class[index]);
    has_gradient[row] = batch.has_gradient(index) ? C(1) : C(0);
  }
};

// Replaces the bases of a group's logits (LogitsOf) by the gradients of the input.
template <class In, class AnyLogits, class C = Compute<In>>
FUSEDOPS_NOINLINE void compute_group(
    Tile<C>* group, int64_t cols, const GroupFactors<C>& factors, AnyLogits logits) {
  const Tile<C> lse = factors.lse.tile(), lowest = factors.lowest.tile();
  const Tile<C> factor = factors.factor.tile(), smoothing = factors.smoothing.tile();
  const Tile<C> class_col = factors.class_col.tile(), of_class = factors.of_class.tile();
  const Tile<C> has_gradient = factors.has_gradient.tile();
  for (int64_t col = 0; col < cols; ++col) {
    const Tile<C> base = group[col];
    Tile<C> d = base * logits.outer - lse;
    for (int half = 0; half < 2; ++half) {
      d.v[half] = d.v[half] <= lowest.v[half] ? Set(-kInfinity<C>) : d.v[half];  // a NaN stays
    }
    Tile<C> grad = logits.times_slope(exp_or_zero<In>(d) * factor - smoothing, base);
    for (int half = 0; half < 2; ++half) {
      Vec<C>& vec = grad.v[half];
      vec = class_col.v[half] == C(col) ? of_class.v[half] : vec;
      vec = has_gradient.v[half] != C(0) ? vec : Vec<C>{};
    }
    group[col] = grad;
  }
}

// Writes grad_input for the rows in `range`, a group at a time. `group` holds the bases of the
// logits (LogitsOf), which compute_group() replaces by the gradients. The factors of the rows are
// computed kBatchRows at a time.
template <class In, class AnyLogits>
FUSEDOPS_INLINE void cross_entropy_backward_groups(
    const CrossEntropyBackward& args, RowRange range, AnyLogits logits) {
  using C = Compute<In>;
  Tile<C> group[kMaxGradientGroupCols];
  for_parts<kGroupRows<In>>(range, [&](int64_t first, int count) {
    load_bases<In>(args.logits.input, first, count, args.cols, logits, group);
    GroupFactors<C> factors = {};
    for_parts<kBatchRows>(RowRange{0, count}, [&](int64_t begin, int rows) FUSEDOPS_LAMBDA {
      GradientBatch batch = {};
      int64_t class_cols[kBatchRows];
      for (int i = 0; i < rows; ++i) {
        const int64_t row = begin + i;
        const int64_t col = class_cols[i] = batch.template read_row<C>(args, first + row, i);
        if (col >= 0) batch.base[i] = base_in_group(group, row, col);
      }
      compute_factors(args, logits, batch);
      for (int i = 0; i < rows; ++i) factors.set(begin + i, batch, i, class_cols[i]);
    });
    compute_group<In>(group, args.cols, factors, logits);
    store_group<In>(args.grad_input, first, args.cols, group, count);
  });
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
