// log of sums of exponentials, vectors of doubles at a time.
//
// x = m 2^n with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(t) with t = (m - 1) / (m + 1), by its
// series: |t| < 0.172, so that what is cut off is below 3e-14 of the result. Sums are normal
// numbers, 0, infinite or NaN; log of 0 is -inf, of a NaN a NaN.
#pragma once

#include "fusedops/cpu/vec.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

FUSEDOPS_INLINE Vec<double> log_of(Vec<double> x) {
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  // How far x lies above sqrt(1/2), in powers of two.
  const VecI64 above = (VecI64)x - 0x3fe6a09e667f3bcd;
  const VecI64 power = above >> 52;
  const Vec<double> m = (Vec<double>)((VecI64)x - (power << 52));
  // An integer of 51 bits added to the bits of 1.5 * 2^52 is added to the number.
  constexpr double kRound = 6755399441055744.0;
  const Vec<double> n = (Vec<double>)(power + (VecI64)broadcast(kRound)) - kRound;
  const Vec<double> t = (m - 1.0) / (m + 1.0), square = t * t;
  Vec<double> series = broadcast(2.0 / 17);
  for (int odd = 15; odd >= 3; odd -= 2) series = series * square + 2.0 / odd;
  const Vec<double> low = series * square * t + n * kLn2Low;
  const Vec<double> result = n * kLn2High + (2.0 * t + low);
  const Vec<double> special = x == 0.0 ? broadcast(-kInfinity<double>) : x;  // infinity or NaN
  return (x > 0.0) & (x < kInfinity<double>) ? result : special;
}

// For results stored as Out: a double shows every bit of it.
template <class Out>
FUSEDOPS_INLINE double log_of_sum(double sum) {
  if constexpr (sizeof(Out) == sizeof(double)) return __builtin_log(sum);
  return log_of(broadcast(sum))[0];
}
template <class Out>
FUSEDOPS_INLINE Vec<double> log_of_sum(Vec<double> sum) {
  if constexpr (sizeof(Out) < sizeof(double)) return log_of(sum);
  for (int i = 0; i < kLanes<double>; ++i) sum[i] = __builtin_log(sum[i]);
  return sum;
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
