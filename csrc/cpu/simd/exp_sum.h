// exp of vectors of which only a sum is wanted. The values may be positive, so that they may
// overflow: whoever adds them up looks at the sum.
#pragma once

#include "cpu/simd/exp.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// With FMA n ln2 is not rounded, and one constant leaves an error of n 2e-9.
template <bool kFuses>
struct Ln2 {
  static constexpr float kLn2[] = {0.69314718055994531f};
};
template <>
struct Ln2<false> {
  static constexpr float kLn2[] = {0.693359375f, -2.12194440e-4f};
};

// An error of 9.5e-8, which is 1.6 units of roundoff, with six sevenths of the instructions.
struct ExpFloatSum : ExpFloat, Ln2<kFusesProducts> {
  using Ln2<kFusesProducts>::kLn2;
  static constexpr float kPolynomial[] = {
      8.290315046906471e-3f, 4.189793020486832e-2f, 1.666763573884964e-1f, 4.999915063381195e-1f,
      9.999997019767761e-1f};
};

// Stands where exp.h wants the type of what is stored.
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

// Returns exp(x), 0 where it would be denormal, and infinity or NaN where it overflows. From the
// power of 2 before the largest number on it may be infinite, too.
template <class C>
FUSEDOPS_INLINE Tile<C> exp_or_infinity(Tile<C> x) {
  // Here n + 127 (or 1023) are the exponent bits of infinity, and further up the sign bit.
  constexpr C kInfinite = sizeof(C) == sizeof(double) ? C(709.9) : C(88.9);
  if constexpr (!kHasMulByPow2) {
    for (auto& vec : x.v) vec = Min(vec, Set(kInfinite));
  }
  return exp_or_zero<SumOf<C>>(x);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
