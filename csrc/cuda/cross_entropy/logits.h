// Contains what both passes of a cross entropy need: the class of a row, and the logits of its
// elements.
#pragma once

#include "cuda/block/segments.h"
#include "cuda/masked_softmax/scores.h"

namespace fusedops::cuda {

// A block has 128 threads, as blocks of segments do. Either 2^k threads share a row, or all of them
// share a segment.
inline constexpr int32_t kClassThreads = kSegmentThreads;

// This many blocks share a multiprocessor's registers. Seven blocks have 72 registers a thread, and
// 56 KB in flight, or 28 KB of rows that are not aligned. With eight blocks, of 64 registers a
// thread, one architecture would spill.
template <class T>
inline constexpr int32_t kClassBlocks = sizeof(T) == 8 ? 4 : 7;

// A segment has this many columns: four tiles of 16-bit elements for each thread, because the start
// and the reductions of a block cost as much as one tile. A row of 128K columns has eight segments.
inline constexpr int32_t kClassSegmentCols = 16384;

constexpr Segments plan_class_segments(int64_t cols) {
  return plan_segments(cols, kClassSegmentCols, kMaxSegments);
}

// Returns the alignment, in bytes, of the first vector in a row of gradients: a line of the cache,
// so that a warp writes whole lines. Short rows are aligned for a vector only, because otherwise
// the columns between the aligned address and the row would take many of the row's threads.
FUSEDOPS_HOST_DEVICE constexpr int32_t class_alignment(int64_t row_bytes) {
  return row_bytes >= 16384 ? 128 : kMaxVectorBytes;
}

// Says which rows and which segment of them a block has, in a launch of segments.count blocks for
// each blockDim.y rows.
struct ClassBlock {
  int64_t first_row;
  int32_t segment;

  FUSEDOPS_DEVICE ClassBlock(Segments segments, int64_t first) {
    const auto count = static_cast<uint32_t>(segments.count);
    first_row = first + int64_t{blockIdx.x / count} * blockDim.y;
    segment = static_cast<int32_t>(blockIdx.x % count);
  }

  FUSEDOPS_DEVICE int64_t row() const { return first_row + threadIdx.y; }
};

FUSEDOPS_DEVICE uint32_t thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }

struct RowClass {
  int64_t column = -1;  // -1 where the class is no column, or ignored
  bool is_ignored = false;

  FUSEDOPS_DEVICE RowClass(const Targets& targets, int64_t row, int64_t cols) {
    const int64_t value = targets.is_int64 ? static_cast<const int64_t*>(targets.data)[row]
                                           : static_cast<const int32_t*>(targets.data)[row];
    is_ignored = targets.has_ignored && value == targets.ignored;
    if (!is_ignored && value >= 0 && value < cols) column = value;
  }
};

// Returns the address of a row of logits. The rows may form runs, whose cost is small here: the
// offset of a row is computed once for many columns.
template <class T>
FUSEDOPS_DEVICE const T* logits_row(const ConstRows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + rows.spacing.offset(row);
}

// Returns whether an option that is never negative is above 0. The bits are compared as an integer,
// because a comparison of doubles takes 64 clocks on a consumer GPU, and each tile would make one.
FUSEDOPS_DEVICE bool is_positive(double option) { return bit_cast<int64_t>(option) > 0; }

// Returns 1 / x to the last bits of a double, for an x > 0 that is normal, as its reciprocal is. A
// division would call a function, for which the kernels have no registers. The first guess is that
// of x = m * 2^e for an m in [1, 2), because x may be outside the range of floats.
FUSEDOPS_DEVICE double exact_reciprocal(double x) {
  constexpr int64_t kOne = 0x3ff0000000000000, kExponent = 0x7ff0000000000000;
  const int64_t bits = bit_cast<int64_t>(x), exponent = bits & kExponent;
  const auto m = static_cast<float>(bit_cast<double>(bits - exponent + kOne));
  double y = device::reciprocal(m) * bit_cast<double>(2 * kOne - exponent);
#pragma unroll
  for (int i = 0; i < 2; ++i) y = device::fma(y, device::fma(-x, y, 1.0), y);
  return y;
}

// Returns log(1 + x) for an x in [0, 1]: the logarithm of the rounded sum, corrected by what the
// rounding dropped.
FUSEDOPS_DEVICE double exact_log1p(double x) {
  const double sum = 1 + x;
  return device::log(sum) + (x - (sum - 1)) * exact_reciprocal(sum);
}

// Returns the logit of the element x in double. A soft cap's tanh is computed with expm1, so that
// logits far below the cap keep their digits.
FUSEDOPS_DEVICE double exact_logit(const Logits& logits, double x) {
  x *= logits.scale;
  if (logits.softcap == 0) return x;
  const double e = ::expm1(-2 * std::fabs(x) * exact_reciprocal(logits.softcap));
  return std::copysign(logits.softcap * e * exact_reciprocal(2 + e), x);
}

// Computes the logits of elements, as factor * value. If the logits only have a positive scale,
// `value` is the element and `factor` the scale, so that factor * value - shift is rounded once.
// Otherwise `value` is the logit, and `factor` is 1.
template <class T>
struct LogitMap {
  using Acc = AccumulatorOf<T>;
  Acc scale, cap, factor;
  bool is_capped, is_linear;

  FUSEDOPS_DEVICE explicit LogitMap(const Logits& logits)
      : scale(static_cast<Acc>(logits.scale)),
        cap(static_cast<Acc>(logits.softcap)),
        factor(1),
        is_capped(is_positive(logits.softcap)),
        is_linear(is_factor(logits)) {
    if (is_linear) factor = scale;
  }

  // Returns whether the logits are a positive multiple of the elements. Returns false also if the
  // scale is so small that it might be 0 as a float, since the product of 0 and -inf would be NaN.
  static FUSEDOPS_DEVICE bool is_factor(const Logits& logits) {
    constexpr int64_t kLeast = 0x39b4484bfeebc2a0;  // 1e-30
    return !is_positive(logits.softcap) && bit_cast<int64_t>(logits.scale) > kLeast;
  }

  // Returns the part of the scale that its rounding to Acc dropped, relative to the rounded scale.
  // Returns 0 with a soft cap, and for scales within 1e-30 of 0, whose reciprocal might be
  // infinite. A double drops nothing.
  static FUSEDOPS_DEVICE Acc relative_rounding(const Logits& logits) {
    if constexpr (sizeof(Acc) == sizeof(double)) return 0;
    const auto rounded = static_cast<Acc>(logits.scale);
    const bool is_exact = rounded == logits.scale || std::fabs(rounded) < Acc(1e-30);
    if (logits.softcap != 0 || is_exact) return 0;
    return static_cast<Acc>(logits.scale - rounded) * device::reciprocal(rounded);
  }

  // argument() returns the argument of the soft cap's tanh, and capped() the logit.
  FUSEDOPS_DEVICE Acc argument(Acc x) const { return scale * x * device::reciprocal(cap); }
  FUSEDOPS_DEVICE Acc capped(Acc x) const { return cap * hyperbolic_tangent<T>(argument(x)); }

  // Returns the derivative of the soft cap, 1 - tanh^2, in a form that keeps its digits near the
  // cap.
  FUSEDOPS_DEVICE Acc slope(Acc x) const {
    const Acc e = exponential<T>(-2 * std::fabs(argument(x))), inverse = device::reciprocal(1 + e);
    return 4 * e * inverse * inverse;
  }
};

}  // namespace fusedops::cuda
