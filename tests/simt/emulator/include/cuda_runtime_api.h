// The part of CUDA's runtime that the C interface uses: memory, in the order of a stream. Launches
// run at once, and so do these functions.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "simt.h"

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };

inline const char* cudaGetErrorString(cudaError_t) { return simt::error(); }

inline cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  return posix_memalign(memory, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  free(memory);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

namespace fusedops::device {
inline cudaError_t cleared(cudaError_t status) { return status; }
}  // namespace fusedops::device
