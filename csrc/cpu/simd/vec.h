// Tiles of columns in the widest vectors of an instruction set, and loads and stores that convert
// them.
//
// Everything under cpu/ is compiled once per instruction set (dispatch/isa.h), each time in its own
// namespace and without templates of the C++ standard library: the linker merges a template that
// several files instantiate, and might use its AVX-512 code on a machine without AVX-512.
//
// Vectors are compiler vector types (GCC and Clang), so arithmetic is written with operators.
// Intrinsics appear only where the language has no operator: maximum, conversion of half, scaling
// by a power of two, streaming stores.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "args.h"

// Inlining turns a loop over columns into straight code without calls. Under sanitizers that code
// would be several times as long and would compile for minutes, so nothing is forced inline.
// Sanitizers do not see the accesses of intrinsics either: where there is a choice, they get plain
// accesses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FUSEDOPS_SANITIZED
#define FUSEDOPS_INLINE inline
#define FUSEDOPS_LAMBDA
#else
#define FUSEDOPS_INLINE inline __attribute__((always_inline))
#define FUSEDOPS_LAMBDA __attribute__((always_inline))
#endif
// For functions with many callers, which would each get a copy.
#define FUSEDOPS_NOINLINE __attribute__((noinline))

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

// Compute<T>: the type in which arithmetic on T is done.
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

// Returns b > a ? b : a or b < a ? b : a, which is a if either is NaN. The instructions compute the
// same, but GCC selects them only under -ffast-math.
FUSEDOPS_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_max_ps((__m512)b, (__m512)a);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_max_ps((__m256)b, (__m256)a);
#elif defined(__SSE2__)
  return (Vec<float>)_mm_max_ps((__m128)b, (__m128)a);
#else
  return b > a ? b : a;
#endif
}
FUSEDOPS_INLINE Vec<double> larger(Vec<double> a, Vec<double> b) { return b > a ? b : a; }
FUSEDOPS_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_min_ps((__m512)b, (__m512)a);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_min_ps((__m256)b, (__m256)a);
#elif defined(__SSE2__)
  return (Vec<float>)_mm_min_ps((__m128)b, (__m128)a);
#else
  return b < a ? b : a;
#endif
}
FUSEDOPS_INLINE Vec<double> smaller(Vec<double> a, Vec<double> b) { return b < a ? b : a; }

// --- tiles --------------------------------------------------------------------------------------

// Two vectors: the columns that one step of a kernel computes. Their order is the one in which T is
// cheapest to load; for bfloat16 that is first the even columns, then the odd ones, with one
// instruction each. Tiles in scratch memory, including those of weight and bias, have that order
// too; store() undoes it.
template <class C>
struct Tile {
  Vec<C> v[2];
};

template <class T>
constexpr int kTile = 2 * kLanes<Compute<T>>;

// Hides from the optimizer how a value was computed, so that its operations are neither fused nor
// reordered with later ones.
template <class V>
FUSEDOPS_INLINE V opaque(V value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// A product that is not fused into an addition. The compiler would fuse the two if they stand in
// one loop, and not if they stand apart, so that the bits of a result would depend on where it is
// computed.
template <class C>
FUSEDOPS_INLINE Tile<C> unfused(Tile<C> product) {
  return {{opaque(product.v[0]), opaque(product.v[1])}};
}

template <class T>
constexpr bool kEvenOdd = false;
template <>
constexpr bool kEvenOdd<BFloat16> = true;

// The column, within its tile, in lane `lane` of vector `half`.
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
FUSEDOPS_INLINE Tile<C> operator-(Tile<C> a, C b) {
  return {{a.v[0] - b, a.v[1] - b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator*(Tile<C> a, C b) {
  return {{a.v[0] * b, a.v[1] * b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator/(Tile<C> a, Tile<C> b) {
  return {{a.v[0] / b.v[0], a.v[1] / b.v[1]}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> operator/(Tile<C> a, C b) {
  return {{a.v[0] / b, a.v[1] / b}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> larger(Tile<C> a, Tile<C> b) {
  return {{larger(a.v[0], b.v[0]), larger(a.v[1], b.v[1])}};
}

// A vector of lane numbers for a vector of C.
template <class C>
struct LanesOf {
  using type = VecI32;
};
template <>
struct LanesOf<double> {
  using type = VecI64;
};
template <class C>
using Lanes = typename LanesOf<C>::type;

// Lane i of the result is lane `lane[i]` of `low` and `high` side by side.
template <class C>
FUSEDOPS_INLINE Vec<C> shuffled(Vec<C> low, Vec<C> high, Lanes<C> lane) {
#if defined(__clang__)  // Clang's builtin accepts only constants
  constexpr int L = kLanes<C>;
  Vec<C> result;
  for (int i = 0; i < L; ++i) result[i] = lane[i] < L ? low[lane[i]] : high[lane[i] - L];
  return result;
#else
  return __builtin_shuffle(low, high, lane);
#endif
}

// Permutes a tile from From's order to To's.
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
    return {{shuffled<C>(tile.v[0], tile.v[1], first), shuffled<C>(tile.v[0], tile.v[1], second)}};
  }
}

template <class V>
FUSEDOPS_INLINE V read(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

// --- conversion ---------------------------------------------------------------------------------

// Rounds to nearest even into the upper 16 bits. A NaN is truncated instead: rounding one whose
// bits are all set would carry into the sign and leave zero. A truncated NaN is still a NaN,
// because arithmetic sets its quiet bit, which is in the upper half, and only results of arithmetic
// are stored.
FUSEDOPS_INLINE VecU32 rounded_to_bfloat16(Vec<float> value) {
#if defined(__AVX512F__)
  const __m512i bits = (__m512i)value;  // four instructions; GCC makes six of the code below
  const __mmask16 number = _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_ORD_Q);
  const __mmask16 odd = _mm512_mask_test_epi32_mask(number, bits, _mm512_set1_epi32(0x10000));
  const __m512i even = _mm512_mask_add_epi32(bits, number, bits, _mm512_set1_epi32(0x7fff));
  return (VecU32)_mm512_mask_add_epi32(even, odd, bits, _mm512_set1_epi32(0x8000));
#else
  const VecU32 bits = (VecU32)value;
  return value == value ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits;
#endif
}

// Replaces values that float16 rounds to 0 by a zero of the same sign, because the conversion
// instruction would report an underflow.
FUSEDOPS_INLINE Vec<float> zero_if_half_is(Vec<float> value) {
  constexpr int32_t kMagnitude = 0x7fffffff, kHalfOfLeast = 0x33000000;  // 2^-25
  const VecI32 bits = (VecI32)value;
  const VecI32 zero = bits & ~kMagnitude;
  return (Vec<float>)((bits & kMagnitude) <= kHalfOfLeast ? zero : bits);
}

#if defined(__AVX512F__)
FUSEDOPS_INLINE Vec<float> widen_half(VecU16 bits) {
  return (Vec<float>)_mm512_cvtph_ps((__m256i)bits);
}
FUSEDOPS_INLINE VecU16 narrow_half(Vec<float> value) {
  value = zero_if_half_is(value);
  return (VecU16)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
FUSEDOPS_INLINE Vec<float> widen_half(VecU16 bits) {
  return (Vec<float>)_mm256_cvtph_ps((__m128i)bits);
}
FUSEDOPS_INLINE VecU16 narrow_half(Vec<float> value) {
  value = zero_if_half_is(value);
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

// Returns what store() writes: vectors in memory order.
template <class C>
FUSEDOPS_INLINE Tile<C> packed(Tile<C> tile, const C*) {
  return tile;
}
FUSEDOPS_INLINE VecU32 packed(Tile<float> tile, const BFloat16*) {
  return (rounded_to_bfloat16(tile.v[0]) >> 16) | (rounded_to_bfloat16(tile.v[1]) & 0xffff0000u);
}
// The two halves are joined in registers: reading both at once from memory would wait for the two
// stores.
FUSEDOPS_INLINE VecU32 packed(Tile<float> tile, const Half*) {
  const VecU16 first = narrow_half(tile.v[0]), second = narrow_half(tile.v[1]);
#if defined(__AVX512F__)
  return (VecU32)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)first), (__m256i)second, 1);
#elif defined(__AVX2__)
  return (VecU32)_mm256_inserti128_si256(
      _mm256_castsi128_si256((__m128i)first), (__m128i)second, 1);
#else
  const VecU16 halves[] = {first, second};
  return read<VecU32>(halves);
#endif
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
FUSEDOPS_INLINE void write_non_temporal(void* to, V bits) {
#if defined(FUSEDOPS_SANITIZED)
  *static_cast<V*>(to) = bits;
#elif defined(__AVX512F__)
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
FUSEDOPS_INLINE void write_non_temporal(void* to, Tile<C> tile) {
  write_non_temporal(to, tile.v[0]);
  write_non_temporal(static_cast<char*>(to) + kVectorBytes, tile.v[1]);
}

template <class T>
FUSEDOPS_INLINE void store(T* to, Tile<Compute<T>> tile) {
  write(to, packed(tile, to));
}

// Rounds a tile as store() and load() of a T would.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> rounded(Tile<Compute<T>> tile) {
  if constexpr (sizeof(T) > 2) {
    return tile;
  } else {
    T columns[kTile<T>];
    store(columns, tile);
    return load(columns);
  }
}

// A store that does not read the cache line it writes. It gains 35 % if the data exceeds the
// last-level cache, and loses 25-65 % if it does not. `to` is aligned to kVectorBytes.
template <class T>
FUSEDOPS_INLINE void stream(T* to, Tile<Compute<T>> tile) {
  write_non_temporal(to, packed(tile, to));
}

// Orders streaming stores before the release that ends a parallel region.
FUSEDOPS_INLINE void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Prefetches a tile: into L1 what is read next, into L2 what would evict from L1 data that is still
// needed. An address past the end of an array does no harm.
enum class Cache { kL2 = 2, kL1 = 3 };

template <Cache cache, class T>
FUSEDOPS_INLINE void prefetch_tile(const T* from) {
  constexpr int kCacheLine = 64 / sizeof(T);
  for (int col = 0; col < kTile<T>; col += kCacheLine) {
    __builtin_prefetch(from + col, 0, static_cast<int>(cache));
  }
}

// The part of a tile that a step covers: all of it, or the first `count` columns at the end of a
// row.
struct Whole {};
struct First {
  int count;
};

// Whether the instruction set has masked loads and stores for columns of T.
template <class T>
constexpr bool kHasColumnMasks = kVectorBytes == 64 || (kVectorBytes == 32 && sizeof(T) >= 4);

// Read or write the first `count` bytes or columns; the rest reads as 0. Masked instructions are
// used if the instruction set has them: for short rows a call of memcpy costs more than the
// arithmetic.
#if defined(__AVX512F__) && !defined(FUSEDOPS_SANITIZED)
FUSEDOPS_INLINE __mmask64 first_bytes(int64_t count) {
  return count >= 64 ? ~__mmask64(0) : count <= 0 ? 0 : (__mmask64(1) << count) - 1;
}
template <int Size>
FUSEDOPS_INLINE void read_bytes(void* to, const void* from, int64_t count) {
  static_assert(Size == 64);
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(first_bytes(count), from));
}

// A mask of columns takes one shift; a mask of bytes would take branches at each load.
template <int Size>
FUSEDOPS_INLINE __m512i read_masked(const void* from, uint32_t mask) {
  if constexpr (Size == 2) return _mm512_maskz_loadu_epi16(mask, from);
  if constexpr (Size == 4) return _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), from);
  if constexpr (Size == 8) return _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), from);
}
template <int Size>
FUSEDOPS_INLINE void write_masked(void* to, uint32_t mask, __m512i columns) {
  if constexpr (Size == 2) _mm512_mask_storeu_epi16(to, mask, columns);
  if constexpr (Size == 4) _mm512_mask_storeu_epi32(to, static_cast<__mmask16>(mask), columns);
  if constexpr (Size == 8) _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask), columns);
}

template <class T>
FUSEDOPS_INLINE void read_columns(T (&to)[kTile<T>], const T* from, int count) {
  const uint32_t mask = (1u << count) - 1;
  for (int at = 0; at < kTile<T>; at += 64 / sizeof(T)) {
    _mm512_storeu_si512(to + at, read_masked<sizeof(T)>(from + at, mask >> at));
  }
}
template <class T>
FUSEDOPS_INLINE void write_columns(T* to, const T (&from)[kTile<T>], int count) {
  const uint32_t mask = (1u << count) - 1;
  for (int at = 0; at < kTile<T>; at += 64 / sizeof(T)) {
    if (count <= at) break;
    write_masked<sizeof(T)>(to + at, mask >> at, _mm512_loadu_si512(from + at));
  }
}
#else
template <int Size>
FUSEDOPS_INLINE void read_bytes(void* to, const void* from, int64_t count) {
  std::memset(to, 0, Size);
  std::memcpy(to, from, count);
}
#if defined(__AVX2__) && !defined(FUSEDOPS_SANITIZED)
// Masks for columns of 4 and 8 bytes. With memcpy, the vector load would wait for several smaller
// stores.
FUSEDOPS_INLINE VecI32 first_words(int count) {
  return VecI32{0, 1, 2, 3, 4, 5, 6, 7} < VecI32{} + count;
}
template <class T>
FUSEDOPS_INLINE void read_columns(T (&to)[kTile<T>], const T* from, int count) {
  if constexpr (sizeof(T) == 2) return read_bytes<sizeof(to)>(to, from, count * sizeof(T));
  constexpr int kWords = sizeof(T) / 4;
  for (int word = 0; word < kTile<T> * kWords; word += 8) {
    const __m256i mask = (__m256i)first_words(count * kWords - word);
    const int* source = reinterpret_cast<const int*>(from) + word;
    write(reinterpret_cast<char*>(to) + 4 * word, _mm256_maskload_epi32(source, mask));
  }
}
template <class T>
FUSEDOPS_INLINE void write_columns(T* to, const T (&from)[kTile<T>], int count) {
  if constexpr (sizeof(T) == 2) {
    std::memcpy(to, from, count * sizeof(T));
  } else {
    constexpr int kWords = sizeof(T) / 4;
    for (int word = 0; word < kTile<T> * kWords; word += 8) {
      const __m256i mask = (__m256i)first_words(count * kWords - word);
      const auto columns = read<__m256i>(reinterpret_cast<const char*>(from) + 4 * word);
      _mm256_maskstore_epi32(reinterpret_cast<int*>(to) + word, mask, columns);
    }
  }
}
#else
template <class T>
FUSEDOPS_INLINE void read_columns(T (&to)[kTile<T>], const T* from, int count) {
  read_bytes<sizeof(to)>(to, from, count * sizeof(T));
}
template <class T>
FUSEDOPS_INLINE void write_columns(T* to, const T (&from)[kTile<T>], int count) {
  std::memcpy(to, from, count * sizeof(T));
}
#endif
#endif

// Columns past the end of the row are loaded as 0.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> load(const T* from, Whole) {
  return load(from);
}
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> load(const T* from, First part) {
  T columns[kTile<T>];
  read_columns(columns, from, part.count);
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
  write_columns(to, columns, part.count);
}

// Stores results, whole tiles with non-temporal stores if `streams` is set. The branch is the same
// for every tile of a call, and costs less than compiling each loop twice.
struct Put {
  bool streams;

  template <class T, class V>
  FUSEDOPS_INLINE void operator()(T* to, Whole part, V value) const {
    if (streams) return stream(to, value);
    store(to, part, value);
  }
  template <class T, class V>
  FUSEDOPS_INLINE void operator()(T* to, First part, V value) const {
    store(to, part, value);
  }

  // Stores a tile of each of several rows. If the results stay in the cache, the tiles `ahead`
  // elements further on, which are written later, are prefetched.
  template <class T, class Part, class V, int kCount>
  FUSEDOPS_INLINE void rows(
      T* const (&to)[kCount], int64_t col, Part part, const V (&values)[kCount],
      int64_t ahead) const {
    if (streams) {
      for (int r = 0; r < kCount; ++r) (*this)(to[r] + col, part, values[r]);
    } else {
      for (int r = 0; r < kCount; ++r) {
        prefetch_tile<Cache::kL2>(to[r] + ahead + col);
        store(to[r] + col, part, values[r]);
      }
    }
  }
};

// Replaces the columns past the end of the row by `value`.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> filled(Tile<Compute<T>> tile, Whole, Compute<T>) {
  return tile;
}
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> filled(Tile<Compute<T>> tile, First part, Compute<T> value) {
  using C = Compute<T>;
  for (int half = 0; half < 2; ++half) {
    Lanes<C> column;
    for (int lane = 0; lane < kLanes<C>; ++lane) column[lane] = column_of<T>(half, lane);
    const Lanes<C> count = Lanes<C>{} + part.count;
    tile.v[half] = column < count ? tile.v[half] : broadcast(value);
  }
  return tile;
}

// --- bools --------------------------------------------------------------------------------------

struct Bool {
  uint8_t value;
};

// A mask for a tile in T's order: lanes are nonzero where true.
template <class C>
struct Choice {
  Lanes<C> v[2];
};

template <class C>
FUSEDOPS_INLINE Tile<C> chosen(Choice<C> choice, Tile<C> yes, C no) {
  Tile<C> tile;
  for (int half = 0; half < 2; ++half) {
    tile.v[half] = choice.v[half] != 0 ? yes.v[half] : broadcast(no);
  }
  return tile;
}

// Widens kLanes<C> bytes, one to each lane.
#if defined(__AVX512F__)
FUSEDOPS_INLINE VecI32 widen_bytes(const Bool* from, VecI32*) {
  return (VecI32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
}
FUSEDOPS_INLINE VecI64 widen_bytes(const Bool* from, VecI64*) {
  return (VecI64)_mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)from));
}
#elif defined(__AVX2__)
FUSEDOPS_INLINE VecI32 widen_bytes(const Bool* from, VecI32*) {
  return (VecI32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
}
FUSEDOPS_INLINE VecI64 widen_bytes(const Bool* from, VecI64*) {
  return (VecI64)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(read<int32_t>(from)));
}
#else
template <class L>
FUSEDOPS_INLINE L widen_bytes(const Bool* from, L*) {
  L lanes;
  for (int i = 0; i < int(sizeof(L) / sizeof(lanes[0])); ++i) lanes[i] = from[i].value;
  return lanes;
}
#endif

// Widens pairs of bytes, one pair to each lane: the byte of the even column is the low one.
FUSEDOPS_INLINE VecI32 widen_byte_pairs(const Bool* from) {
#if defined(__AVX512F__)
  return (VecI32)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
  return (VecI32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
  VecI32 lanes;
  for (int i = 0; i < kLanes<float>; ++i) lanes[i] = from[2 * i].value | from[2 * i + 1].value << 8;
  return lanes;
#endif
}

template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Choice<C> load_bools(const Bool* from, Whole) {
  if constexpr (kEvenOdd<T>) {
    const VecI32 pairs = widen_byte_pairs(from);
    return {{pairs & 0xff, pairs & 0xff00}};
  } else {
    Lanes<C>* lanes = nullptr;
    return {{widen_bytes(from, lanes), widen_bytes(from + kLanes<C>, lanes)}};
  }
}
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Choice<C> load_bools(const Bool* from, First part) {
  Bool bools[kVectorBytes];
  read_bytes<sizeof(bools)>(bools, from, part.count);
  return load_bools<T>(bools, Whole{});
}

// --- rows ---------------------------------------------------------------------------------------

template <class T>
FUSEDOPS_INLINE const T* start_of(const ConstRows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + rows.spacing.offset(row);
}
template <class T>
FUSEDOPS_INLINE T* start_of(const Rows& rows, int64_t row) {
  return static_cast<T*>(rows.data) + rows.spacing.offset(row);
}

// Whether `count` rows from `first` on are evenly spaced. If the rows form runs, as in x[:, :-1],
// only rows of one run are.
template <class Given>
FUSEDOPS_INLINE bool are_even(const Given& rows, int64_t first, int64_t count) {
  const RowSpacing& spacing = rows.spacing;
  if (spacing.run_gap == 0) return true;
  return spacing.offset(first + count - 1) - spacing.offset(first) == (count - 1) * spacing.stride;
}

// Tiles of a row in memory, or of a row in scratch memory.
template <class T>
struct FromMemory {
  const T* row;
  template <class Part>
  FUSEDOPS_INLINE Tile<Compute<T>> at(int64_t col, Part part) const {
    return load(row + col, part);
  }
};
template <class C>
struct FromScratch {
  const C* row;
  template <class Part>
  FUSEDOPS_INLINE Tile<C> at(int64_t col, Part) const {
    return load(row + col);
  }
};

// Calls body(col, part) for every tile of a row of T.
template <class T, class Body>
FUSEDOPS_INLINE void for_columns(int64_t cols, Body body) {
  int64_t col = 0;
  for (; col + kTile<T> <= cols; col += kTile<T>) body(col, Whole{});
  if (col < cols) body(col, First{static_cast<int>(cols - col)});
}

// The two accumulators of fold_columns(): one for the even tiles, one for the odd tiles.
template <class Sums>
struct Folded {
  Sums even, odd;
};

// Computes sums = step(sums, col, part) over all columns of a row of T, from `start`. Two
// accumulators form separate dependency chains, so that a floating-point add or max (3-4 cycles)
// need not wait for the one before. They are passed by value: accumulators that a step reached by
// reference would live in memory. The order of operations depends on `cols` alone.
template <class T, class Sums, class Step>
FUSEDOPS_INLINE Folded<Sums> fold_columns(int64_t cols, Sums start, Step step) {
  Sums even = start, odd = start;
  int64_t col = 0;
  for (; col + 2 * kTile<T> <= cols; col += 2 * kTile<T>) {
    even = step(even, col, Whole{});
    odd = step(odd, col + kTile<T>, Whole{});
  }
  if (col + kTile<T> <= cols) {
    even = step(even, col, Whole{});
    col += kTile<T>;
  }
  if (col < cols) even = step(even, col, First{static_cast<int>(cols - col)});
  return {even, odd};
}

// Combines the lanes as a tree, upper half with lower half, in the same order for every row. Width
// is a constant: otherwise GCC builds the index vector of each shuffle lane by lane, 40
// instructions per step.
template <class C, int Width = kLanes<C> / 2, class Combine>
FUSEDOPS_INLINE C across_lanes(Vec<C> value, Combine combine) {
  if constexpr (Width == 0) {
    return value[0];
  } else {
    Lanes<C> partner;
    for (int lane = 0; lane < kLanes<C>; ++lane) partner[lane] = lane ^ Width;
    const Vec<C> other = shuffled<C>(value, value, partner);
    return across_lanes<C, Width / 2>(combine(value, other), combine);
  }
}

struct Add {
  template <class V>
  FUSEDOPS_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
struct Larger {
  FUSEDOPS_INLINE float operator()(float a, float b) const { return b > a ? b : a; }
  FUSEDOPS_INLINE double operator()(double a, double b) const { return b > a ? b : a; }
  template <class V>
  FUSEDOPS_INLINE V operator()(V a, V b) const {
    return larger(a, b);
  }
};

// The lanes of a vector as doubles, in order.
template <class C>
struct Wide {
  Vec<double> v[sizeof(double) / sizeof(C)];
};

// The halves are extracted in registers. If one is read through memory, GCC keeps the vector in
// memory throughout, even in the loops before.
FUSEDOPS_INLINE Wide<float> widened(Vec<float> value) {
#if defined(__AVX512F__)
  const __m512 all = (__m512)value;
  return {
      {(Vec<double>)_mm512_cvtps_pd(_mm512_castps512_ps256(all)),
       (Vec<double>)_mm512_cvtps_pd(_mm512_extractf32x8_ps(all, 1))}};
#elif defined(__AVX2__)
  const __m256 all = (__m256)value;
  return {
      {(Vec<double>)_mm256_cvtps_pd(_mm256_castps256_ps128(all)),
       (Vec<double>)_mm256_cvtps_pd(_mm256_extractf128_ps(all, 1))}};
#elif defined(__SSE2__)
  const __m128 all = (__m128)value;
  return {{(Vec<double>)_mm_cvtps_pd(all), (Vec<double>)_mm_cvtps_pd(_mm_movehl_ps(all, all))}};
#else
  return {
      {Vec<double>{double(value[0]), double(value[1])},
       Vec<double>{double(value[2]), double(value[3])}}};
#endif
}
FUSEDOPS_INLINE Wide<double> widened(Vec<double> value) { return {{value}}; }

FUSEDOPS_INLINE Vec<float> narrowed(Wide<float> value) {
#if defined(__AVX512F__)
  const __m256 low = _mm512_cvtpd_ps((__m512d)value.v[0]);
  const __m256 high = _mm512_cvtpd_ps((__m512d)value.v[1]);
  return (Vec<float>)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#elif defined(__AVX2__)
  const __m128 low = _mm256_cvtpd_ps((__m256d)value.v[0]);
  const __m128 high = _mm256_cvtpd_ps((__m256d)value.v[1]);
  return (Vec<float>)_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
#elif defined(__SSE2__)  // lane by lane, GCC 12 drops the rounding of values that are widened again
  const __m128 low = _mm_cvtpd_ps((__m128d)value.v[0]), high = _mm_cvtpd_ps((__m128d)value.v[1]);
  return (Vec<float>)_mm_movelh_ps(low, high);
#else
  const Vec<double> low = value.v[0], high = value.v[1];
  return Vec<float>{float(low[0]), float(low[1]), float(high[0]), float(high[1])};
#endif
}
FUSEDOPS_INLINE Vec<double> narrowed(Wide<double> value) { return value.v[0]; }

template <class C>
struct WideTile {
  Wide<C> v[2];
};

template <class C>
FUSEDOPS_INLINE WideTile<C> widened(Tile<C> tile) {
  return {{widened(tile.v[0]), widened(tile.v[1])}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> narrowed(WideTile<C> wide) {
  return {{narrowed(wide.v[0]), narrowed(wide.v[1])}};
}

template <class C, class Body>
FUSEDOPS_INLINE WideTile<C> each(WideTile<C> a, WideTile<C> b, Body body) {
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < int(sizeof(a.v[half]) / kVectorBytes); ++i) {
      a.v[half].v[i] = body(a.v[half].v[i], b.v[half].v[i]);
    }
  }
  return a;
}
template <class C>
FUSEDOPS_INLINE WideTile<C> operator+(WideTile<C> a, WideTile<C> b) {
  return each(a, b, Add{});
}

FUSEDOPS_INLINE Vec<double> widened_sum(Vec<float> value) {
  const Wide<float> wide = widened(value);
  return wide.v[0] + wide.v[1];
}
FUSEDOPS_INLINE Vec<double> widened_sum(Vec<double> value) { return value; }

// Adds the lanes in double, so that one large term in a lane does not cost the digits of the
// others.
template <class C>
FUSEDOPS_INLINE double sum_of(Tile<C> a, Tile<C> b) {
  const Vec<double> first = widened_sum(a.v[0]) + widened_sum(a.v[1]);
  const Vec<double> second = widened_sum(b.v[0]) + widened_sum(b.v[1]);
  return across_lanes<double>(first + second, Add{});
}

// Adds the two accumulators of fold_columns(), over `cols` columns, in double; the lanes remain to
// be added. Lanes that hold no column are 0 and are not converted.
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Vec<double> lanes_of_sum(Folded<Tile<C>> sums, int64_t cols) {
  Vec<double> first = widened_sum(sums.even.v[0]), second{};
  if (kEvenOdd<T> || cols > kLanes<C>) {
    first += widened_sum(sums.even.v[1]);
  } else {
    first += second;
  }
  if (cols >= 2 * kTile<T>) second = widened_sum(sums.odd.v[0]) + widened_sum(sums.odd.v[1]);
  return first + second;
}
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE double sum_of_columns(Folded<Tile<C>> sums, int64_t cols) {
  return across_lanes<double>(lanes_of_sum<T>(sums, cols), Add{});
}

// Sums of the lanes of several vectors, in nearly the time of one. Each step adds the upper half of
// each sum's lanes to the lower half, and puts the sums of two vectors side by side. Every sum has
// the order of across_lanes(), whatever the other vectors hold.
template <class C, int Width, int kStep>
FUSEDOPS_INLINE void fold_lanes(Vec<C> (&v)[kLanes<C>]) {
  constexpr int L = kLanes<C>;
  if constexpr (Width > 1) {
    Lanes<C> lower;
    for (int lane = 0; lane < L; ++lane) {
      const int place = lane % (L / 2), sum = place / (Width / 2);
      lower[lane] = lane / (L / 2) * L + sum * Width + place % (Width / 2);
    }
    for (int i = 0; i < L; i += 2 * kStep) {
      const Vec<C> upper = shuffled<C>(v[i], v[i + kStep], lower + Width / 2);
      v[i] = shuffled<C>(v[i], v[i + kStep], lower) + upper;
    }
    fold_lanes<C, Width / 2, 2 * kStep>(v);
  }
}
template <class C, int kCount>
FUSEDOPS_INLINE void sums_over_lanes(const Vec<C> (&v)[kCount], C (&result)[kCount]) {
  constexpr int L = kLanes<C>;
  for (int first = 0; first < kCount; first += L) {
    Vec<C> lanes[L];
    for (int i = 0; i < L; ++i) lanes[i] = v[first + i < kCount ? first + i : kCount - 1];
    fold_lanes<C, L, 1>(lanes);
    for (int i = 0; i < L && first + i < kCount; ++i) result[first + i] = lanes[0][i];
  }
}

// Whether a comparison is true in any lane.
template <class L>
FUSEDOPS_INLINE bool any(L lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes);
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)lanes) != 0;
#else
  auto all = lanes[0];
  for (int i = 1; i < int(sizeof(L) / sizeof(all)); ++i) all |= lanes[i];
  return all != 0;
#endif
}

template <class C>
FUSEDOPS_INLINE C max_of(Tile<C> a, Tile<C> b) {
  const Tile<C> all = larger(a, b);
  return across_lanes<C>(larger(all.v[0], all.v[1]), Larger{});
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
