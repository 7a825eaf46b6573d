// Computes exp of a vector of values <= 0, to the precision of the type in which the result is
// stored.
//
// With x = n ln2 + r and |r| <= ln2 / 2, exp(r) is a polynomial that is exactly 1 at 0, and is then
// scaled by 2^n. The polynomials are minimax fits of (exp(r) - 1) / r, highest power first.
// exp(-inf) is 0, and NaN stays NaN.
//
// On many CPUs an operation on a vector with a denormal lane, as an operand or as the result, costs
// some hundred cycles. Therefore results that round to 0, such as those of masked columns, are set
// to 0 without being computed, and all others are "scaled": they stay multiplied by kExpScale =
// 2^kExpScaleBits until they are divided by their sum (exp_division.h). Nothing is denormal until
// then.
#pragma once

#include "cpu/simd/tile.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Results stored as float have an error of 0.7 ulp. ln2 is split into two constants (Cody and
// Waite), and the error of the polynomial is 7.8e-9.
struct ExpFloat {
  static constexpr float kLowest = -103.972084f;     // if x <= kLowest, exp(x) rounds to 0
  static constexpr float kLowestNormal = -87.3365f;  // if x < this, exp(x) is denormal
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

// Results stored in 16 bits have an error of 7e-6, which is 3 % of half a float16 ulp, and take two
// thirds of ExpFloat's instructions.
struct Exp16Bit : ExpFloat {
  static constexpr float kLn2[] = {0.69314718055994531f};
  static constexpr float kPolynomial[] = {
      4.18338375703e-2f, 1.67670319955e-1f, 4.99997488895e-1f, 9.99984922594e-1f};
};

// Results stored as double have an error below 0.7 ulp; the error of the polynomial is 1.3e-17.
struct ExpDouble {
  static constexpr double kLowest = -745.133219101942;
  static constexpr double kLowestNormal = -708.396418532264;
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

// This is the scale of "scaled" exponentials (see above): for any x whose exponential does not
// round to 0, exp(x) * 2^kExpScaleBits is a normal number.
template <class C>
constexpr int kExpScaleBits = 32;
template <>
constexpr int kExpScaleBits<double> = 64;
template <class C>
constexpr C kExpScale = sizeof(C) == sizeof(double) ? C(0x1p64) : C(0x1p32);

// Replaces the lanes outside of a mask by 0. If MulByPow2() is an instruction, which sets these
// lanes to 0 itself, nothing is done here.
template <class M, class V>
FUSEDOPS_INLINE V zero_outside(M mask, V x) {
  if constexpr (kHasMulByPow2) {
    return x;
  } else {
    return IfThenElseZero(mask, x);
  }
}
template <class V>
FUSEDOPS_INLINE V zero_outside(AllLanes, V x) {
  return x;
}

// Returns exp(x) * 2^kUp where `above` is true. Elsewhere the result is 0, or, without an
// instruction for MulByPow2(), that of x = 0.
template <class Stored, int kUp, class M, class C = Compute<Stored>>
FUSEDOPS_INLINE Vec<C> exp_where(M above, Vec<C> x) {
  using K = typename ExpFor<Stored>::type;
  // If MulByPow2() is an instruction, the polynomial's coefficients contain the factor 2^kUp.
  constexpr C kUnit = kHasMulByPow2 && kUp != 0 ? kExpScale<C> : C(1);
  x = zero_outside(above, x);
  const Vec<C> n = (x * K::kLog2E + K::kRound) - K::kRound;
  Vec<C> r = x;
  for (const C part : K::kLn2) r -= n * part;
  Vec<C> p = Set(K::kPolynomial[0] * kUnit);
  for (int i = 1; i < int(sizeof(K::kPolynomial) / sizeof(C)); ++i) {
    p = p * r + K::kPolynomial[i] * kUnit;
  }
  return MulByPow2<kUp>(above, p * r + kUnit, n);
}

// Returns exp(x) * 2^kUp, and 0 where x <= lowest or outside of `visible`. Lowers each lane of
// `least` to the result in this lane, unless the result is 0 there.
template <class Stored, int kUp, class Visible = AllLanes, class C = Compute<Stored>>
FUSEDOPS_INLINE Vec<C> exp_above(C lowest, Vec<C> x, Vec<C>& least, Visible visible = {}) {
  const auto above = NotLessEqual(x, lowest) & visible;  // true for a visible NaN
  const Vec<C> e = exp_where<Stored, kUp>(above, x);
  if constexpr (kHasMulByPow2) {
    least = MaskedMin(above, least, e);
  } else {
    // A lane outside of `above` holds the exponential of 0. Arguments are at most 0, so it is not
    // below any other exponential, and does not lower `least` wrongly.
    least = Min(least, e);
  }
  return zero_outside(above, e);
}

// Returns exp(x) * 2^kExpScaleBits, and 0 where exp(x) rounds to 0 or outside of `visible`. Lowers
// `least` as exp_above() does.
template <class Stored, class Visible = AllLanes, class C = Compute<Stored>>
FUSEDOPS_INLINE Vec<C> scaled_exp(Vec<C> x, Vec<C>& least, Visible visible = {}) {
  return exp_above<Stored, kExpScaleBits<C>>(ExpFor<Stored>::type::kLowest, x, least, visible);
}

template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> scaled_exp(Tile<C> x, Vec<C>& least, AllLanes = {}) {
  const Vec<C> first = scaled_exp<Stored>(x.v[0], least);
  return {{first, scaled_exp<Stored>(x.v[1], least)}};
}
template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> scaled_exp(Tile<C> x, Vec<C>& least, TileBits visible) {
  const Vec<C> first = scaled_exp<Stored>(x.v[0], least, visible.of_half<C>(0));
  return {{first, scaled_exp<Stored>(x.v[1], least, visible.of_half<C>(1))}};
}

// Arguments of at least kNarrow, such as those of a softmax whose logits differ by no more, have
// exponentials that are neither 0 nor denormal. narrow_exp() returns the bits of scaled_exp() for
// them, in three quarters of the instructions. No exponential is below kNarrowLeast.
template <class C>
constexpr C kNarrow = -64;
template <class C>
constexpr C kNarrowLeast = kExpScale<C> * C(0x1p-94);  // exp(-64) = 2^-92.3
template <class Stored, int kUp, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> narrow_exp(Tile<C> x) {
  for (auto& vec : x.v) vec = exp_where<Stored, kUp>(AllLanes{}, vec);
  return x;
}

template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> scaled_exp(Tile<C> x) {
  Vec<C> unused = {};
  return scaled_exp<Stored>(x, unused);
}

// Returns exp(x), and 0 where exp(x) would be denormal. It is meant for sums that contain an
// exponential of 1, beside which denormal numbers do not count.
template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> exp_or_zero(Tile<C> x) {
  Vec<C> unused = {};
  for (auto& vec : x.v) {
    vec = exp_above<Stored, 0>(ExpFor<Stored>::type::kLowestNormal, vec, unused);
  }
  return x;
}

// Returns exp(x), denormals included. No value is denormal before the last multiplication.
template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Vec<C> exp_nonpositive(Vec<C> x) {
  Vec<C> unused = {};
  return scaled_exp<Stored>(x, unused) * (1 / kExpScale<C>);
}

template <class Stored, class C = Compute<Stored>>
FUSEDOPS_INLINE Tile<C> exp_nonpositive(Tile<C> x) {
  return {{exp_nonpositive<Stored>(x.v[0]), exp_nonpositive<Stored>(x.v[1])}};
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
