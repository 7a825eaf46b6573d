// Defines the primitives of processor.h without intrinsics. A processor's file defines some of them
// in the unnamed namespace within the instruction set's, where they hide those of this file.
#pragma once

#include "cpu/simd/vec.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace portable {
namespace {

// Hides from the optimizer how a value was computed, so that its operations are neither fused nor
// reordered with later ones.
template <class V>
FUSEDOPS_INLINE V Opaque(V value) {
  asm("" : "+m"(value));
  return value;
}

// --- arithmetic ---------------------------------------------------------------------------------

// These functions return the larger and the smaller of two values, and `a` if either is NaN.
template <class V>
FUSEDOPS_INLINE V Max(V a, V b) {
  return b > a ? b : a;
}
template <class V>
FUSEDOPS_INLINE V Min(V a, V b) {
  return b < a ? b : a;
}

// Whether there are MulAdd(a, b, c) and MulSub(a, b, c): a * b + c and a * b - c, rounded once. If
// not, tile.h rounds the product too.
constexpr bool kHasMulAdd = false;

FUSEDOPS_INLINE Vec<double> Sqrt(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
}

// Multiplies the lower halves of the lanes.
FUSEDOPS_INLINE VecU64 MulEven(VecU64 a, VecU64 b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }

// --- masks --------------------------------------------------------------------------------------

// Whether a comparison is true in any lane.
template <class L>
FUSEDOPS_INLINE bool AnyTrue(L lanes) {
  auto all = lanes[0];
  for (int i = 1; i < int(sizeof(L) / sizeof(all)); ++i) all |= lanes[i];
  return all != 0;
}

// These functions compare lanes for AnyTrue(): x < high, and 0 < x < high.
template <class V, class High>
FUSEDOPS_INLINE auto LessThan(V x, High high) {
  return x < high;
}
template <class V>
FUSEDOPS_INLINE auto BetweenZeroAnd(V x, V high) {
  return (x > 0) & (x < high);
}

// Compares lanes. The result is true where x > low and where x is NaN.
template <class V, class C>
FUSEDOPS_INLINE auto NotLessEqual(V x, C low) {
  return ~(x <= low);
}

template <class M, class V>
FUSEDOPS_INLINE V IfThenElseZero(M mask, V yes) {
  return mask ? yes : V{};
}

// Whether a mask is an integer with a bit for each lane (LaneBits<C>), the lowest for the first
// lane.
constexpr bool kHasLaneBits = false;
template <class C>
using LaneBits = uint32_t;

// Returns a bit for each of kCount bytes, the lowest for the first byte: 1 if the byte is not 0.
template <int kCount>
FUSEDOPS_INLINE uint32_t BitsOfBytes(const Bool* from) {
  uint32_t bits = 0;
  for (int i = 0; i < kCount; ++i) bits |= uint32_t(from[i].value != 0) << i;
  return bits;
}
// Return a bit for each of the 16 even, or odd, bytes of 32.
FUSEDOPS_INLINE uint32_t BitsOfEvenBytes(const Bool* from) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= uint32_t(from[2 * i].value != 0) << i;
  return bits;
}
FUSEDOPS_INLINE uint32_t BitsOfOddBytes(const Bool* from) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= uint32_t(from[2 * i + 1].value != 0) << i;
  return bits;
}

// Whether one instruction finds the larger of 16-bit integers, signed or not, as range.h needs it.
constexpr bool kComparesWords = false;
FUSEDOPS_INLINE VecU16 LowerHalf(Words words) { return Load<VecU16>(&words); }
FUSEDOPS_INLINE VecU16 UpperHalf(Words words) {
  return Load<VecU16>(reinterpret_cast<const char*>(&words) + kVectorBytes / 2);
}

// Returns Min(a, b) where `mask` is true, and `a` elsewhere.
template <class M, class V>
FUSEDOPS_INLINE V MaskedMin(M mask, V a, V b) {
  return mask ? Min(a, b) : a;
}

// Returns value * 2^(n + kUp) for an integral n held in a floating-point vector. The functions here
// ignore the mask, and 2^(n + kUp) must be a normal number or infinity. Where an instruction takes
// their place (kHasMulByPow2), it rounds n down and returns 0 outside of the mask, and the caller
// multiplies `value` by 2^kUp beforehand.
constexpr bool kHasMulByPow2 = false;
template <int kUp, class M>
FUSEDOPS_INLINE Vec<float> MulByPow2(M, Vec<float> value, Vec<float> n) {
  const VecI32 power = __builtin_convertvector(n, VecI32) + (127 + kUp);
  return value * (Vec<float>)(power << 23);
}
template <int kUp, class M>
FUSEDOPS_INLINE Vec<double> MulByPow2(M, Vec<double> value, Vec<double> n) {
  const VecI64 power = __builtin_convertvector(n, VecI64) + (1023 + kUp);
  return value * (Vec<double>)(power << 52);
}

// Returns x - floor(x).
FUSEDOPS_INLINE Vec<float> Fraction(Vec<float> x) {
  for (int i = 0; i < kLanes<float>; ++i) x[i] -= __builtin_floorf(x[i]);
  return x;
}

// --- conversion ---------------------------------------------------------------------------------

// Rounds to nearest even into the upper 16 bits. A NaN is truncated instead: rounding one whose
// bits are all set would carry into the sign and leave zero. A truncated NaN is still a NaN,
// because arithmetic sets its quiet bit, which is in the upper half, and only results of arithmetic
// are stored.
FUSEDOPS_INLINE VecU32 RoundToBFloat16(Vec<float> value) {
  const VecU32 bits = (VecU32)value;
  return value == value ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits;
}

// Returns the same as RoundToBFloat16(), but only for numbers and for NaNs whose lower 16 bits are
// all 0.
FUSEDOPS_INLINE VecU32 RoundNumberToBFloat16(Vec<float> value) {
  const VecU32 bits = (VecU32)value;
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

// Rounds even and odd columns by round(), and interleaves the upper halves of the results. If no
// column is denormal or as large as 2^110 (kNormal), round() may be replaced.
template <bool kNormal = false, class Round>
FUSEDOPS_INLINE VecU32 RoundEvenOdd(Vec<float> even, Vec<float> odd, Round round) {
  return (round(even) >> 16) | (round(odd) & 0xffff0000u);
}

// Exponents of floats have a bias of 127, and those of halves one of 15: 112 is the difference.
FUSEDOPS_INLINE Vec<float> PromoteHalf(VecU16 bits) {
  const VecU32 half = __builtin_convertvector(bits, VecU32);
  const VecU32 magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
  const VecU32 normal = (magnitude << 13) + (112u << 23);
  const VecU32 special = (magnitude << 13) | 0x7f800000u;
  const VecU32 denormal =
      (VecU32)(__builtin_convertvector((VecI32)magnitude, Vec<float>) * 0x1p-24f);
  const VecU32 finite = magnitude < 0x0400u ? denormal : normal;
  return (Vec<float>)((magnitude >= 0x7c00u ? special : finite) | sign);
}
// Halves are denormal below 2^-14, whose bits as a float are 0x38800000. Floats from 65520 on
// become infinite, by rounding or because they are at least 2^16 (0x47800000).
FUSEDOPS_INLINE VecU16 DemoteHalf(Vec<float> value) {
  const VecU32 bits = (VecU32)value;
  const VecU32 magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  const VecU32 normal = (magnitude + (0u - (112u << 23)) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 rounds to a multiple of 2^-24, which is the spacing of denormal halves.
  const VecU32 denormal = (VecU32)((Vec<float>)magnitude + 0.5f) - 0x3f000000u;
  const VecU32 finite = magnitude < 0x38800000u ? denormal : normal;
  const VecU32 not_a_number = VecU32{} + 0x7e00u, infinity = VecU32{} + 0x7c00u;
  const VecU32 special = magnitude > 0x7f800000u ? not_a_number : infinity;
  return __builtin_convertvector((magnitude >= 0x47800000u ? special : finite) | sign, VecU16);
}

// These functions convert the lower and the upper half of the lanes to double, and both halves
// back.
FUSEDOPS_INLINE Vec<double> PromoteLower(Vec<float> value) {
  Vec<double> result;
  for (int i = 0; i < kLanes<double>; ++i) result[i] = value[i];
  return result;
}
FUSEDOPS_INLINE Vec<double> PromoteUpper(Vec<float> value) {
  Vec<double> result;
  for (int i = 0; i < kLanes<double>; ++i) result[i] = value[i + kLanes<double>];
  return result;
}
FUSEDOPS_INLINE Vec<float> Demote2(Vec<double> lower, Vec<double> upper) {
  Vec<float> result;
  for (int i = 0; i < kLanes<double>; ++i) {
    result[i] = static_cast<float>(lower[i]);
    result[i + kLanes<double>] = static_cast<float>(upper[i]);
  }
  return result;
}

// These functions load and convert: floats to doubles, bytes to integers, and pairs of bytes to
// integers whose low byte is the first of the pair.
FUSEDOPS_INLINE Vec<double> PromoteFloats(const float* from) {
  Vec<double> result;
  for (int i = 0; i < kLanes<double>; ++i) result[i] = from[i];
  return result;
}
template <class L>
FUSEDOPS_INLINE L PromoteBytes(const Bool* from) {
  L lanes;
  for (int i = 0; i < int(sizeof(L) / sizeof(lanes[0])); ++i) lanes[i] = from[i].value;
  return lanes;
}
FUSEDOPS_INLINE VecI32 PromoteBytePairs(const Bool* from) {
  VecI32 lanes;
  for (int i = 0; i < kLanes<float>; ++i) lanes[i] = from[2 * i].value | from[2 * i + 1].value << 8;
  return lanes;
}

// --- halves and blocks --------------------------------------------------------------------------

FUSEDOPS_INLINE VecU32 Combine(VecU16 lower, VecU16 upper) {
  const VecU16 halves[] = {lower, upper};
  return Load<VecU32>(halves);
}

template <class C>
FUSEDOPS_INLINE Vec<C> CombineBlocks(const Block (&blocks)[kBlocks]) {
  return Load<Vec<C>>(blocks);
}
template <class C>
FUSEDOPS_INLINE void ExtractBlocks(Vec<C> value, Block (&blocks)[kBlocks]) {
  Store(blocks, value);
}

// --- memory -------------------------------------------------------------------------------------

// Whether LoadN() and StoreN() are masked instructions for columns of T.
template <class T>
constexpr bool kHasMaskedLoads = false;

// LoadN() reads the first `count` elements of an array, and fills the rest of `to` with zeros.
// StoreN() writes the first `count` elements.
template <class T, int kSize>
FUSEDOPS_INLINE void LoadN(T (&to)[kSize], const T* from, int64_t count) {
  std::memset(to, 0, sizeof(to));
  std::memcpy(to, from, count * sizeof(T));
}
template <class T, int kSize>
FUSEDOPS_INLINE void StoreN(T* to, const T (&from)[kSize], int64_t count) {
  std::memcpy(to, from, count * sizeof(T));
}

// Returns `bytes` bytes, between one word and two. It loads the first word and the last one, which
// overlap if there are less than two words.
template <class Word>
FUSEDOPS_INLINE uint64_t LoadTwoWords(const char* from, int bytes) {
  const uint64_t last = Load<Word>(from + bytes - sizeof(Word));
  return Load<Word>(from) | last << 8 * (bytes - sizeof(Word));
}
// These functions read and write the first `bytes` bytes of a block: an even number from 2 to 14.
FUSEDOPS_INLINE Block LoadBlockN(const void* memory, int bytes) {
  const char* from = static_cast<const char*>(memory);
  if (bytes < 4) return Block{Load<uint16_t>(from)};
  if (bytes <= 8) return Block{LoadTwoWords<uint32_t>(from, bytes)};
  return Block{Load<uint64_t>(from), Load<uint64_t>(from + bytes - 8) >> 8 * (16 - bytes)};
}
FUSEDOPS_INLINE void StoreBlockN(void* memory, Block block, int bytes) {
  char* to = static_cast<char*>(memory);
  const uint64_t low = block[0], high = block[1];
  if (bytes < 4) return Store(to, static_cast<uint16_t>(low));
  if (bytes < 8) {
    Store(to, static_cast<uint32_t>(low));
    return Store(to + bytes - 4, static_cast<uint32_t>(low >> 8 * (bytes - 4)));
  }
  Store(to, low);
  if (bytes > 8) Store(to + bytes - 8, low >> 8 * (bytes - 8) | high << 8 * (16 - bytes));
}

// Writes a vector to an address aligned to kVectorBytes: on processors with an instruction for it,
// without reading the cache line, and here with an ordinary store.
template <class V>
FUSEDOPS_INLINE void Stream(void* to, V bits) {
  *static_cast<V*>(to) = bits;
}
// Orders streaming stores before the release that ends a parallel region.
FUSEDOPS_INLINE void FlushStream() {}

}  // namespace
}  // namespace portable
using namespace portable;
}  // namespace fusedops::FUSEDOPS_CPU_ISA
