// The built-in types of CUDA that kernels use: vectors, dimensions, and the 16-bit floats with
// their conversions, which round to nearest even and turn every NaN into 0x7fff as CUDA's do.
#pragma once

#include <bit>
#include <cstdint>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) uint2 {
  unsigned x, y;
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct __half {
  uint16_t bits;
};

struct alignas(4) __half2 {
  __half x, y;
};

struct __nv_bfloat16 {
  uint16_t bits;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __half2float(__half h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }

inline __half __float2half_rn(float x) {
  return x != x ? __half{0x7fff} : std::bit_cast<__half>(static_cast<_Float16>(x));
}

inline float __bfloat162float(__nv_bfloat16 b) {
  return std::bit_cast<float>(uint32_t{b.bits} << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (x != x) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t odd = bits >> 16 & 1;
  return {static_cast<uint16_t>((bits + 0x7fff + odd) >> 16)};
}

inline __half2 __floats2half2_rn(float low, float high) {
  return {__float2half_rn(low), __float2half_rn(high)};
}

inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
