// The functions that translated PTX calls: memory, and the instructions that C++ has no operator
// for. Registers are plain variables.
//
// Contract: a kernel is one function, with the kernel's mangled name and the layout of its
// parameters. Generic and global addresses are the host's; shared ones count from the block's first
// array. A misaligned access, a barrier other than number 0 and a shuffle of less than a warp end
// the launch. The code is compiled unoptimised, so that the functions which every instruction needs
// are always inlined. Numerics: as PTX defines them. Approximate instructions are as exact as the
// host's libm, like their equivalents in device.h, and flush subnormals where PTX does.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simt.h"

namespace simt::ptx {

// A kernel's parameter of a struct type.
template <size_t kBytes>
struct alignas(8) Struct {
  unsigned char bytes[kBytes];
};

template <class T>
uint64_t address_of(const T& parameter) {
  return reinterpret_cast<uint64_t>(&parameter);
}

// Reinterprets bits: registers have widths, instructions have types. A conversion or a store may
// take the lower part of a wider register.
template <class To, class From>
[[gnu::always_inline]] inline To as(From from) {
  static_assert(sizeof(To) <= sizeof(From));
  if constexpr (sizeof(To) == sizeof(From)) {
    return __builtin_bit_cast(To, from);
  } else {
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
  }
}

template <class Register, class T>
[[gnu::always_inline]] inline void set(Register& to, T value) {
  static_assert(sizeof(Register) == sizeof(T));
  to = as<Register>(value);
}

// A loaded value may be narrower than the register.
template <class Register, class T>
void set_extended(Register& to, T value) {
  if constexpr (sizeof(Register) == sizeof(T)) {
    set(to, value);
  } else {
    to = value;
  }
}

template <class Whole, class Half>
Whole pack(Half low, Half high) {
  static_assert(sizeof(Whole) == 2 * sizeof(Half));
  return static_cast<Whole>(low | static_cast<Whole>(high) << 8 * sizeof(Half));
}

template <class Half, class Whole>
Half half_of(Whole value, int index) {
  static_assert(sizeof(Whole) == 2 * sizeof(Half));
  return static_cast<Half>(value >> 8 * sizeof(Half) * index);
}

template <class T, size_t kCount>
char* checked(uint64_t address, Site site) {
  if (address % (sizeof(T) * kCount) != 0) {
    fail(site, "misaligned access of %zu bytes", sizeof(T) * kCount);
  }
  return reinterpret_cast<char*>(address);
}

template <class T, size_t kCount>
std::array<T, kCount> load(uint64_t address, SIMT_HERE) {
  std::array<T, kCount> values;
  std::memcpy(&values, checked<T, kCount>(address, site), sizeof(values));
  return values;
}

template <class T, size_t kCount>
void store(uint64_t address, std::array<T, kCount> values, SIMT_HERE) {
  std::memcpy(checked<T, kCount>(address, site), &values, sizeof(values));
}

// The 32-bit addresses of a block's shared arrays.
class SharedWindow {
 public:
  uint32_t place(const void* identity, size_t bytes, SIMT_HERE) {
    const auto at = reinterpret_cast<uint64_t>(shared_array(identity, bytes, 16, site));
    if (base_ == 0) base_ = at;
    return static_cast<uint32_t>(at - base_);
  }
  uint32_t place_dynamic() {
    const auto at = reinterpret_cast<uint64_t>(dynamic_shared());
    if (base_ == 0) base_ = at;
    return static_cast<uint32_t>(at - base_);
  }
  uint64_t generic(uint32_t address) const { return base_ + address; }

  // The same array in another block of the cluster, whose rank is in the upper bits.
  static uint32_t mapped(uint32_t address, uint32_t rank) { return (rank + 1) << 24 | address; }

  // st.async to mapped addresses, which are of the same block.
  template <class T, size_t kCount>
  void store_async(uint32_t to, uint32_t barrier, std::array<T, kCount> values, SIMT_HERE) const {
    if (to >> 24 != barrier >> 24) fail(site, "st.async and its mbarrier are in different blocks");
    uint64_t bits = 0;
    static_assert(sizeof(values) <= sizeof(bits));
    std::memcpy(&bits, &values, sizeof(values));
    auto* const own_barrier = static_cast<uint64_t*>(own(barrier));
    simt::store_async(own(to), bits, sizeof(values), own_barrier, (to >> 24) - 1, site);
  }

 private:
  void* own(uint32_t mapped) const { return reinterpret_cast<void*>(generic(mapped & 0xFFFFFF)); }

  uint64_t base_ = 0;
};

inline void barrier(int number, SIMT_HERE) {
  if (number != 0) fail(site, "barrier %d", number);
  block_barrier(false, "bar.sync", site);
}

inline void warp_barrier(uint32_t members, SIMT_HERE) {
  warp_collective(WarpOp::kSync, members, 0, 0, site);
}

inline void cluster_arrive(SIMT_HERE) { simt::cluster_arrive(true, site); }
inline void cluster_wait(SIMT_HERE) { simt::cluster_wait(site); }

inline uint64_t* mbarrier_at(uint64_t address, const Site& site) {
  return reinterpret_cast<uint64_t*>(checked<uint64_t, 1>(address, site));
}
inline void mbarrier_init(uint64_t address, uint32_t arrivals, SIMT_HERE) {
  barrier_init(mbarrier_at(address, site), arrivals, site);
}
inline void mbarrier_expect(uint64_t address, uint32_t bytes, SIMT_HERE) {
  barrier_arrive_expecting(mbarrier_at(address, site), bytes, site);
}
inline void mbarrier_wait(uint64_t address, uint32_t parity, SIMT_HERE) {
  barrier_wait(mbarrier_at(address, site), parity != 0, site);
}

inline uint32_t shuffle_xor(
    uint32_t value, uint32_t lane_mask, uint32_t clamp, uint32_t members, SIMT_HERE) {
  if (clamp != 31) fail(site, "a shuffle of a part of the warp (%u)", clamp);
  const unsigned source = (self->lane ^ lane_mask) % 32;
  return static_cast<uint32_t>(warp_collective(WarpOp::kShuffle, members, value, source, site));
}

template <class T>
T flushed(T x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T(0), x) : x;
}

inline float exp2_approx(float x) { return flushed(exp2f(flushed(x))); }
inline float reciprocal_approx(float x) { return flushed(1.0f / flushed(x)); }
// PTX defines the low word of the result as zero.
inline double reciprocal_approx(double x) {
  return as<double>(as<uint64_t>(flushed(1.0 / flushed(x))) & ~uint64_t{0xffffffff});
}

// a * b + c rounded down. The product is exact in double, and TwoSum gives the error of the sum.
inline float fma_down(float a, float b, float c) {
  const double product = double{a} * b, sum = product + c;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (c - part);
  auto rounded = static_cast<float>(sum);
  if (rounded > sum || (rounded == sum && error < 0)) rounded = std::nextafterf(rounded, -INFINITY);
  return rounded;
}

inline uint64_t wide_product(uint32_t a, uint32_t b) { return uint64_t{a} * b; }
inline uint64_t wide_product(int32_t a, int32_t b) { return static_cast<uint64_t>(int64_t{a} * b); }

// NaN becomes +0.
inline float saturated(float x) { return x > 0 ? std::min(x, 1.0f) : 0.0f; }

inline float widened(__half x) { return __half2float(x); }
inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

inline bool inverted(bool x) { return !x; }
inline uint32_t inverted(uint32_t x) { return ~x; }
inline uint64_t inverted(uint64_t x) { return ~x; }

// Shifts by the width or more give zeros, or copies of the sign.
template <class T>
T shifted_left(T value, uint32_t by) {
  return by < 8 * sizeof(T) ? static_cast<T>(value << by) : T(0);
}
template <class T>
T shifted_right(T value, uint32_t by) {
  constexpr uint32_t kMost = 8 * sizeof(T) - 1;
  return by <= kMost ? static_cast<T>(value >> by) : value < 0 ? T(-1) : T(0);
}

inline uint64_t insert_bits(uint64_t field, uint64_t into, uint32_t at, uint32_t count) {
  const uint64_t ones = shifted_left(shifted_left(uint64_t{1}, count) - 1, at);
  return (into & ~ones) | (shifted_left(field, at) & ones);
}

}  // namespace simt::ptx
