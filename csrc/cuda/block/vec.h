// Defines vectors of 1 to 32 bytes, and converts between storage and accumulation types.
//
// Half and BFloat16 are storage types: every value is computed in float (double for double) and
// rounded to nearest once, when it is stored. A vector of 32 bytes (eight floats beside 16-bit
// input) moves as two 16-byte words and needs only their alignment.
// Layout: a vector stays in the 32-bit registers it was loaded into. Unpacked, each 16-bit element
// would take a register, twice as many.
#pragma once

#include <type_traits>

#include "args.h"
#include "cuda/block/device.h"
#include "cuda/launch/plan.h"

namespace fusedops::cuda {

template <class T>
using AccumulatorOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Returns body(Type{}), where Type is float if T has 16 bits and `dtype` is kFloat32, and T
// otherwise. The branch is cheap, because all threads of a launch take the same one, and it saves
// kernels compiled for a second dtype of results.
template <class T, class Body>
FUSEDOPS_DEVICE auto with_wider(DType dtype, Body body) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kFloat32) return body(float{});
  }
  return body(T{});
}

// Returns body(Type{}), where Type is the 16-bit type of `dtype` if it has one and T is float, and
// T otherwise.
template <class T, class Body>
FUSEDOPS_DEVICE auto with_narrower(DType dtype, Body body) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::kBFloat16) return body(BFloat16{});
    if (dtype == DType::kFloat16) return body(Half{});
  }
  return body(T{});
}

FUSEDOPS_DEVICE double widen(double x) { return x; }
FUSEDOPS_DEVICE float widen(float x) { return x; }
FUSEDOPS_DEVICE float widen(Half x) { return __half2float(x); }
FUSEDOPS_DEVICE float widen(BFloat16 x) { return __bfloat162float(x); }

FUSEDOPS_DEVICE void round_to(double x, double& out) { out = x; }
FUSEDOPS_DEVICE void round_to(float x, float& out) { out = x; }
FUSEDOPS_DEVICE void round_to(float x, Half& out) { out = __float2half_rn(x); }
FUSEDOPS_DEVICE void round_to(float x, BFloat16& out) { out = __float2bfloat16_rn(x); }

// Adds kCount values pairwise, so that the error grows with the logarithm of kCount, and the
// additions of a level do not wait for each other.
template <int kCount, class T>
FUSEDOPS_DEVICE T tree_sum(const T* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return tree_sum<kCount / 2>(values) + tree_sum<kCount - kCount / 2>(values + kCount / 2);
  }
}

template <class To, class From>
FUSEDOPS_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(static_cast<void*>(&to), &from, sizeof(to));
  return to;
}

// These functions round two floats to 16 bits each, and return them in one register, `low` in its
// lower half. Each conversion is one instruction on sm_80 and later.
FUSEDOPS_DEVICE uint32_t packed(float low, float high, Half) {
  return bit_cast<uint32_t>(__floats2half2_rn(low, high));
}
FUSEDOPS_DEVICE uint32_t packed(float low, float high, BFloat16) {
  return bit_cast<uint32_t>(__floats2bfloat162_rn(low, high));
}

// These functions widen the low or the high one of two 16-bit elements in a register. A bfloat16 is
// the upper half of a float, so that one instruction, a shift or a mask, widens it. To shift the
// high one down and then convert it would take two.
FUSEDOPS_DEVICE float widen_low(uint32_t pair, Half) {
  return widen(bit_cast<Half>(static_cast<uint16_t>(pair)));
}
FUSEDOPS_DEVICE float widen_high(uint32_t pair, Half) {
  return widen(bit_cast<Half>(static_cast<uint16_t>(pair >> 16)));
}
FUSEDOPS_DEVICE float widen_low(uint32_t pair, BFloat16) { return bit_cast<float>(pair << 16); }
FUSEDOPS_DEVICE float widen_high(uint32_t pair, BFloat16) {
  return bit_cast<float>(pair & 0xffff0000u);
}

FUSEDOPS_DEVICE void unpack(uint4 from, uint32_t* to) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}
FUSEDOPS_DEVICE void unpack(uint2 from, uint32_t* to) { to[0] = from.x, to[1] = from.y; }
FUSEDOPS_DEVICE void unpack(uint32_t from, uint32_t* to) { to[0] = from; }
FUSEDOPS_DEVICE void unpack(uint16_t from, uint32_t* to) { to[0] = from; }
FUSEDOPS_DEVICE void unpack(uint8_t from, uint32_t* to) { to[0] = from; }

FUSEDOPS_DEVICE void pack(const uint32_t* from, uint4& to) {
  to = {from[0], from[1], from[2], from[3]};
}
FUSEDOPS_DEVICE void pack(const uint32_t* from, uint2& to) { to = {from[0], from[1]}; }
FUSEDOPS_DEVICE void pack(const uint32_t* from, uint32_t& to) { to = from[0]; }
FUSEDOPS_DEVICE void pack(const uint32_t* from, uint16_t& to) {
  to = static_cast<uint16_t>(from[0]);
}

template <class T, int kWidth>
struct Vec {
  static constexpr int kBytes = sizeof(T) * kWidth;
  static constexpr int kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  // Word is the type of the widest access that moves the vector, as one word or several.
  using Word = std::conditional_t<
      kBytes >= 16, uint4,
      std::conditional_t<
          kBytes == 8, uint2,
          std::conditional_t<
              kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;
  static constexpr int kWords = kBytes / sizeof(Word);
  static constexpr int kWordRegisters = kRegisters / kWords;

  uint32_t registers[kRegisters];

  FUSEDOPS_DEVICE AccumulatorOf<T> at(int j) const {
    if constexpr (sizeof(T) == 2) {
      return j % 2 == 0 ? widen_low(registers[j / 2], T{}) : widen_high(registers[j / 2], T{});
    } else if constexpr (sizeof(T) == 4) {
      return bit_cast<T>(registers[j]);
    } else {
      return bit_cast<T>(registers[2 * j] | uint64_t{registers[2 * j + 1]} << 32);
    }
  }

  // Returns the vector's bools as bits: bit j is element j. The product moves the four bytes of a
  // register, each 0 or 1, side by side into its upper four bits, which no carry reaches.
  FUSEDOPS_DEVICE uint32_t bits() const {
    static_assert(sizeof(T) == 1);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) bits |= (registers[i] * 0x10204080u >> 28) << (4 * i);
    return bits;
  }

  // Returns a vector of the values, each rounded to T.
  template <class Acc>
  FUSEDOPS_DEVICE static Vec rounded(const Acc (&values)[kWidth]) {
    Vec vec;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if constexpr (sizeof(T) == 2 && kWidth > 1) {
        if (j % 2 == 0) vec.registers[j / 2] = packed(values[j], values[j + 1], T{});
      } else {
        T value;
        round_to(values[j], value);
        if constexpr (sizeof(T) == 2) {
          vec.registers[j] = bit_cast<uint16_t>(value);
        } else if constexpr (sizeof(T) == 4) {
          vec.registers[j] = bit_cast<uint32_t>(value);
        } else {
          unpack(bit_cast<uint2>(value), vec.registers + 2 * j);
        }
      }
    }
    return vec;
  }

  FUSEDOPS_DEVICE static Vec filled(AccumulatorOf<T> value) {
    AccumulatorOf<T> values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = value;
    return rounded(values);
  }

  // Loads data that is read once, so that it does not displace what L1 holds.
  FUSEDOPS_DEVICE static Vec load(const T* from) {
    Vec vec;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const auto word = device::load_streaming(reinterpret_cast<const Word*>(from) + i);
      unpack(word, vec.registers + i * kWordRegisters);
    }
    return vec;
  }

  // Loads data that other rows read too, and keeps it in L1.
  FUSEDOPS_DEVICE static Vec load_cached(const T* from) {
    Vec vec;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      unpack(reinterpret_cast<const Word*>(from)[i], vec.registers + i * kWordRegisters);
    }
    return vec;
  }

  // Stores the vector in global memory, each word by one instruction.
  FUSEDOPS_DEVICE void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) device::store_vector(reinterpret_cast<Word*>(to) + i, word(i));
  }

  // Stores the vector in shared or global memory. The compiler may store a word in several parts,
  // but has more registers left than with store(), with which the kernels for stacks of norms spill
  // on sm_120.
  FUSEDOPS_DEVICE void store_plain(T* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = word(i);
  }

 private:
  FUSEDOPS_DEVICE Word word(int i) const {
    Word word;
    pack(registers + i * kWordRegisters, word);
    return word;
  }
};

template <class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void store(T* to, const Acc (&values)[kWidth]) {
  Vec<T, kWidth>::rounded(values).store(to);
}
template <class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_plain(T* to, const Acc (&values)[kWidth]) {
  Vec<T, kWidth>::rounded(values).store_plain(to);
}

}  // namespace fusedops::cuda
