// Computes the backward of a cross entropy over rows. The gradient may overwrite the logits,
// because the class's logit is read before any gradient is written. The gradient of the class's
// column is written last, over what the loop over all columns has put there.
#pragma once

#include "cpu/cross_entropy/logits.h"
#include "cpu/simd/exp_division.h"
#include "cpu/simd/log.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds numbers of up to kBatchRows rows, which are called a batch. The gradient in a column is
// factor * exp(logit - lse) - smoothing, where exponentials up to exp(lowest) count as 0. With a
// soft cap it is multiplied by the cap's derivative. In the column of the class the gradient is
// `of_class`.
struct alignas(kVectorBytes) GradientBatch {
  RowValue grad_loss, grad_lse, loss, lse, lse_error;
  RowValue base;  // the base of the class's logit (LogitsOf)
  RowValue factor, lowest, smoothing, of_class;

  FUSEDOPS_INLINE bool has_gradient(int index) const {
    return grad_loss[index] != 0 || grad_lse[index] != 0;
  }

  // Reads the class and the numbers of row `row`, and stores the numbers at `index`. Returns the
  // column of the class, or -1.
  template <class C>
  FUSEDOPS_INLINE int64_t read_row(const CrossEntropyBackward& args, int64_t row, int index) {
    const auto read = [=](const void* values) FUSEDOPS_LAMBDA {
      return values == nullptr ? 0.0 : double(static_cast<const C*>(values)[row]);
    };
    const RowClass target = class_of(args.targets, row, args.cols);
    grad_loss[index] = target.is_ignored ? 0 : read(args.grad_losses);
    grad_lse[index] = read(args.grad_lse);
    loss[index] = read(args.losses);
    lse[index] = read(args.lse);
    lse_error[index] = read(args.lse_error);
    return target.col;
  }
};

// GradientBatch's `lowest` is log(smallest normal number / factor) plus this number, so that no
// product of an exponential and the factor is denormal; 1e-4 allows for rounding. With a soft cap,
// the product is also multiplied by 1 - tanh^2. That is 0 or at least 2^-24 (2^-53 for doubles),
// and 17 and 37 exceed 24 and 53 times log(2).
template <class C, bool kCapped>
constexpr double kAboveLowest = 1e-4 + (kCapped ? (sizeof(C) == sizeof(double) ? 37 : 17) : 0);

// Computes factor, lowest, smoothing and of_class of all rows of a batch from its other numbers.
template <class C, bool kCapped>
FUSEDOPS_NOINLINE void compute_factors(
    const CrossEntropyBackward& args, LogitsOf<C, kCapped> logits, GradientBatch& batch) {
  constexpr double kLowest = ExpFor<C>::type::kLowestNormal;
  const double e = args.label_smoothing, each = e / double(args.cols), scale = args.logits.scale;
  Vec<double> unused = {};
  const auto grad = Load<Vec<double>>(batch.grad_loss);
  const auto grad_lse = Load<Vec<double>>(batch.grad_lse);
  const auto lse = Load<Vec<double>>(batch.lse), error = Load<Vec<double>>(batch.lse_error);
  const auto base = Load<Vec<double>>(batch.base);
  // A column's probability is exp(logit - lse - lse_error), as lse is rounded. write_gradient()
  // computes exp(logit - lse), so the factor includes the rest, `to_row` = exp(-lse_error).
  const Vec<double> to_row = exp_above<double, 0>(ExpDouble::kLowestNormal, -error, unused);
  const Vec<double> factor = (grad + grad_lse) * scale * to_row;
  // log_of() accepts only normal numbers, so the smallest one takes the place of a factor of 0.
  const Vec<double> normal = Max(magnitude(factor), Set(0x1p-1022));
  const Vec<double> lowest = kLowest - log_of(normal) + kAboveLowest<C, kCapped>;
  const Vec<double> nll = (lse - base * double(logits.outer)) + error;
  const Vec<double> p = exp_above<double, 0>(ExpDouble::kLowestNormal, -nll, unused);
  const Vec<double> log_p = e == 0 ? -Load<Vec<double>>(batch.loss) : -nll;
  // one_minus_exp() accepts no number below kLowestNormal. -40 stands for all numbers below it,
  // because 1 - exp(-40) already rounds to 1.
  const Vec<double> missing = one_minus_exp<double>(log_p < -40.0 ? Set(-40.0) : log_p);
  const Vec<double> slope = kCapped ? scale * (1.0 - base * base) : Set(scale);
  Store(batch.factor, factor);
  Store(batch.lowest, Max(Set(kLowest), lowest));
  Store(batch.smoothing, grad * (each * scale));
  Store(batch.of_class, (grad * ((e - each) - missing) + grad_lse * p) * slope);
}

// Writes the gradient of row `index` of a batch in `cols` columns, as if the class were in none of
// them.
template <class In, class AnyLogits>
FUSEDOPS_INLINE void write_gradient(
    In* result, const In* input, AnyLogits logits, const GradientBatch& batch, int index,
    int64_t cols) {
  using C = Compute<In>;
  // Any NaN is replaced by kNaN, whose lower 16 bits are 0, as store_numbers() requires.
  const auto value = [&](const RowValue& values) FUSEDOPS_LAMBDA {
    return values[index] == values[index] ? C(values[index]) : C(kNaN);
  };
  const C lse = value(batch.lse), factor = value(batch.factor);
  const C lowest = value(batch.lowest), smoothing = value(batch.smoothing);
  for_columns<In>(cols, [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
    prefetch_ahead(input + col);
    prefetch_ahead(result + col);  // unless it is the input, a store reads what it overwrites
    const Tile<C> base = logits.base(load(input + col, part));
    Tile<C> p = logits.minus(base, lse);
    Vec<C> unused = {};
    for (auto& vec : p.v) vec = exp_above<In, 0>(lowest, vec, unused);
    store_numbers(result + col, part, logits.times_slope(p * factor - smoothing, base));
  });
}

// Computes the gradient in the columns `cols` of some rows.
template <class In, class AnyLogits>
FUSEDOPS_INLINE void cross_entropy_backward_rows(
    const CrossEntropyBackward& args, RowRange rows, RowRange cols, AnyLogits logits) {
  using C = Compute<In>;
  for_parts<kBatchRows>(rows, [&](int64_t first, int count) FUSEDOPS_LAMBDA {
    GradientBatch batch = {};
    int64_t class_cols[kBatchRows];
    for (int i = 0; i < count; ++i) {
      const int64_t col = batch.template read_row<C>(args, first + i, i);
      const bool has_class = batch.has_gradient(i) && cols.begin <= col && col < cols.end;
      class_cols[i] = has_class ? col : -1;
      if (has_class) {
        batch.base[i] = logits.base_of(start_of<In>(args.logits.input, first + i) + col);
      }
    }
    compute_factors(args, logits, batch);
    for (int i = 0; i < count; ++i) {
      const In* input = start_of<In>(args.logits.input, first + i) + cols.begin;
      In* result = start_of<In>(args.grad_input, first + i);
      const int64_t width = cols.end - cols.begin;
      if (!batch.has_gradient(i)) {
        std::memset(result + cols.begin, 0, width * sizeof(In));
        continue;
      }
      write_gradient(result + cols.begin, input, logits, batch, i, width);
      if (class_cols[i] < 0) continue;
      store(result + class_cols[i], Tail{1}, Broadcast(C(batch.of_class[i])));
    }
  });
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
