// exp for sums: where only the sum of the exponentials is wanted, a shorter polynomial than exp.h's
// is precise enough for floats. Unlike in exp.h, x may be positive. If an exponential overflows,
// the sum is infinite or NaN, for which the caller checks.
#pragma once

#include "cpu/simd/exp.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Without FMA, ln2 is split as in ExpFloat. With FMA the product n * ln2 is not rounded, and ln2 as
// a single constant leaves an error of n * 2e-9.
template <bool kFuses>
struct Ln2 {
  static constexpr float kLn2[] = {0.69314718055994531f};
};
template <>
struct Ln2<false> {
  static constexpr float kLn2[] = {0.693359375f, -2.12194440e-4f};
};

// The error is 9.5e-8 (1.6 units of roundoff), with six sevenths of ExpFloat's instructions.
struct ExpFloatSum : ExpFloat, Ln2<kFusesProducts> {
  using Ln2<kFusesProducts>::kLn2;
  static constexpr float kPolynomial[] = {
      8.290315046906471e-3f, 4.189793020486832e-2f, 1.666763573884964e-1f, 4.999915063381195e-1f,
      9.999997019767761e-1f};
};

// Takes the place of the stored type in the functions of exp.h where only a sum is wanted.
template <class C>
struct SumOf {};
template <class C>
struct ComputeOf<SumOf<C>> {
  using type = C;
};
template <>
struct ExpFor<SumOf<float>> {
  using type = ExpFloatSum;
};
template <>
struct ExpFor<SumOf<double>> {
  using type = ExpDouble;
};

// Returns exp(x), 0 where it would be denormal, and infinity or NaN where it overflows. Without an
// instruction for MulByPow2(), results from 2^127.5 (2^1023.5 for doubles) on are infinite, too.
template <class C>
FUSEDOPS_INLINE Tile<C> exp_or_infinity(Tile<C> x) {
  // For this x, n + 127 (n + 1023 for doubles) are the exponent bits of infinity. A larger n would
  // reach the sign bit.
  constexpr C kInfinite = sizeof(C) == sizeof(double) ? C(709.9) : C(88.9);
  if constexpr (!kHasMulByPow2) {
    for (auto& vec : x.v) vec = Min(vec, Set(kInfinite));
  }
  return exp_or_zero<SumOf<C>>(x);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
