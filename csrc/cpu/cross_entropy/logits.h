// Reads logits and classes, for both passes of a cross entropy.
#pragma once

#include "cpu/dispatch/table.h"
#include "cpu/simd/rows.h"
#include "cpu/simd/tanh.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// A logit is outer * base, where the base is the input or, with a soft cap, tanh(inner * input).
// With FMA the product is fused with the subtraction that follows, so that a scale costs nothing.
template <class C, bool kCapped>
struct LogitsOf {
  static constexpr bool kIsCapped = kCapped;
  C inner, outer;

  explicit LogitsOf(const Logits& logits)
      : inner(C(kCapped ? logits.scale / logits.softcap : 1)),
        outer(C(kCapped ? logits.softcap : logits.scale)) {}

  FUSEDOPS_INLINE Tile<C> base(Tile<C> x) const {
    if constexpr (kCapped) return tanh_of(x * inner);
    return x;
  }
  // Returns a LogitsOf whose logits are `factor` times as large, up to rounding.
  FUSEDOPS_INLINE LogitsOf times(double factor) const {
    LogitsOf scaled = *this;
    scaled.outer = C(outer * factor);
    return scaled;
  }
  // Returns logits, given by their bases, minus a number.
  FUSEDOPS_INLINE Tile<C> minus(Tile<C> base, C subtrahend) const {
    return MulSub(base, outer, subtrahend);
  }

  // Returns a gradient times the derivative of the soft cap.
  FUSEDOPS_INLINE Tile<C> times_slope(Tile<C> grad, Tile<C> base) const {
    if constexpr (kCapped) return grad * (Broadcast(C(1)) - base * base);
    return grad;
  }

  // Returns the base of one input.
  template <class In>
  FUSEDOPS_INLINE double base_of(const In* input) const {
    return double(base(load(input, Tail{1})).v[0][0]);
  }
  FUSEDOPS_INLINE double logit_of(double base) const { return base * double(outer); }
};

struct RowClass {
  int64_t col;  // -1 if the class is ignored or is none of the columns
  bool is_ignored;
};

inline RowClass class_of(const Targets& targets, int64_t row, int64_t cols) {
  const int64_t value = targets.is_int64 ? static_cast<const int64_t*>(targets.data)[row]
                                         : static_cast<const int32_t*>(targets.data)[row];
  const bool is_ignored = targets.has_ignored && value == targets.ignored;
  const bool is_col = !is_ignored && 0 <= value && value < cols;
  return {is_col ? value : -1, is_ignored};
}

// A batch is as many rows as a vector has doubles: what is one number for each row, such as its
// lse, is computed for a batch at once.
constexpr int kBatchRows = kLanes<double>;
using RowValue = double[kBatchRows];

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
