// Tiles of columns in the widest registers one instruction set has, loaded and stored with
// conversion.
//
// Everything under cpu/ is compiled once per instruction set (cpu/isa.h), each time in its own
// namespace and without a C++ standard template: a template shared between the files could be
// linked in its AVX-512 form into code that runs on a machine without AVX-512.
//
// The vectors are compiler vector types (GCC and Clang), so arithmetic is written with operators;
// intrinsics appear only where the language has no word: maximum, half conversion, scaling by a
// power of two, streaming stores.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "fusedops/args.h"

#define FUSEDOPS_INLINE inline __attribute__((always_inline))
#define FUSEDOPS_LAMBDA __attribute__((always_inline))

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

// Compute<T>: what arithmetic on T is done in.
template <class T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

template <class C>
constexpr int kLanes = kVectorBytes / sizeof(C);

template <class C, int Bytes = kVectorBytes>
struct VecOf {
  typedef C type __attribute__((vector_size(Bytes)));
};
template <class C>
using Vec = typename VecOf<C>::type;

typedef int32_t VecI32 __attribute__((vector_size(kVectorBytes)));
typedef uint32_t VecU32 __attribute__((vector_size(kVectorBytes)));
typedef uint16_t VecU16 __attribute__((vector_size(kVectorBytes / 2)));
typedef int64_t VecI64 __attribute__((vector_size(kVectorBytes)));

template <class C>
constexpr C kInfinity = static_cast<C>(__builtin_huge_val());

template <class C>
FUSEDOPS_INLINE Vec<C> broadcast(C value) {
  return Vec<C>{} + value;
}

// b > a ? b : a, which is what the instruction computes: a where either is NaN. GCC finds the
// instruction only under -ffast-math.
FUSEDOPS_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_max_ps((__m512)b, (__m512)a);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_max_ps((__m256)b, (__m256)a);
#else
  return b > a ? b : a;
#endif
}
FUSEDOPS_INLINE Vec<double> larger(Vec<double> a, Vec<double> b) { return b > a ? b : a; }

// --- tiles --------------------------------------------------------------------------------------

// Two vectors: the columns that one step of a kernel handles. Their order is the one in which T is
// cheapest to load (bfloat16: even columns, then odd ones: one instruction each). Scratch memory
// and column vectors of a kernel hold tiles in that order, and store() undoes it.
template <class C>
struct Tile {
  Vec<C> v[2];
};

template <class T>
constexpr int kTile = 2 * kLanes<Compute<T>>;

template <class T>
constexpr bool kEvenOdd = false;
template <>
constexpr bool kEvenOdd<BFloat16> = true;

// Which column of its tile lane `lane` of vector `half` holds.
template <class T>
constexpr int column_of(int half, int lane) {
  return kEvenOdd<T> ? 2 * lane + half : half * kLanes<Compute<T>> + lane;
}

template <class C>
FUSEDOPS_INLINE Tile<C> both(C value) {
  return {{broadcast(value), broadcast(value)}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator+(Tile<C> a, Tile<C> b) {
  return {{a.v[0] + b.v[0], a.v[1] + b.v[1]}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator-(Tile<C> a, Tile<C> b) {
  return {{a.v[0] - b.v[0], a.v[1] - b.v[1]}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator*(Tile<C> a, Tile<C> b) {
  return {{a.v[0] * b.v[0], a.v[1] * b.v[1]}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator+(Tile<C> a, C b) {
  return {{a.v[0] + b, a.v[1] + b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator-(Tile<C> a, C b) {
  return {{a.v[0] - b, a.v[1] - b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator*(Tile<C> a, C b) {
  return {{a.v[0] * b, a.v[1] * b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator/(Tile<C> a, C b) {
  return {{a.v[0] / b, a.v[1] / b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> larger(Tile<C> a, Tile<C> b) {
  return {{larger(a.v[0], b.v[0]), larger(a.v[1], b.v[1])}};
}

// Lane i of the result is lane `lane[i]` of `low` and `high` side by side.
FUSEDOPS_INLINE Vec<float> shuffled(Vec<float> low, Vec<float> high, VecI32 lane) {
#if defined(__clang__)  // its builtin takes constants alone
  constexpr int L = kLanes<float>;
  Vec<float> result;
  for (int i = 0; i < L; ++i) result[i] = lane[i] < L ? low[lane[i]] : high[lane[i] - L];
  return result;
#else
  return __builtin_shuffle(low, high, lane);
#endif
}

// A tile in From's order, put into To's.
template <class From, class To, class C>
FUSEDOPS_INLINE Tile<C> in_order(Tile<C> tile) {
  if constexpr (kEvenOdd<From> == kEvenOdd<To>) {
    return tile;
  } else {
    constexpr int L = kLanes<float>;
    VecI32 first, second;
    for (int i = 0; i < L; ++i) {
      first[i] = kEvenOdd<From> ? (i % 2) * L + i / 2 : 2 * i;
      second[i] = first[i] + (kEvenOdd<From> ? L / 2 : 1);
    }
    return {{shuffled(tile.v[0], tile.v[1], first), shuffled(tile.v[0], tile.v[1], second)}};
  }
}

template <class V>
FUSEDOPS_INLINE V read(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

// --- conversion ---------------------------------------------------------------------------------

// Round to nearest even into the upper 16 bits. The low bits of a NaN must be clear, or it could
// round to infinity: NaNs that arithmetic makes, or that come from bfloat16, are so, and columns()
// sees to those in float32 weights.
FUSEDOPS_INLINE VecU32 rounded_to_bfloat16(Vec<float> value) {
  const VecU32 bits = (VecU32)value;
  const VecU32 odd = VecU32{} + 0x8000u, even = VecU32{} + 0x7fffu;
  return bits + ((bits & 0x10000u) != 0u ? odd : even);
}

#if defined(__AVX512F__)
FUSEDOPS_INLINE Vec<float> widen_half(VecU16 bits) {
  return (Vec<float>)_mm512_cvtph_ps((__m256i)bits);
}
FUSEDOPS_INLINE VecU16 narrow_half(Vec<float> value) {
  return (VecU16)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
FUSEDOPS_INLINE Vec<float> widen_half(VecU16 bits) {
  return (Vec<float>)_mm256_cvtph_ps((__m128i)bits);
}
FUSEDOPS_INLINE VecU16 narrow_half(Vec<float> value) {
  return (VecU16)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
FUSEDOPS_INLINE Vec<float> widen_half(VecU16 narrow) {
  const VecU32 half = __builtin_convertvector(narrow, VecU32);
  const VecU32 magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
  const VecU32 normal = (magnitude << 13) + (112u << 23);
  const VecU32 special = (magnitude << 13) | 0x7f800000u;
  const VecU32 denormal =
      (VecU32)(__builtin_convertvector((VecI32)magnitude, Vec<float>) * 0x1p-24f);
  const VecU32 finite = magnitude < 0x0400u ? denormal : normal;
  return (Vec<float>)((magnitude >= 0x7c00u ? special : finite) | sign);
}
FUSEDOPS_INLINE VecU16 narrow_half(Vec<float> value) {
  const VecU32 bits = (VecU32)value;
  const VecU32 magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  const VecU32 normal = (magnitude + (0u - (112u << 23)) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding one half aligns a denormal's last bit with the float's, and rounds it.
  const VecU32 denormal = (VecU32)((Vec<float>)magnitude + 0.5f) - 0x3f000000u;
  const VecU32 finite = magnitude < 0x38800000u ? denormal : normal;
  const VecU32 not_a_number = VecU32{} + 0x7e00u, infinity = VecU32{} + 0x7c00u;
  const VecU32 special = magnitude > 0x7f800000u ? not_a_number : infinity;
  return __builtin_convertvector((magnitude >= 0x47800000u ? special : finite) | sign, VecU16);
}
#endif

// --- loads and stores ---------------------------------------------------------------------------

template <class C>
FUSEDOPS_INLINE Tile<C> load(const C* from) {
  return {{read<Vec<C>>(from), read<Vec<C>>(from + kLanes<C>)}};
}
FUSEDOPS_INLINE Tile<float> load(const BFloat16* from) {
  const VecU32 pairs = read<VecU32>(from);
  return {{(Vec<float>)(pairs << 16), (Vec<float>)(pairs & 0xffff0000u)}};
}
FUSEDOPS_INLINE Tile<float> load(const Half* from) {
  return {{widen_half(read<VecU16>(from)), widen_half(read<VecU16>(from + kLanes<float>))}};
}

// What store() writes: vectors in memory order.
template <class C>
FUSEDOPS_INLINE Tile<C> packed(Tile<C> tile, const C*) {
  return tile;
}
FUSEDOPS_INLINE VecU32 packed(Tile<float> tile, const BFloat16*) {
  return (rounded_to_bfloat16(tile.v[0]) >> 16) | (rounded_to_bfloat16(tile.v[1]) & 0xffff0000u);
}
FUSEDOPS_INLINE VecU32 packed(Tile<float> tile, const Half*) {
  const VecU16 halves[] = {narrow_half(tile.v[0]), narrow_half(tile.v[1])};
  return read<VecU32>(halves);
}

template <class V>
FUSEDOPS_INLINE void write(void* to, V bits) {
  std::memcpy(to, &bits, sizeof(bits));
}
template <class C>
FUSEDOPS_INLINE void write(void* to, Tile<C> tile) {
  write(to, tile.v[0]);
  write(static_cast<char*>(to) + kVectorBytes, tile.v[1]);
}

template <class V>
FUSEDOPS_INLINE void write_around_cache(void* to, V bits) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i*)to, (__m512i)bits);
#elif defined(__AVX2__)
  _mm256_stream_si256((__m256i*)to, (__m256i)bits);
#elif defined(__SSE2__)
  _mm_stream_si128((__m128i*)to, (__m128i)bits);
#else
  write(to, bits);
#endif
}
template <class C>
FUSEDOPS_INLINE void write_around_cache(void* to, Tile<C> tile) {
  write_around_cache(to, tile.v[0]);
  write_around_cache(static_cast<char*>(to) + kVectorBytes, tile.v[1]);
}

template <class T>
FUSEDOPS_INLINE void store(T* to, Tile<Compute<T>> tile) {
  write(to, packed(tile, to));
}

// A store that does not read the line it writes: +35 % where the data is larger than the last-level
// cache, a loss of 25-65 % where it is not. `to` is aligned to kVectorBytes.
template <class T>
FUSEDOPS_INLINE void stream(T* to, Tile<Compute<T>> tile) {
  write_around_cache(to, packed(tile, to));
}

// Orders streaming stores before the release that ends a parallel region.
FUSEDOPS_INLINE void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// What part of a tile a step covers: all of it, or the first `count` columns at the end of a row.
struct Whole {};
struct First {
  int count;
};

// Columns past the end of the row are 0.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> load(const T* from, Whole) {
  return load(from);
}
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> load(const T* from, First part) {
  T columns[kTile<T>] = {};
  std::memcpy(columns, from, part.count * sizeof(T));
  return load(columns);
}
template <class T>
FUSEDOPS_INLINE void store(T* to, Whole, Tile<Compute<T>> tile) {
  store(to, tile);
}
template <class T>
FUSEDOPS_INLINE void store(T* to, First part, Tile<Compute<T>> tile) {
  T columns[kTile<T>];
  store(columns, tile);
  std::memcpy(to, columns, part.count * sizeof(T));
}

// The tile of a T with `value` in the columns past the end of the row.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> filled(Tile<Compute<T>> tile, Whole, Compute<T>) {
  return tile;
}
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> filled(Tile<Compute<T>> tile, First part, Compute<T> value) {
  for (int half = 0; half < 2; ++half) {
    for (int lane = 0; lane < kLanes<Compute<T>>; ++lane) {
      if (column_of<T>(half, lane) >= part.count) tile.v[half][lane] = value;
    }
  }
  return tile;
}

// --- rows ---------------------------------------------------------------------------------------

// body(col, part, slot) over all columns of a row of T; steps with another `slot` < 2 are
// independent, so that a floating-point add or max (3-4 cycles) need not wait for the one before.
// The order is a function of `cols` alone.
template <class T, class Body>
FUSEDOPS_INLINE void for_columns(int64_t cols, Body body) {
  int64_t col = 0;
  for (; col + 2 * kTile<T> <= cols; col += 2 * kTile<T>) {
    body(col, Whole{}, 0);
    body(col + kTile<T>, Whole{}, 1);
  }
  if (col + kTile<T> <= cols) {
    body(col, Whole{}, 0);
    col += kTile<T>;
  }
  if (col < cols) body(col, First{static_cast<int>(cols - col)}, 0);
}

// The lanes combined as a tree, upper half with lower half: the same order for every row.
template <class C, int Bytes = kVectorBytes, class Combine>
FUSEDOPS_INLINE C across_lanes(typename VecOf<C, Bytes>::type value, Combine combine) {
  if constexpr (Bytes == 2 * sizeof(C)) {
    return combine(value[0], value[1]);
  } else {
    using Half = typename VecOf<C, Bytes / 2>::type;
    Half low, high;
    std::memcpy(&low, &value, Bytes / 2);
    std::memcpy(&high, reinterpret_cast<const char*>(&value) + Bytes / 2, Bytes / 2);
    return across_lanes<C, Bytes / 2>(combine(low, high), combine);
  }
}

struct Add {
  template <class V>
  FUSEDOPS_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
struct Larger {
  template <class V>
  FUSEDOPS_INLINE V operator()(V a, V b) const {
    return b > a ? b : a;
  }
};

// Half of a vector's lanes each, as doubles.
FUSEDOPS_INLINE Vec<double> widened_sum(Vec<float> value) {
  typename VecOf<float, kVectorBytes / 2>::type low, high;
  std::memcpy(&low, &value, sizeof(low));
  std::memcpy(&high, reinterpret_cast<const char*>(&value) + sizeof(low), sizeof(high));
  return __builtin_convertvector(low, Vec<double>) + __builtin_convertvector(high, Vec<double>);
}
FUSEDOPS_INLINE Vec<double> widened_sum(Vec<double> value) { return value; }

// One accumulator for each slot of for_columns().
template <class C>
struct Accumulators {
  Tile<C> slot[2];

  FUSEDOPS_INLINE explicit Accumulators(C initial) : slot{both(initial), both(initial)} {}
  // The lanes are added in double: a lane that holds the one large term leaves the others' digits.
  FUSEDOPS_INLINE double sum() const {
    const Vec<double> first = widened_sum(slot[0].v[0]) + widened_sum(slot[0].v[1]);
    const Vec<double> second = widened_sum(slot[1].v[0]) + widened_sum(slot[1].v[1]);
    return across_lanes<double>(first + second, Add{});
  }
  FUSEDOPS_INLINE C max() const {
    const Tile<C> all = larger(slot[0], slot[1]);
    return across_lanes<C>(larger(all.v[0], all.v[1]), Larger{});
  }
};

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
