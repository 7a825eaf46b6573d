// exp of a vector of values <= 0, to the precision of what it will be stored as.
//
// x = n ln2 + r with |r| <= ln2 / 2, exp(r) by a polynomial that is exactly 1 at 0, then scaled by
// 2^n. The polynomials are minimax fits of (exp(r) - 1) / r, highest power first. exp(-inf) is 0
// and NaN stays NaN. What underflows ends in denormals, correctly rounded where the hardware
// scales.
#pragma once

#include "fusedops/cpu/vec.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// For results stored as float: 0.7 ulp. ln2 in two parts (Cody and Waite); fit 7.8e-9.
struct ExpFloat {
  static constexpr float kLowest = -104.0f;  // exp rounds to 0 below
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2[] = {0.693359375f, -2.12194440e-4f};
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kPolynomial[] = {
      1.39261835877134945e-3f,
      8.36317905272257737e-3f,
      4.16665546172045742e-2f,
      1.66665769896987757e-1f,
      0.5f,
      1.0f};
};

// For results stored in 16 bits: 7e-6, 3 % of half a float16 ulp, for two thirds of the
// instructions.
struct Exp16Bit : ExpFloat {
  static constexpr float kLn2[] = {0.69314718055994531f};
  static constexpr float kPolynomial[] = {
      4.18338375703e-2f, 1.67670319955e-1f, 4.99997488895e-1f, 9.99984922594e-1f};
};

// 1.3e-17, under 0.7 ulp.
struct ExpDouble {
  static constexpr double kLowest = -746.0;
  static constexpr double kLog2E = 1.44269504088896340736;
  static constexpr double kLn2[] = {6.93145751953125e-1, 1.42860682030941723212e-6};
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kPolynomial[] = {
      2.51003854955103191e-8,
      2.76200884454097482e-7,
      2.75572684599970648e-6,
      2.48015212959543751e-5,
      1.98412698630536169e-4,
      1.38888889172137169e-3,
      8.33333333333006183e-3,
      4.16666666666241279e-2,
      1.66666666666666675e-1,
      0.5,
      1.0};
};

template <class Stored>
struct ExpFor {
  using type = Exp16Bit;
};
template <>
struct ExpFor<float> {
  using type = ExpFloat;
};
template <>
struct ExpFor<double> {
  using type = ExpDouble;
};

// value * 2^n for integral n <= 0 held in a floating-point vector.
#if defined(__AVX512F__)
FUSEDOPS_INLINE Vec<float> scale_by_power(Vec<float> value, Vec<float> n) {
  return (Vec<float>)_mm512_scalef_ps((__m512)value, (__m512)n);
}
FUSEDOPS_INLINE Vec<double> scale_by_power(Vec<double> value, Vec<double> n) {
  return (Vec<double>)_mm512_scalef_pd((__m512d)value, (__m512d)n);
}
#else
// In two steps, so that neither factor underflows before the product does.
FUSEDOPS_INLINE Vec<float> scale_by_power(Vec<float> value, Vec<float> n) {
  const VecI32 power = __builtin_convertvector(n, VecI32);
  const VecI32 half = power >> 1;
  return value * (Vec<float>)((half + 127) << 23) * (Vec<float>)((power - half + 127) << 23);
}
FUSEDOPS_INLINE Vec<double> scale_by_power(Vec<double> value, Vec<double> n) {
  const VecI64 power = __builtin_convertvector(n, VecI64);
  const VecI64 half = power >> 1;
  return value * (Vec<double>)((half + 1023) << 52) * (Vec<double>)((power - half + 1023) << 52);
}
#endif

// Stored: the type that results computed from this exp are rounded to.
template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Vec<C> exp_nonpositive(Vec<C> x) {
  using K = typename ExpFor<Stored>::type;
  x = larger(x, broadcast(K::kLowest));  // NaN stays
  const Vec<C> n = (x * K::kLog2E + K::kRound) - K::kRound;
  Vec<C> r = x;
  for (const C part : K::kLn2) r -= n * part;
  Vec<C> p = broadcast(K::kPolynomial[0]);
  for (int i = 1; i < int(sizeof(K::kPolynomial) / sizeof(C)); ++i) p = p * r + K::kPolynomial[i];
  return scale_by_power(p * r + C(1), n);
}

template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> exp_nonpositive(Tile<C> x) {
  return {{exp_nonpositive<Stored>(x.v[0]), exp_nonpositive<Stored>(x.v[1])}};
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
