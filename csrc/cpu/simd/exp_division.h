// Divides scaled exponentials (exp.h) by their sum. No intermediate value is denormal unless the
// result is.
//
// Nearly always one or two multiplications suffice (divided()). If one of their products would be
// denormal, exponentials are divided "in steps": by operations on numbers that are not denormal,
// which round every value as the multiplications would. The results then have the bits that the
// multiplications would give, and a result that is 0 or a normal number involves no denormal.
#pragma once

#include "cpu/simd/exp.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Values up to this one round to 0: it is half of the smallest positive number of type Stored.
template <class Stored>
constexpr double kVanishes = 0x1p-150;
template <>
constexpr double kVanishes<BFloat16> = 0x1p-134;
template <>
constexpr double kVanishes<Half> = 0x1p-25;

// Returns the absolute value of a number, or of each lane. Divisor (below) needs it because its
// `sum` may be negative: the gradient of softmax_stats calls softmax_apply with 1 / gradient as the
// sum.
template <class V>
FUSEDOPS_INLINE V magnitude(V x) {
  return x < 0 ? -x : x;
}

constexpr double kLeastFloat = 0x1p-126, kLeastDouble = 0x1p-1022;  // smallest normal numbers

// Whether a result is the sum of two products (Divisor), as only float results are. With FMA the
// second product is fused into the sum and so cannot be denormal.
template <class Out>
constexpr bool kTwoParts = sizeof(Out) == sizeof(float);

// Holds factor / sum, by which exponentials are multiplied, as precisely as a result of type Out
// can show. For float results it is the sum of two floats, `high` and `low`. For 16-bit results it
// is `high` alone, and `low` is 0. For double, where speed matters less, an exponential is
// multiplied by `high`, the factor, and divided by `low`, the sum. An exponential between 0 and
// `least` must be divided in steps (see the top of this file), for which `scale`, where it exists,
// is factor / sum in double.
template <class Out, class C = Compute<Out>>
struct Divisor {
  double scale;
  C high, low, least;

  FUSEDOPS_INLINE Divisor(double factor, double sum) : scale(factor / sum) {
    if (__builtin_expect(magnitude(scale) < kAllBitsFit, false)) {
      high = low = 0;
      least = least_of_tiny(magnitude(scale));
      return;
    }
    high = C(scale);
    const double rest = kTwoParts<Out> ? scale - double(high) : 0;
    low = C(rest);
    const double inverse = factor == 1 ? sum : sum / factor;
    least =
        C(kFusesProducts || rest == 0 ? kAlmostLeast * magnitude(inverse)
                                      : kAlmostLeast / magnitude(rest));
  }

 private:
  // From this scale on, all 53 bits of the scale fit into two normal floats (2^-73 * 2^-53 =
  // 2^-126).
  static constexpr double kAllBitsFit = 0x1p-73, kAlmostLeast = kLeastFloat * 1.0001;

  // Returns `least` for a scale below kAllBitsFit: 0 if all results round to 0 (exponentials are at
  // most kExpScale), and otherwise infinity, so that all exponentials are divided in steps.
  static FUSEDOPS_NOINLINE C least_of_tiny(double scale) {
    return scale <= 0x1p-150 / kExpScale<C> ? C(0) : kInfinity<C>;
  }
};
template <>
struct Divisor<double> {
  double high, low, least;

  FUSEDOPS_INLINE Divisor(double factor, double sum)
      : high(factor), low(sum), least(factor == 0 ? 0 : least_of(factor, magnitude(sum))) {}

 private:
  // Returns the exponential from which on neither the product with the factor nor the quotient is
  // denormal. With a tiny factor all exponentials are divided in steps.
  static FUSEDOPS_INLINE double least_of(double factor, double sum) {
    if (factor < 0x1p-500) return kInfinity<double>;
    const double one = kExpScale<double>;
    return kLeastDouble * 1.0001 * (sum > one ? sum : one) / factor;
  }
};

// Divides scaled exponentials, none of which is between 0 and by.least. `by` is a Divisor or, with
// a divisor for each lane, ColumnFactors (softmax/spatial.h).
template <class Out, class C, class By>
FUSEDOPS_INLINE Tile<C> divided(Tile<C> e, const By& by) {
  if constexpr (sizeof(Out) == sizeof(double)) return e * by.high / by.low;
  if constexpr (sizeof(Out) == sizeof(float)) return e * by.high + e * by.low;
  return e * by.high;
}

template <class C>
FUSEDOPS_INLINE bool any_below(Vec<C> x, C high) {
  return AnyTrue(LessThan(x, high));
}
template <class C>
FUSEDOPS_INLINE bool any_between(Tile<C> x, Tile<C> high) {
  return AnyTrue(BetweenZeroAnd(x.v[0], high.v[0]) | BetweenZeroAnd(x.v[1], high.v[1]));
}

// --- steps --------------------------------------------------------------------------------------

// Rounds doubles to float precision: to a multiple of 2^-149 where a float would be denormal.
FUSEDOPS_INLINE Wide<float> rounded_to_float(Wide<float> wide) {
  constexpr double kOntoMultiples = 0x1.8p-97;  // adding it rounds to a multiple of 2^-149
  Wide<float> large;
  for (int i = 0; i < 2; ++i) {
    const Vec<double> x = wide.v[i];
    const auto is_tiny = (x < kLeastFloat) & (x > -kLeastFloat);
    large.v[i] = is_tiny ? Vec<double>{} : x;
    wide.v[i] = is_tiny ? (x + kOntoMultiples) - kOntoMultiples : Vec<double>{};
  }
  return wide + promoted(demoted(large));
}

// Divides in steps, without FMA: multiplies scaled exponentials by `scale` / kExpScale.
template <class Out, bool kFuses = kFusesProducts>
struct InSteps {
  Wide<float> scale;

  FUSEDOPS_INLINE Vec<float> operator()(Vec<float> e) const {
    const Wide<float> unit{{Set(1.0 / kExpScale<float>), Set(1.0 / kExpScale<float>)}};
    const Wide<float> x = rounded_to_float(promoted(e) * unit), high = rounded_to_float(scale);
    Wide<float> result = rounded_to_float(x * high);
    if constexpr (kTwoParts<Out>) {
      result = result + rounded_to_float(x * rounded_to_float(scale - high));
    }
    for (auto& vec : result.v) vec = magnitude(vec) <= kVanishes<Out> ? Vec<double>{} : vec;
    return demoted(result);
  }
};

// Divides in steps, with FMA: floats that are multiplied by powers of 2 take the place of doubles,
// which saves most of the time. Both factors are 2^48 times as large, and products 2^96 times.
// kLeastProduct is 2^96 times the smallest normal number. A product that is added to it is rounded
// as a denormal number would be, and the bits of the sum minus those of kLeastProduct are the bits
// of that denormal number.
template <class Out>
struct InSteps<Out, true> {
  Vec<float> high, low;
  VecI32 sign;

  FUSEDOPS_INLINE InSteps(Wide<float> scale) {
    const Wide<float> up{{Set(0x1p48), Set(0x1p48)}};
    const Wide<float> size{{magnitude(scale.v[0]), magnitude(scale.v[1])}};
    const Wide<float> rounded = rounded_to_float(size);
    high = demoted(rounded * up);
    low = demoted(rounded_to_float(size - rounded) * up);
    sign = (VecI32)demoted(scale) & int32_t(0x80000000);
  }

  FUSEDOPS_INLINE Vec<float> operator()(Vec<float> e) const {
    // These are 2^48 and 2^96 times kLeastFloat.
    constexpr float kLeastFactor = 0x1p-78f, kLeastProduct = 0x1p-30f;
    Vec<float> x = e * (0x1p48f / kExpScale<float>);
    x = x < kLeastFactor ? (x + kLeastFactor) - kLeastFactor : x;
    // The compiler fuses a product into a sum only if the product has no other use, so x * high is
    // computed twice.
    const Vec<float> product = Opaque(x) * high;
    Vec<float> normal = product, beside_least = x * high + kLeastProduct;
    if constexpr (kTwoParts<Out>) {
      normal = Opaque(x) * low + Opaque(product);
      beside_least = x * low + Opaque(beside_least);
    }
    const VecI32 denormal = (VecI32)beside_least - (VecI32)Set(kLeastProduct);
    const auto is_denormal = product < kLeastProduct;
    normal = is_denormal ? Vec<float>{} : normal;
    const VecI32 result = is_denormal ? denormal : (VecI32)(normal * 0x1p-96f);
    return (Vec<float>)(result | sign);
  }
};

// double has no wider type, so its exponentials stay scaled until it is known which results are
// denormal. If any is, the vector is computed unscaled.
template <>
struct InSteps<double, kFusesProducts> {
  Vec<double> factor, sum;

  FUSEDOPS_INLINE Vec<double> operator()(Vec<double> e) const {
    constexpr double kOntoMultiples = 0x1p-958;  // adding it rounds to a multiple of 2^(64 - 1074)
    // These are 2^64 times the smallest normal number, and 2^64 times the largest number that
    // rounds to 0.
    constexpr double kScaledLeast = 0x1p-958, kScaledVanishes = 0x1p-1011;
    const Vec<double> plain_sum = sum * (1 / kExpScale<double>);
    e = e < kScaledLeast ? (e + kOntoMultiples) - kOntoMultiples : e;
    // Exponentials below `none` give at most half of kScaledVanishes. They are set to 0 before the
    // product, which would underflow.
    const Vec<double> none = 0.5 * kScaledVanishes * magnitude(plain_sum) / factor;
    e = e < none ? Vec<double>{} : e;
    const Vec<double> result = e * factor / plain_sum;
    const Vec<double> size = magnitude(result);
    const auto is_denormal = (size >= kScaledVanishes * 0.999) & (size < kScaledLeast);
    if (AnyTrue(is_denormal)) return e * (1 / kExpScale<double>)*factor / plain_sum;
    return (size < kScaledLeast ? Vec<double>{} : result) * (1 / kExpScale<double>);
  }
};

template <class Out>
FUSEDOPS_INLINE InSteps<Out> in_steps_by(const Divisor<Out>& by) {
  if constexpr (sizeof(Out) == sizeof(double)) {
    return {Set(by.high), Set(by.low)};
  } else {
    const Vec<double> scale = Set(by.scale * kExpScale<float>);
    return {Wide<float>{{scale, scale}}};
  }
}

// Divides tiles of scaled exponentials: in steps if any exponential of the tile requires it.
template <class Out, class C = Compute<Out>>
class DivisionAsNeeded {
 public:
  FUSEDOPS_INLINE explicit DivisionAsNeeded(const Divisor<Out>& by)
      : by_(by), in_steps_(in_steps_by(by)) {}

  FUSEDOPS_INLINE Tile<C> operator()(Tile<C> e) const {
    const bool needs_steps = any_between(e, Broadcast(by_.least));
    return __builtin_expect(needs_steps, false) ? in_steps(e) : divided<Out>(e, by_);
  }

 private:
  FUSEDOPS_NOINLINE Tile<C> in_steps(Tile<C> e) const {
    for (auto& vec : e.v) vec = in_steps_(vec);
    return e;
  }

  Divisor<Out> by_;
  InSteps<Out> in_steps_;
};

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
