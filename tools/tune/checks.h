// The tool's own kernels, which fill inputs and compare results.
#pragma once

#include <cmath>
#include <vector>

#include "cuda/block/device.h"
#include "cuda/block/vec.h"
#include "tune/family.h"

namespace tune {

inline constexpr int32_t kCheckThreads = 256, kCheckBlocks = 1024;

// Fills `words` with numbers of magnitudes from 1/4 to 1, whether a word is read as one float or as
// two bfloat16; or, if `bools` is set, with bytes of 0 and 1.
FUSEDOPS_KERNEL(kCheckThreads) fill(uint32_t* words, int64_t count, bool bools) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    // The finalizer of MurmurHash3.
    auto hash = static_cast<uint32_t>(i) + 1;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    hash ^= hash >> 16;
    constexpr uint32_t kSignAndMantissa = 0x80ff80ffu, kQuarter = 0x3e803e80u;
    words[i] = bools ? hash & 0x01010101u : (hash & kSignAndMantissa) + kQuarter;
  }
}

// Zeros the columns that causality hides, where there are as many queries as columns.
template <class T>
FUSEDOPS_KERNEL(kCheckThreads)
hide(T* values, int64_t count, int64_t cols) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (i % cols > i / cols % cols) values[i] = T(0.0f);
  }
}

// Writes the largest difference and the largest magnitude of `expected` that each thread saw. A NaN
// in one array alone counts as an infinite difference.
template <class T>
FUSEDOPS_KERNEL(kCheckThreads)
compare(const T* actual, const T* expected, int64_t count, float* differences, float* magnitudes) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  float difference = 0, magnitude = 0;
  for (int64_t i = thread; i < count; i += step) {
    const float x = fusedops::cuda::widen(actual[i]), y = fusedops::cuda::widen(expected[i]);
    const bool same = x == y || (x != x && y != y);
    const float distance = fabsf(x - y);
    difference = same ? difference : fmaxf(difference, distance == distance ? distance : INFINITY);
    magnitude = fmaxf(magnitude, fabsf(y));
  }
  differences[thread] = difference;
  magnitudes[thread] = magnitude;
}

}  // namespace tune
