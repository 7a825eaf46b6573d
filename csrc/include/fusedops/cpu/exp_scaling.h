// Raised exponentials (exp.h) divided by their sum, without a denormal on the way to a result that
// is none.
//
// Nearly always one or two products give a result. Where one of those would be denormal, the same
// steps are taken in a type with more exponents, each rounded to what the narrower one holds: so
// results have the bits that plain arithmetic gives them, and what comes out as 0, or as a normal
// number, has met no denormal.
#pragma once

#include "fusedops/cpu/exp.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// Half of the least number that Stored holds: this and less rounds to 0.
template <class Stored>
constexpr double kVanishes = 0x1p-150;
template <>
constexpr double kVanishes<BFloat16> = 0x1p-134;
template <>
constexpr double kVanishes<Half> = 0x1p-25;

// The magnitude of a number or of lanes. A sum is negative where a gradient divides it.
template <class V>
FUSEDOPS_INLINE V magnitude(V x) {
  return x < 0 ? -x : x;
}

constexpr double kLeastFloat = 0x1p-126, kLeastDouble = 0x1p-1022;  // that are normal

// A float result has two products, of which the second is fused into the sum where that can be:
// then it is none that could be denormal.
template <class Out>
constexpr bool kTwoParts = sizeof(Out) == sizeof(float);
#if defined(__FP_FAST_FMAF)
constexpr bool kFuses = true;
#else
constexpr bool kFuses = false;
#endif

// What multiplies the exponentials of a chunk: factor / sum, rounded as seldom as what is stored
// can tell. A float comes in two parts; a double, where speed matters less, is multiplied by
// factor, `high`, and divided by sum, `low`. Where an exponential is between 0 and `least` steps
// are needed.
template <class Out, class C = Compute<Out>>
struct Scaling {
  double scale;
  C high, low, least;

  FUSEDOPS_INLINE Scaling(double factor, double sum) : scale(factor / sum) {
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
        C(kFuses || rest == 0 ? kAlmostLeast * magnitude(inverse) : kAlmostLeast / magnitude(rest));
  }

 private:
  // All bits of a scale from here on fit into normal floats.
  static constexpr double kAllBitsFit = 0x1p-73, kAlmostLeast = kLeastFloat * 1.0001;

  // The largest exponential is 1: all results vanish, or steps are needed.
  static FUSEDOPS_NOINLINE C least_of_tiny(double scale) {
    return scale <= 0x1p-150 / kRaised<C> ? C(0) : kInfinity<C>;
  }
};
template <>
struct Scaling<double> {
  double high, low, least;

  FUSEDOPS_INLINE Scaling(double factor, double sum)
      : high(factor), low(sum), least(factor == 0 ? 0 : least_of(factor, magnitude(sum))) {}

 private:
  static FUSEDOPS_INLINE double least_of(double factor, double sum) {
    if (factor < 0x1p-500) return kInfinity<double>;
    const double one = kRaised<double>;
    return kLeastDouble * 1.0001 * (sum > one ? sum : one) / factor;
  }
};

template <class Out, class C>
FUSEDOPS_INLINE Tile<C> scaled(Tile<C> e, const Scaling<Out>& by) {
  if constexpr (sizeof(Out) == sizeof(double)) return e * by.high / by.low;
  if constexpr (sizeof(Out) == sizeof(float)) return e * by.high + e * by.low;
  return e * by.high;
}

// Whether a lane is below `high`.
FUSEDOPS_INLINE bool any_below(Vec<float> x, float high) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(high), _CMP_LT_OQ) != 0;
#else
  return any(x < high);
#endif
}
FUSEDOPS_INLINE bool any_below(Vec<double> x, double high) { return any(x < high); }

// Whether a lane is between 0 and `high`.
FUSEDOPS_INLINE bool any_between(Tile<float> x, Tile<float> high) {
#if defined(__AVX512F__)
  unsigned found = 0;
  for (int half = 0; half < 2; ++half) {
    const __mmask16 positive = _mm512_cmp_ps_mask((__m512)x.v[half], __m512{}, _CMP_GT_OQ);
    found |= _mm512_mask_cmp_ps_mask(positive, (__m512)x.v[half], (__m512)high.v[half], _CMP_LT_OQ);
  }
  return found != 0;
#else
  return any(((x.v[0] > 0) & (x.v[0] < high.v[0])) | ((x.v[1] > 0) & (x.v[1] < high.v[1])));
#endif
}
FUSEDOPS_INLINE bool any_between(Tile<double> x, Tile<double> high) {
  return any(((x.v[0] > 0) & (x.v[0] < high.v[0])) | ((x.v[1] > 0) & (x.v[1] < high.v[1])));
}

// --- steps --------------------------------------------------------------------------------------

FUSEDOPS_INLINE Wide<float> operator*(Wide<float> a, Wide<float> b) {
  return {{a.v[0] * b.v[0], a.v[1] * b.v[1]}};
}
FUSEDOPS_INLINE Wide<float> operator+(Wide<float> a, Wide<float> b) {
  return {{a.v[0] + b.v[0], a.v[1] + b.v[1]}};
}
FUSEDOPS_INLINE Wide<float> operator-(Wide<float> a, Wide<float> b) {
  return {{a.v[0] - b.v[0], a.v[1] - b.v[1]}};
}

// Doubles as what a float holds of them, rounded to a multiple of 2^-149 where that is denormal.
FUSEDOPS_INLINE Wide<float> rounded_to_float(Wide<float> wide) {
  constexpr double kOntoMultiples = 0x1.8p-97;
  Wide<float> large;
  for (int i = 0; i < 2; ++i) {
    const Vec<double> x = wide.v[i];
    const auto is_tiny = (x < kLeastFloat) & (x > -kLeastFloat);
    large.v[i] = is_tiny ? Vec<double>{} : x;
    wide.v[i] = is_tiny ? (x + kOntoMultiples) - kOntoMultiples : Vec<double>{};
  }
  return wide + widened(narrowed(large));
}

// The products of exponentials and unraised scales.
template <class Out>
FUSEDOPS_INLINE Vec<float> scaled_in_steps(Vec<float> e, Wide<float> scale) {
  const Wide<float> unit{{broadcast(1.0 / kRaised<float>), broadcast(1.0 / kRaised<float>)}};
  const Wide<float> x = rounded_to_float(widened(e) * unit), high = rounded_to_float(scale);
  Wide<float> result = rounded_to_float(x * high);
  if constexpr (kTwoParts<Out>) {
    const Wide<float> rest = x * rounded_to_float(scale - high);
    result = result + (kFuses ? rest : rounded_to_float(rest));
  }
  for (auto& vec : result.v) vec = magnitude(vec) <= kVanishes<Out> ? Vec<double>{} : vec;
  return narrowed(result);
}

// double has no wider type: its exponentials stay raised until it is known which result is
// denormal, and they do as they are then.
template <class Out>
FUSEDOPS_INLINE Vec<double> scaled_in_steps(Vec<double> e, Vec<double> factor, Vec<double> sum) {
  constexpr double kOntoMultiples = 0x1p-958;  // 2^64 times the least normal number
  constexpr double kRaisedLeast = 0x1p-958, kRaisedVanishes = 0x1p-1011;
  const Vec<double> plain_sum = sum * (1 / kRaised<double>);
  e = e < kRaisedLeast ? (e + kOntoMultiples) - kOntoMultiples : e;
  // Half of what vanishes at once, and so without underflow in the product.
  const Vec<double> none = 0.5 * kRaisedVanishes * magnitude(plain_sum) / factor;
  e = e < none ? Vec<double>{} : e;
  const Vec<double> result = e * factor / plain_sum;
  const Vec<double> size = magnitude(result);
  const auto is_denormal = (size >= kRaisedVanishes * 0.999) & (size < kRaisedLeast);
  if (any(is_denormal)) return e * (1 / kRaised<double>)*factor / plain_sum;
  return (size < kRaisedLeast ? Vec<double>{} : result) * (1 / kRaised<double>);
}

template <class Out>
FUSEDOPS_NOINLINE Tile<float> scaled_in_steps(Tile<float> e, const Scaling<Out>& by) {
  const Vec<double> scale = broadcast(by.scale * kRaised<float>);
  for (auto& vec : e.v) vec = scaled_in_steps<Out>(vec, Wide<float>{{scale, scale}});
  return e;
}
template <class Out>
FUSEDOPS_NOINLINE Tile<double> scaled_in_steps(Tile<double> e, const Scaling<Out>& by) {
  for (auto& vec : e.v) {
    vec = scaled_in_steps<Out>(vec, broadcast(by.high), broadcast(by.low));
  }
  return e;
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
