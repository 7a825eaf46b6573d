// Computes exponentials of which only the sum is wanted. For floats, a shorter polynomial than that
// of exp.h is precise enough for this. Unlike in exp.h, x may be positive. If an exponential
// overflows, the sum is infinite or NaN, for which the caller checks.
#pragma once

#include "cpu/simd/exp.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Results have an error of 9.5e-8 (1.6 units of roundoff), and take six sevenths of ExpFloat's
// instructions. Without FMA, ln2 is split as in ExpFloat. With FMA the product n * ln2 is not
// rounded, and ln2 as a single constant, as in Exp16Bit, leaves an error of n * 2e-9.
struct ExpFloatSum : std::conditional_t<kFusesProducts, Exp16Bit, ExpFloat> {
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
  // exp(x) is 2^n * exp(r), and n + 127 (n + 1023 for doubles) become exponent bits. With x =
  // kInfinite these are the bits of infinity. A larger n would reach the sign bit.
  constexpr C kInfinite = sizeof(C) == sizeof(double) ? C(709.9) : C(88.9);
  if constexpr (!kHasMulByPow2) {
    for (auto& vec : x.v) vec = Min(vec, Set(kInfinite));
  }
  return exp_or_zero<SumOf<C>>(x);
}

// Whether sums may add powers of 2 in place of exponentials. If MulByPow2() is an instruction,
// which rounds the exponent down, this saves a sixth of the instructions. The caller computes the
// exponent as a product minus a number, which is precise only if the compiler fuses the two; it
// does so only where it optimises and inlines.
#if defined(FUSEDOPS_SANITIZED) || !defined(__OPTIMIZE__)
constexpr bool kHasExp2 = false;
#else
constexpr bool kHasExp2 = kHasMulByPow2;
#endif
// Holds the constants of exp2_or_infinity(). The polynomial is a minimax fit of 2^(t - 0.5) for
// 0 <= t < 1, with an error of 7.5e-8, and of 1.7e-7 including the rounding of its evaluation.
struct Exp2FloatSum {
  static constexpr float kLowest = -125.0f;  // if x <= kLowest, the result may be denormal
  static constexpr float kPolynomial[] = {1.3276472454890609e-3f, 6.356423255056143e-3f,
                                          3.947516903281212e-2f,  1.6981424391269684e-1f,
                                          4.9013322591781616e-1f, 7.071067094802856e-1f};
};

// Returns 2^(x - 0.5), 0 where that would be denormal, and infinity or NaN where it overflows.
FUSEDOPS_INLINE Tile<float> exp2_or_infinity(Tile<float> x) {
  using K = Exp2FloatSum;
  for (auto& vec : x.v) {
    const auto above = NotLessEqual(vec, K::kLowest);  // true for NaN
    const Vec<float> t = Fraction(vec);
    Vec<float> p = Set(K::kPolynomial[0]);
    for (int i = 1; i < 6; ++i) p = p * t + K::kPolynomial[i];
    vec = MulByPow2<0>(above, p, vec);
  }
  return x;
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
