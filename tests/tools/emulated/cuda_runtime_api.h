// The rest of CUDA's runtime that tools/tune.cu uses, over the emulator's: memory is the host's,
// and a clock that ticks once for each event stands in for time.
#pragma once

#include_next <cuda_runtime_api.h>

enum cudaMemcpyKind { cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr { cudaDevAttrL2CacheSize };
using cudaEvent_t = double*;

inline double& emulated_clock() {
  static double ticks = 0;
  return ticks;
}

inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return cudaMallocAsync(memory, bytes, nullptr);
}
inline cudaError_t cudaFree(void* memory) { return cudaFreeAsync(memory, nullptr); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  simt::has_clusters = true;  // the tool's first call
  *value = 1 << 14;
  return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new double(0);
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *event = ++emulated_clock();
  return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = static_cast<float>(*end - *begin);
  return cudaSuccess;
}
