// Defines element types, and the vectors of an instruction set.
//
// Kernels (what a dispatch.cpp includes) are compiled once per instruction set (dispatch/isa.h),
// each time in a namespace of its own. At run time they call no templates of the C++ standard
// library: the linker merges a template that several files instantiate, and might use its AVX-512
// code on a machine without AVX-512.
//
// Vectors are compiler vector types (GCC and Clang), so arithmetic is written with operators. What
// the language has no operator for is a primitive of processor.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "args.h"

// Inlining turns a loop over columns into straight code without calls. Under sanitizers that code
// would be several times as long and would compile for minutes, so nothing is forced inline. As
// sanitizers do not see the memory accesses of intrinsics, FUSEDOPS_SANITIZED also selects plain
// accesses where there is a choice.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FUSEDOPS_SANITIZED
#define FUSEDOPS_INLINE inline
#define FUSEDOPS_LAMBDA
#else
#define FUSEDOPS_INLINE inline __attribute__((always_inline))
#define FUSEDOPS_LAMBDA __attribute__((always_inline))
#endif
// Marks functions that are not to be inlined: copies would make their callers large, or take
// registers from the callers' loops.
#define FUSEDOPS_NOINLINE __attribute__((noinline))

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

constexpr int kVectorBytes = FUSEDOPS_VECTOR_BYTES;  // cpu/CMakeLists.txt sets it

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};

// Compute<T> is the type in which arithmetic on T is done.
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

// One step of a kernel computes this many columns of T: two vectors (tile.h).
template <class T>
constexpr int kTile = 2 * kLanes<Compute<T>>;

template <class C, int Bytes = kVectorBytes>
struct VecOf {
  typedef C type __attribute__((vector_size(Bytes)));
};
template <class C>
using Vec = typename VecOf<C>::type;

using VecI32 = Vec<int32_t>;
using VecU32 = Vec<uint32_t>;
using VecU16 = VecOf<uint16_t, kVectorBytes / 2>::type;  // as many lanes as a vector of floats
using Words = VecOf<uint16_t, kVectorBytes>::type;       // as many lanes as a tile of floats
using VecI64 = Vec<int64_t>;
using VecU64 = Vec<uint64_t>;

// Lanes<C> is a vector of integers as wide as C, such as the result of a comparison of Vec<C>.
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

// Stands for a condition, of a vector or of a tile, that is true everywhere.
struct AllLanes {};

// A block is 16 bytes: the part of a vector within which every instruction set can permute.
constexpr int kBlockBytes = 16, kBlocks = kVectorBytes / kBlockBytes;
using Block = VecOf<uint64_t, kBlockBytes>::type;

// Whether the compiler fuses a product into a sum (FMA). If not, the product is a value of its own
// and may be denormal, which is slow and loses bits.
#if defined(__FP_FAST_FMAF)
constexpr bool kFusesProducts = true;
#else
constexpr bool kFusesProducts = false;
#endif

template <class C>
constexpr C kInfinity = static_cast<C>(__builtin_huge_val());

constexpr double kNaN = __builtin_nan("");

// Holds a constant in its type, so that it can be an argument of a generic lambda.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};
template <class Body>
FUSEDOPS_INLINE auto with_bool(bool value, Body body) {
  if (value) return body(Constant<true>{});
  return body(Constant<false>{});
}

template <class C>
FUSEDOPS_INLINE Vec<C> Set(C value) {
  return Vec<C>{} + value;
}

template <class V>
FUSEDOPS_INLINE V Load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}
template <class V>
FUSEDOPS_INLINE void Store(void* to, V bits) {
  std::memcpy(to, &bits, sizeof(bits));
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
