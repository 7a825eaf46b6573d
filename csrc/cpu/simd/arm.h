// Defines the primitives of processor.h on ARM (aarch64): with NEON, which every processor has, and
// with the instructions for bfloat16 on processors that have them. No other file of cpu/ contains
// ARM's intrinsics.
//
// NEON has no masked loads. Stream() is an ordinary store. ARM's non-temporal store, STNP, would
// gain nothing: it is only a hint, and the cores detect by themselves that whole cache lines are
// written, and then do not read them.
#pragma once

#include <arm_neon.h>

#include "cpu/simd/portable.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

static_assert(kVectorBytes == 16);

using portable::Stream;

template <class V>
FUSEDOPS_INLINE V Opaque(V value) {
  asm("" : "+w"(value));
  return value;
}

// --- arithmetic ---------------------------------------------------------------------------------

// These two functions take one instruction, where the language's ?: takes two. For NaN their
// results differ from those of ?: and of each other: the maximum of a NaN and a number is the
// number, and a minimum with a NaN is NaN. No caller depends on this, because a NaN in a row also
// reaches the row's results in other ways.
FUSEDOPS_INLINE Vec<float> Max(Vec<float> a, Vec<float> b) {
  return (Vec<float>)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b);
}
FUSEDOPS_INLINE Vec<float> Min(Vec<float> a, Vec<float> b) {
  return (Vec<float>)vminq_f32((float32x4_t)a, (float32x4_t)b);
}
using portable::Max;
using portable::Min;
constexpr bool kHasMulAdd = true;  // see x86.h for why the compiler does not decide
FUSEDOPS_INLINE Vec<float> MulAdd(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
FUSEDOPS_INLINE Vec<double> MulAdd(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
FUSEDOPS_INLINE Vec<float> MulSub(Vec<float> a, Vec<float> b, Vec<float> c) {
  return MulAdd(a, b, -c);
}
FUSEDOPS_INLINE Vec<double> MulSub(Vec<double> a, Vec<double> b, Vec<double> c) {
  return MulAdd(a, b, -c);
}
FUSEDOPS_INLINE Vec<double> Sqrt(Vec<double> x) { return (Vec<double>)vsqrtq_f64((float64x2_t)x); }
FUSEDOPS_INLINE VecU64 MulEven(VecU64 a, VecU64 b) {
  return (VecU64)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}

template <class L>
FUSEDOPS_INLINE bool AnyTrue(L lanes) {
  return vmaxvq_u32((uint32x4_t)lanes) != 0;
}

// NEON has no comparison that is true for NaN, but its instruction BIC clears the lanes that a mask
// selects: here those where x <= low. Opaque() keeps the comparison and BIC apart, because GCC
// would make six instructions of the two.
template <class L>
struct NotTrue {
  L lanes;
};
template <class V, class C>
FUSEDOPS_INLINE auto NotLessEqual(V x, C low) {
  return NotTrue<decltype(x <= low)>{Opaque(x <= low)};
}
template <class L, class V>
FUSEDOPS_INLINE V IfThenElseZero(NotTrue<L> mask, V yes) {
  return (V)((L)yes & ~mask.lanes);
}

// --- conversion ---------------------------------------------------------------------------------

// These functions round lanes to bfloat16, in the lower half of the result.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
FUSEDOPS_INLINE uint16x8_t RoundToBFloat16(Vec<float> value) {
  return (uint16x8_t)vcvtq_low_bf16_f32((float32x4_t)value);
}
FUSEDOPS_INLINE uint16x8_t RoundNumberToBFloat16(Vec<float> value) {
  return RoundToBFloat16(value);
}
#else
// Returns -1 in lanes whose upper 16 bits are an odd number, and 0 in the others.
FUSEDOPS_INLINE uint32x4_t is_odd(Vec<float> value) {
  return vtstq_u32((uint32x4_t)value, vdupq_n_u32(0x10000));
}
FUSEDOPS_INLINE uint16x8_t RoundToBFloat16(Vec<float> value) {
  const uint32x4_t rounding = vdupq_n_u32(0x7fff) - is_odd(value);
  const uint32x4_t of_numbers = rounding & (uint32x4_t)(value == value);
  return vcombine_u16(vaddhn_u32((uint32x4_t)value, of_numbers), vdup_n_u16(0));
}
FUSEDOPS_INLINE uint16x8_t RoundNumberToBFloat16(Vec<float> value) {
  const uint32x4_t up = (uint32x4_t)value + vdupq_n_u32(0x7fff);
  return vcombine_u16(vsubhn_u32(up, is_odd(value)), vdup_n_u16(0));
}
#endif
template <bool kNormal = false, class Round>
FUSEDOPS_INLINE VecU32 RoundEvenOdd(Vec<float> even, Vec<float> odd, Round round) {
  return (VecU32)vzip1q_u16(round(even), round(odd));
}

FUSEDOPS_INLINE Vec<float> PromoteHalf(VecU16 bits) {
  return (Vec<float>)vcvt_f32_f16((float16x4_t)bits);
}
// Values that float16 rounds to 0 are replaced by a zero of the same sign beforehand, because the
// instruction would report an underflow for them.
FUSEDOPS_INLINE VecU16 DemoteHalf(Vec<float> value) {
  const uint32x4_t is_tiny = vcageq_f32(vdupq_n_f32(0x1p-25f), (float32x4_t)value);
  value = (Vec<float>)vbicq_u32((uint32x4_t)value, vshrq_n_u32(is_tiny, 1));
  return (VecU16)vcvt_f16_f32((float32x4_t)value);
}

FUSEDOPS_INLINE Vec<double> PromoteLower(Vec<float> value) {
  return (Vec<double>)vcvt_f64_f32(vget_low_f32((float32x4_t)value));
}
FUSEDOPS_INLINE Vec<double> PromoteUpper(Vec<float> value) {
  return (Vec<double>)vcvt_high_f64_f32((float32x4_t)value);
}
FUSEDOPS_INLINE Vec<float> Demote2(Vec<double> lower, Vec<double> upper) {
  return (Vec<float>)vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)lower), (float64x2_t)upper);
}
FUSEDOPS_INLINE Vec<double> PromoteFloats(const float* from) {
  return (Vec<double>)vcvt_f64_f32(vld1_f32(from));
}
template <class L>
FUSEDOPS_INLINE L PromoteBytes(const Bool* from) {
  if constexpr (sizeof(L{}[0]) == 8) {
    const auto two = (uint8x8_t)vdup_n_u16(Load<uint16_t>(from));
    return (L)vmovl_u32(vget_low_u32(vmovl_u16(vget_low_u16(vmovl_u8(two)))));
  } else {
    const auto four = (uint8x8_t)vdup_n_u32(Load<uint32_t>(from));
    return (L)vmovl_u16(vget_low_u16(vmovl_u8(four)));
  }
}
FUSEDOPS_INLINE VecI32 PromoteBytePairs(const Bool* from) {
  return (VecI32)vmovl_u16(Load<uint16x4_t>(from));
}

FUSEDOPS_INLINE VecU32 Combine(VecU16 lower, VecU16 upper) {
  return (VecU32)vcombine_u16((uint16x4_t)lower, (uint16x4_t)upper);
}

// --- memory -------------------------------------------------------------------------------------

#if !defined(FUSEDOPS_SANITIZED)
// load_parts() and store_parts() move the first `bytes` bytes of a tile through registers. The
// memcpy of portable.h's functions makes several small stores, for which a vector load would wait.
// load_parts() and store_parts() are not inlined: GCC fuses a product into a sum only where no
// branch lies between product and sum, so with their branches in a loop, a row's bits would depend
// on the loop.
struct Blocks {
  Block first, second;
};
FUSEDOPS_INLINE Block load_part(const char* from, int bytes) {
  if (bytes >= kBlockBytes) return Load<Block>(from);
  return bytes > 0 ? LoadBlockN(from, bytes) : Block{};
}
FUSEDOPS_INLINE void store_part(char* to, Block block, int bytes) {
  if (bytes >= kBlockBytes) return Store(to, block);
  if (bytes > 0) StoreBlockN(to, block, bytes);
}
FUSEDOPS_NOINLINE Blocks load_parts(const char* from, int bytes) {
  return {load_part(from, bytes), load_part(from + kBlockBytes, bytes - kBlockBytes)};
}
FUSEDOPS_NOINLINE void store_parts(char* to, Blocks blocks, int bytes) {
  store_part(to, blocks.first, bytes);
  store_part(to + kBlockBytes, blocks.second, bytes - kBlockBytes);
}
template <class T, int kSize>
FUSEDOPS_INLINE void LoadN(T (&to)[kSize], const T* from, int64_t count) {
  if constexpr (sizeof(T) == 1) return portable::LoadN(to, from, count);
  const int bytes = static_cast<int>(count * sizeof(T));
  const Blocks blocks = load_parts(reinterpret_cast<const char*>(from), bytes);
  std::memcpy(to, &blocks, sizeof(to));
}
template <class T, int kSize>
FUSEDOPS_INLINE void StoreN(T* to, const T (&from)[kSize], int64_t count) {
  if constexpr (sizeof(T) == 1) return portable::StoreN(to, from, count);
  Blocks blocks = {};
  std::memcpy(&blocks, from, sizeof(from));
  store_parts(reinterpret_cast<char*>(to), blocks, static_cast<int>(count * sizeof(T)));
}
#endif

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
