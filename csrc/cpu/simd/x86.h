// Defines the primitives of processor.h on x86-64, with AVX-512, AVX2 or SSE2. No other file of
// cpu/ contains x86's intrinsics.
#pragma once

#include <immintrin.h>

#include "cpu/dispatch/isa.h"
#include "cpu/simd/portable.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

template <class V>
FUSEDOPS_INLINE V Opaque(V value) {
  asm("" : "+x"(value));
  return value;
}

FUSEDOPS_INLINE void FlushStream() { _mm_sfence(); }

// Whether LoadN() and StoreN() are masked instructions for columns of T. Otherwise they call
// memcpy, which costs short rows more than the arithmetic.
template <class T>
constexpr bool kHasMaskedLoads = kVectorBytes == 64 || (kVectorBytes == 32 && sizeof(T) >= 4);

// The names of intrinsics contain the width of the vector, which MM() and MM_WIDTH() add.
#if defined(__AVX512F__)
#define MM(name) _mm512_##name
#define MM_WIDTH(name) _mm512_##name##_si512
using Floats = __m512;
using Doubles = __m512d;
using Integers = __m512i;
using HalfIntegers = __m256i;
#elif defined(__AVX2__)
#define MM(name) _mm256_##name
#define MM_WIDTH(name) _mm256_##name##_si256
using Floats = __m256;
using Doubles = __m256d;
using Integers = __m256i;
using HalfIntegers = __m128i;
#else
#define MM(name) _mm_##name
#define MM_WIDTH(name) _mm_##name##_si128
using Floats = __m128;
using Doubles = __m128d;
using Integers = __m128i;
#endif
static_assert(sizeof(Floats) == kVectorBytes);

// portable.h's ?: does the same, but GCC makes one instruction of it only under -ffast-math.
FUSEDOPS_INLINE Vec<float> Max(Vec<float> a, Vec<float> b) {
  return (Vec<float>)MM(max_ps)((Floats)b, (Floats)a);
}
FUSEDOPS_INLINE Vec<float> Min(Vec<float> a, Vec<float> b) {
  return (Vec<float>)MM(min_ps)((Floats)b, (Floats)a);
}
using portable::Max;
using portable::Min;
#if defined(__FMA__)
// The compiler fuses a product only into a sum of the same basic block, and moves either to another
// one as the code around it suggests, so that a row's bits would depend on the loop that computes
// it.
constexpr bool kHasMulAdd = true;
FUSEDOPS_INLINE Vec<float> MulAdd(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)MM(fmadd_ps)((Floats)a, (Floats)b, (Floats)c);
}
FUSEDOPS_INLINE Vec<double> MulAdd(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)MM(fmadd_pd)((Doubles)a, (Doubles)b, (Doubles)c);
}
FUSEDOPS_INLINE Vec<float> MulSub(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)MM(fmsub_ps)((Floats)a, (Floats)b, (Floats)c);
}
FUSEDOPS_INLINE Vec<double> MulSub(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)MM(fmsub_pd)((Doubles)a, (Doubles)b, (Doubles)c);
}
#else
using portable::kHasMulAdd;
#endif
FUSEDOPS_INLINE Vec<double> Sqrt(Vec<double> x) { return (Vec<double>)MM(sqrt_pd)((Doubles)x); }
FUSEDOPS_INLINE VecU64 MulEven(VecU64 a, VecU64 b) {
  return (VecU64)MM(mul_epu32)((Integers)a, (Integers)b);
}

#if defined(__AVX2__)
FUSEDOPS_INLINE Vec<float> PromoteHalf(VecU16 bits) {
  return (Vec<float>)MM(cvtph_ps)((HalfIntegers)bits);
}
// Values that float16 rounds to 0 are replaced by a zero of the same sign beforehand, because the
// instruction would report an underflow for them.
FUSEDOPS_INLINE VecU16 DemoteHalf(Vec<float> value) {
  constexpr int32_t kMagnitude = 0x7fffffff, kHalfOfLeast = 0x33000000;  // 2^-25
  const VecI32 bits = (VecI32)value, zero = bits & ~kMagnitude;
  value = (Vec<float>)((bits & kMagnitude) <= kHalfOfLeast ? zero : bits);
  return (VecU16)MM(cvtps_ph)((Floats)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#endif

#if defined(FUSEDOPS_SANITIZED)
using portable::Stream;
#else
template <class V>
FUSEDOPS_INLINE void Stream(void* to, V bits) {
  MM_WIDTH(stream)((Integers*)to, (Integers)bits);
}
#endif

#if defined(__AVX512F__)
// --- AVX-512 ------------------------------------------------------------------------------------

template <class L>
FUSEDOPS_INLINE bool AnyTrue(L lanes) {
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
}
// For floats, LessThan() and BetweenZeroAnd() return an int with a bit for each lane, because only
// AnyTrue() reads their results.
FUSEDOPS_INLINE bool AnyTrue(int bits) { return bits != 0; }
FUSEDOPS_INLINE int LessThan(Vec<float> x, float high) {
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(high), _CMP_LT_OQ);
}
FUSEDOPS_INLINE int BetweenZeroAnd(Vec<float> x, Vec<float> high) {
  const __mmask16 positive = _mm512_cmp_ps_mask((__m512)x, __m512{}, _CMP_GT_OQ);
  return _mm512_mask_cmp_ps_mask(positive, (__m512)x, (__m512)high, _CMP_LT_OQ);
}
using portable::BetweenZeroAnd;
using portable::LessThan;

FUSEDOPS_INLINE __mmask16 NotLessEqual(Vec<float> x, float low) {
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(low), _CMP_NLE_UQ);
}
FUSEDOPS_INLINE __mmask8 NotLessEqual(Vec<double> x, double low) {
  return _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(low), _CMP_NLE_UQ);
}
FUSEDOPS_INLINE Vec<float> MaskedMin(__mmask16 mask, Vec<float> a, Vec<float> b) {
  return (Vec<float>)_mm512_mask_min_ps((__m512)a, mask, (__m512)b, (__m512)a);
}
FUSEDOPS_INLINE Vec<double> MaskedMin(__mmask8 mask, Vec<double> a, Vec<double> b) {
  return (Vec<double>)_mm512_mask_min_pd((__m512d)a, mask, (__m512d)b, (__m512d)a);
}
constexpr bool kHasMulByPow2 = true;
FUSEDOPS_INLINE Vec<float> Fraction(Vec<float> x) {
  return (Vec<float>)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
template <int kUp>
FUSEDOPS_INLINE Vec<float> MulByPow2(__mmask16 mask, Vec<float> value, Vec<float> n) {
  return (Vec<float>)_mm512_maskz_scalef_ps(mask, (__m512)value, (__m512)n);
}
template <int kUp>
FUSEDOPS_INLINE Vec<float> MulByPow2(AllLanes, Vec<float> value, Vec<float> n) {
  return (Vec<float>)_mm512_scalef_ps((__m512)value, (__m512)n);
}
template <int kUp>
FUSEDOPS_INLINE Vec<double> MulByPow2(__mmask8 mask, Vec<double> value, Vec<double> n) {
  return (Vec<double>)_mm512_maskz_scalef_pd(mask, (__m512d)value, (__m512d)n);
}
template <int kUp>
FUSEDOPS_INLINE Vec<double> MulByPow2(AllLanes, Vec<double> value, Vec<double> n) {
  return (Vec<double>)_mm512_scalef_pd((__m512d)value, (__m512d)n);
}

// The function takes four instructions, where GCC makes six of the portable one. Its numbers are in
// memory: GCC would make each of them again for every tile, by two instructions, one of them on the
// same port as the comparisons, which takes layer_norm up to a tenth more time.
FUSEDOPS_INLINE VecU32 RoundToBFloat16(Vec<float> value) {
  const __m512i bits = (__m512i)value;
  const auto all = [](int number) FUSEDOPS_LAMBDA { return _mm512_set1_epi32(number); };
  const auto& [lowest_kept, below_half, half] = bfloat16_rounding;
  const __mmask16 number = _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_ORD_Q);
  const __mmask16 odd = _mm512_mask_test_epi32_mask(number, bits, all(lowest_kept));
  const __m512i even = _mm512_mask_add_epi32(bits, number, bits, all(below_half));
  return (VecU32)_mm512_mask_add_epi32(even, odd, bits, all(half));
}
FUSEDOPS_INLINE VecU32 RoundNumberToBFloat16(Vec<float> value) {
  const __m512i bits = (__m512i)value;
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i even = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return (VecU32)_mm512_mask_add_epi32(even, odd, bits, _mm512_set1_epi32(0x8000));
}
// Rounds numbers below 2^110 that are not denormal, and NaNs: the sum with a number that is larger
// by 2^16 has as many bits as a bfloat16.
FUSEDOPS_INLINE VecU32 RoundNormalToBFloat16(Vec<float> value) {
  const auto power = (Vec<float>)((VecU32)value & 0xff800000u);  // the sign and the exponent
  return (VecU32)((value + power * 0x1.8p16f) - power * 0x1.8p16f);
}

FUSEDOPS_INLINE __mmask16 Denormal(Vec<float> x) {
  return _mm512_fpclass_ps_mask((__m512)x, /*categories=*/0x20);
}
FUSEDOPS_INLINE bool AnyDenormal(Vec<float> a, Vec<float> b) {
  return !_kortestz_mask16_u8(Denormal(a), Denormal(b));
}
// Converts to bfloat16 by an instruction, which makes denormal numbers 0. It is written in
// assembly, because compilers know it only with a flag that lets them use AVX512_BF16 everywhere.
FUSEDOPS_INLINE Words ConvertToBFloat16(Vec<float> lower, Vec<float> upper) {
  Words words;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(words) : "v"(lower), "v"(upper));
  return words;
}
template <bool kNormal = false, class Round>
FUSEDOPS_INLINE VecU32 RoundEvenOdd(Vec<float> even, Vec<float> odd, Round round) {
  if (has_avx512_bf16) {
    const Words words = ConvertToBFloat16(even, odd);
    if (kNormal || __builtin_expect(!AnyDenormal(even, odd), true)) {
      Words from;
      for (int i = 0; i < 2 * kLanes<float>; ++i) from[i] = i % 2 * kLanes<float> + i / 2;
      return (VecU32)_mm512_permutexvar_epi16((__m512i)from, (__m512i)words);
    }
  }
  if constexpr (kNormal) {
    const auto nearest = [](Vec<float> x) FUSEDOPS_LAMBDA { return RoundNormalToBFloat16(x); };
    return portable::RoundEvenOdd(even, odd, nearest);
  }
  return portable::RoundEvenOdd(even, odd, round);
}
// The halves are extracted in registers. If one is read through memory, GCC keeps the vector in
// memory throughout, even in the loops before.
FUSEDOPS_INLINE Vec<double> PromoteLower(Vec<float> value) {
  return (Vec<double>)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)value));
}
FUSEDOPS_INLINE Vec<double> PromoteUpper(Vec<float> value) {
  return (Vec<double>)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)value, 1));
}
FUSEDOPS_INLINE Vec<float> Demote2(Vec<double> lower, Vec<double> upper) {
  const __m256 low = _mm512_cvtpd_ps((__m512d)lower), high = _mm512_cvtpd_ps((__m512d)upper);
  return (Vec<float>)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
FUSEDOPS_INLINE Vec<double> PromoteFloats(const float* from) {
  return (Vec<double>)_mm512_cvtps_pd(_mm256_loadu_ps(from));
}

constexpr bool kHasLaneBits = true;
template <class C>
using LaneBits = decltype(NotLessEqual(Vec<C>{}, C(0)));
template <int kCount>  // 8 or 16
FUSEDOPS_INLINE uint32_t BitsOfBytes(const Bool* from) {
  const auto* const at = (const __m128i*)from;
  const __m128i bytes = kCount == 8 ? _mm_loadl_epi64(at) : _mm_loadu_si128(at);
  return _mm_test_epi8_mask(bytes, bytes);
}
FUSEDOPS_INLINE uint32_t BitsOfEvenBytes(const Bool* from) {
  const __m256i pairs = _mm256_loadu_si256((const __m256i*)from);
  return _mm256_test_epi16_mask(pairs, _mm256_set1_epi16(0xff));
}
FUSEDOPS_INLINE uint32_t BitsOfOddBytes(const Bool* from) {
  const __m256i pairs = _mm256_loadu_si256((const __m256i*)from);
  return _mm256_test_epi16_mask(pairs, _mm256_set1_epi16(int16_t(0xff00)));
}
FUSEDOPS_INLINE Vec<float> IfThenElse(__mmask16 mask, Vec<float> yes, Vec<float> no) {
  return (Vec<float>)_mm512_mask_blend_ps(mask, (__m512)no, (__m512)yes);
}
FUSEDOPS_INLINE Vec<double> IfThenElse(__mmask8 mask, Vec<double> yes, Vec<double> no) {
  return (Vec<double>)_mm512_mask_blend_pd(mask, (__m512d)no, (__m512d)yes);
}
FUSEDOPS_INLINE Vec<float> MaskedMax(__mmask16 mask, Vec<float> a, Vec<float> b) {
  return (Vec<float>)_mm512_mask_max_ps((__m512)a, mask, (__m512)b, (__m512)a);
}
FUSEDOPS_INLINE Vec<double> MaskedMax(__mmask8 mask, Vec<double> a, Vec<double> b) {
  return (Vec<double>)_mm512_mask_max_pd((__m512d)a, mask, (__m512d)b, (__m512d)a);
}

constexpr bool kComparesWords = true;
FUSEDOPS_INLINE VecU16 LowerHalf(Words words) {
  return (VecU16)_mm512_castsi512_si256((__m512i)words);
}
FUSEDOPS_INLINE VecU16 UpperHalf(Words words) {
  return (VecU16)_mm512_extracti64x4_epi64((__m512i)words, 1);
}
FUSEDOPS_INLINE VecU32 Combine(VecU16 lower, VecU16 upper) {
  return (VecU32)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)lower), (__m256i)upper, 1);
}
FUSEDOPS_INLINE __m256i CombineTwo(Block lower, Block upper) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)lower), (__m128i)upper, 1);
}
template <class C>
FUSEDOPS_INLINE Vec<C> CombineBlocks(const Block (&blocks)[kBlocks]) {
  const __m256i low = CombineTwo(blocks[0], blocks[1]), high = CombineTwo(blocks[2], blocks[3]);
  return (Vec<C>)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
template <class C>
FUSEDOPS_INLINE void ExtractBlocks(Vec<C> value, Block (&blocks)[kBlocks]) {
  blocks[0] = (Block)_mm512_castsi512_si128((__m512i)value);
  blocks[1] = (Block)_mm512_extracti32x4_epi32((__m512i)value, 1);
  blocks[2] = (Block)_mm512_extracti32x4_epi32((__m512i)value, 2);
  blocks[3] = (Block)_mm512_extracti32x4_epi32((__m512i)value, 3);
}

#if !defined(FUSEDOPS_SANITIZED)
FUSEDOPS_INLINE void LoadN(Bool (&to)[kVectorBytes], const Bool* from, int64_t count) {
  const __mmask64 mask = count >= 64 ? ~__mmask64(0) : count <= 0 ? 0 : (__mmask64(1) << count) - 1;
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(mask, from));
}

// These functions load and store with a mask bit for each column, which one shift computes. A mask
// with a bit for each byte would have up to 128 bits, and each load would take branches.
template <class T>
FUSEDOPS_INLINE void LoadN(T (&to)[kTile<T>], const T* from, int count) {
  const uint32_t mask = (1u << count) - 1;
  for (int at = 0; at < kTile<T>; at += 64 / sizeof(T)) {
    const uint32_t part = mask >> at;
    __m512i columns;
    if constexpr (sizeof(T) == 2) columns = _mm512_maskz_loadu_epi16(part, from + at);
    if constexpr (sizeof(T) == 4) columns = _mm512_maskz_loadu_epi32(__mmask16(part), from + at);
    if constexpr (sizeof(T) == 8) columns = _mm512_maskz_loadu_epi64(__mmask8(part), from + at);
    _mm512_storeu_si512(to + at, columns);
  }
}
template <class T>
FUSEDOPS_INLINE void StoreN(T* to, const T (&from)[kTile<T>], int count) {
  const uint32_t mask = (1u << count) - 1;
  for (int at = 0; at < kTile<T>; at += 64 / sizeof(T)) {
    if (count <= at) break;
    const uint32_t part = mask >> at;
    const __m512i columns = _mm512_loadu_si512(from + at);
    if constexpr (sizeof(T) == 2) _mm512_mask_storeu_epi16(to + at, part, columns);
    if constexpr (sizeof(T) == 4) _mm512_mask_storeu_epi32(to + at, __mmask16(part), columns);
    if constexpr (sizeof(T) == 8) _mm512_mask_storeu_epi64(to + at, __mmask8(part), columns);
  }
}
FUSEDOPS_INLINE Block LoadBlockN(const void* from, int bytes) {
  return (Block)_mm_maskz_loadu_epi8((1u << bytes) - 1, from);
}
FUSEDOPS_INLINE void StoreBlockN(void* to, Block block, int bytes) {
  _mm_mask_storeu_epi8(to, (1u << bytes) - 1, (__m128i)block);
}
#endif

#elif defined(__AVX2__)
// --- AVX2 ---------------------------------------------------------------------------------------

template <class L>
FUSEDOPS_INLINE bool AnyTrue(L lanes) {
  return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes);
}
FUSEDOPS_INLINE Vec<double> PromoteLower(Vec<float> value) {
  return (Vec<double>)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)value));
}
FUSEDOPS_INLINE Vec<double> PromoteUpper(Vec<float> value) {
  return (Vec<double>)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)value, 1));
}
FUSEDOPS_INLINE Vec<float> Demote2(Vec<double> lower, Vec<double> upper) {
  const __m128 low = _mm256_cvtpd_ps((__m256d)lower), high = _mm256_cvtpd_ps((__m256d)upper);
  return (Vec<float>)_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}
FUSEDOPS_INLINE Vec<double> PromoteFloats(const float* from) {
  return (Vec<double>)_mm256_cvtps_pd(_mm_loadu_ps(from));
}
template <class L>
FUSEDOPS_INLINE L PromoteBytes(const Bool* from) {
  if constexpr (sizeof(L{}[0]) == 8) {
    return (L)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(Load<int32_t>(from)));
  } else {
    return (L)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
  }
}
FUSEDOPS_INLINE VecI32 PromoteBytePairs(const Bool* from) {
  return (VecI32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
}

constexpr bool kComparesWords = true;
FUSEDOPS_INLINE VecU16 LowerHalf(Words words) {
  return (VecU16)_mm256_castsi256_si128((__m256i)words);
}
FUSEDOPS_INLINE VecU16 UpperHalf(Words words) {
  return (VecU16)_mm256_extracti128_si256((__m256i)words, 1);
}
FUSEDOPS_INLINE VecU32 Combine(VecU16 lower, VecU16 upper) {
  const __m256i low = _mm256_castsi128_si256((__m128i)lower);
  return (VecU32)_mm256_inserti128_si256(low, (__m128i)upper, 1);
}
template <class C>
FUSEDOPS_INLINE Vec<C> CombineBlocks(const Block (&blocks)[kBlocks]) {
  const __m256i low = _mm256_castsi128_si256((__m128i)blocks[0]);
  return (Vec<C>)_mm256_inserti128_si256(low, (__m128i)blocks[1], 1);
}
template <class C>
FUSEDOPS_INLINE void ExtractBlocks(Vec<C> value, Block (&blocks)[kBlocks]) {
  blocks[0] = (Block)_mm256_castsi256_si128((__m256i)value);
  blocks[1] = (Block)_mm256_extracti128_si256((__m256i)value, 1);
}

#if !defined(FUSEDOPS_SANITIZED)
// Columns of 4 and 8 bytes are loaded and stored with masks, because a vector load after memcpy
// would wait for several smaller stores. FirstWords() is the mask of the first `count` words of 4
// bytes.
FUSEDOPS_INLINE __m256i FirstWords(int count) {
  return (__m256i)(VecI32{0, 1, 2, 3, 4, 5, 6, 7} < VecI32{} + count);
}
template <class T, int kSize>
FUSEDOPS_INLINE void LoadN(T (&to)[kSize], const T* from, int count) {
  if constexpr (sizeof(T) <= 2) return portable::LoadN(to, from, count);
  constexpr int kWords = sizeof(T) / 4;
  for (int word = 0; word < kSize * kWords; word += 8) {
    const int* source = reinterpret_cast<const int*>(from) + word;
    const __m256i columns = _mm256_maskload_epi32(source, FirstWords(count * kWords - word));
    Store(reinterpret_cast<char*>(to) + 4 * word, columns);
  }
}
template <class T, int kSize>
FUSEDOPS_INLINE void StoreN(T* to, const T (&from)[kSize], int count) {
  if constexpr (sizeof(T) <= 2) return portable::StoreN(to, from, count);
  constexpr int kWords = sizeof(T) / 4;
  for (int word = 0; word < kSize * kWords; word += 8) {
    const auto columns = Load<__m256i>(reinterpret_cast<const char*>(from) + 4 * word);
    int* target = reinterpret_cast<int*>(to) + word;
    _mm256_maskstore_epi32(target, FirstWords(count * kWords - word), columns);
  }
}
#endif

#else
// --- SSE2 ---------------------------------------------------------------------------------------

template <class L>
FUSEDOPS_INLINE bool AnyTrue(L lanes) {
  return _mm_movemask_epi8((__m128i)lanes) != 0;
}
// These functions take 20 instructions each. Inlined into every loop, they would make the library
// of kernels larger by a twentieth.
FUSEDOPS_NOINLINE Vec<float> PromoteHalf(VecU16 bits) { return portable::PromoteHalf(bits); }
FUSEDOPS_NOINLINE VecU16 DemoteHalf(Vec<float> value) { return portable::DemoteHalf(value); }
FUSEDOPS_INLINE Vec<double> PromoteLower(Vec<float> value) {
  return (Vec<double>)_mm_cvtps_pd((__m128)value);
}
FUSEDOPS_INLINE Vec<double> PromoteUpper(Vec<float> value) {
  return (Vec<double>)_mm_cvtps_pd(_mm_movehl_ps((__m128)value, (__m128)value));
}
// From portable.h's loop over lanes, GCC 12 drops the rounding to float if the values are converted
// back to double.
FUSEDOPS_INLINE Vec<float> Demote2(Vec<double> lower, Vec<double> upper) {
  return (Vec<float>)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)lower), _mm_cvtpd_ps((__m128d)upper));
}
#endif

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
