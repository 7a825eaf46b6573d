// Computes the logarithm of sums of exponentials, one vector of doubles at a time.
//
// With x = m 2^n and m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(t), where t = (m - 1) / (m + 1).
// For |t| < 0.172 the truncated series of atanh has a relative error below 3e-14. Sums are normal
// numbers, 0, infinite or NaN; log(0) is -inf, and log(NaN) is NaN.
#pragma once

#include "cpu/simd/tile.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Returns 2 atanh(t) - 2 t.
FUSEDOPS_INLINE Vec<double> twice_atanh_rest(Vec<double> t) {
  const Vec<double> square = t * t;
  Vec<double> series = Set(2.0 / 17);
  for (int odd = 15; odd >= 3; odd -= 2) series = series * square + 2.0 / odd;
  return series * square * t;
}

FUSEDOPS_INLINE Vec<double> log_of(Vec<double> x) {
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  // `above` is how far x's bits are above those of sqrt(1/2). Its exponent bits are n.
  const VecI64 above = (VecI64)x - 0x3fe6a09e667f3bcd;
  const VecI64 power = above >> 52;
  const Vec<double> m = (Vec<double>)((VecI64)x - (power << 52));
  // Adding a 51-bit integer to the bits of 1.5 * 2^52 adds it to the number.
  constexpr double kRound = 6755399441055744.0;
  const Vec<double> n = (Vec<double>)(power + (VecI64)Set(kRound)) - kRound;
  const Vec<double> t = (m - 1.0) / (m + 1.0);
  const Vec<double> low = twice_atanh_rest(t) + n * kLn2Low;
  const Vec<double> result = n * kLn2High + (2.0 * t + low);
  // This is the result if x is 0, infinite or NaN.
  const Vec<double> special = x == 0.0 ? Set(-kInfinity<double>) : x;
  return (x > 0.0) & (x < kInfinity<double>) ? result : special;
}

// Returns the logarithm of a sum, for results that are stored as Out. The error of log_of() would
// show in a double, so for doubles the C library computes the logarithm.
template <class Out>
FUSEDOPS_INLINE double log_of_sum(double sum) {
  if constexpr (sizeof(Out) == sizeof(double)) return __builtin_log(sum);
  return log_of(Set(sum))[0];
}
template <class Out>
FUSEDOPS_INLINE Vec<double> log_of_sum(Vec<double> sum) {
  if constexpr (sizeof(Out) < sizeof(double)) return log_of(sum);
  for (int i = 0; i < kLanes<double>; ++i) sum[i] = __builtin_log(sum[i]);
  return sum;
}

// Returns log(1 + x) for x in [0, 1], with a relative error below 2e-10 if Out is not double. The
// caller makes sure that x^2 is not denormal.
template <class Out>
FUSEDOPS_INLINE Vec<double> log1p_of_fraction(Vec<double> x) {
  if constexpr (sizeof(Out) < sizeof(double)) {
    const Vec<double> t = x / (x + 2.0);
    return 2.0 * t + twice_atanh_rest(t);
  }
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_log1p(x[i]);
  return x;
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
