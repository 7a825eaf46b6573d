// Computes tanh of a vector, to the precision of the type of the vector's lanes.
//
// With d = 1 - exp(-2 |x|), tanh |x| = d / (2 - d). With -2 |x| = n ln2 + r, d is computed as
// (1 - 2^n) - 2^n (exp(r) - 1), where the polynomials of exp.h give exp(r) - 1. Small numbers keep
// their digits, because n is 0 for them. The error is below 2.8 ulp. tanh(-x) is -tanh(x), zeros
// included, infinities become 1 and -1, and NaN stays NaN.
#pragma once

#include <limits>
#include <type_traits>

#include "cpu/simd/exp.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Returns exp(r) - 1 for |r| <= ln2 / 2. The first term is added last, as r itself, which is exact.
template <class C>
FUSEDOPS_INLINE Vec<C> small_expm1(Vec<C> r) {
  constexpr auto& kPolynomial = ExpFor<C>::type::kPolynomial;
  constexpr int kLast = sizeof(kPolynomial) / sizeof(C) - 1;
  static_assert(kPolynomial[kLast] == 1);
  Vec<C> p = Set(kPolynomial[0]);
  for (int i = 1; i < kLast; ++i) p = p * r + kPolynomial[i];
  return p * r * r + r;
}

// Returns 1 - exp(x) for x <= 0. x is no less than exp.h's kLowestNormal, or is NaN.
template <class C>
FUSEDOPS_INLINE Vec<C> one_minus_exp(Vec<C> x) {
  using K = typename ExpFor<C>::type;
  constexpr bool kIsDouble = sizeof(C) == sizeof(double);
  constexpr int kDigits = kIsDouble ? 52 : 23, kExponentOf1 = kIsDouble ? 1023 : 127;
  // The last bits of the sum are those of n, and the shift drops the others.
  const Vec<C> sum = x * K::kLog2E + K::kRound, n = sum - K::kRound;
  const auto power = (Vec<C>)(((Lanes<C>)sum + kExponentOf1) << kDigits);
  Vec<C> r = x;
  for (const C part : K::kLn2) r -= n * part;
  return (C(1) - power) - power * small_expm1<C>(r);
}

template <class C>
FUSEDOPS_INLINE Vec<C> tanh_of(Vec<C> x) {
  using Bits = Lanes<C>;
  constexpr bool kIsDouble = sizeof(C) == sizeof(double);
  constexpr auto kSign =
      std::numeric_limits<std::conditional_t<kIsDouble, int64_t, int32_t>>::min();
  constexpr C kLimit = kIsDouble ? 20 : 10;  // tanh of a larger number rounds to 1
  const Bits sign = (Bits)x & kSign;
  const auto magnitude = (Vec<C>)((Bits)x ^ sign);
  const Vec<C> y = (magnitude > kLimit ? Set(kLimit) : magnitude) * C(-2);  // a NaN stays
  const Vec<C> d = one_minus_exp<C>(y);
  return (Vec<C>)((Bits)(d / (C(2) - d)) | sign);
}

template <class C>
FUSEDOPS_INLINE Tile<C> tanh_of(Tile<C> x) {
  return {{tanh_of<C>(x.v[0]), tanh_of<C>(x.v[1])}};
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
