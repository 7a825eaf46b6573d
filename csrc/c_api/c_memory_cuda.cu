// Implements c_memory_cuda.h. The CUDA emulator in tests/simt compiles this file as C++, with its
// own cuda_runtime_api.h.
#include "c_api/c_memory_cuda.h"

#include <cuda_runtime_api.h>

#include "c_api/c_device.h"
#include "cuda/block/device.h"

namespace fusedops::c_api::gpu {
namespace {

constexpr int32_t kThreads = 256;

template <class Convert>
FUSEDOPS_DEVICE void convert_each(const float* from, float* to, int64_t count, Convert convert) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    to[i] = convert(from[i]);
  }
}

FUSEDOPS_KERNEL(kThreads) variances(const float* rstd, float* variances, int64_t count) {
  convert_each(rstd, variances, count, [](float x) { return variance_of(x); });
}

FUSEDOPS_KERNEL(kThreads)
reciprocal_deviations(const float* variances, float* rstd, int64_t count) {
  convert_each(variances, rstd, count, [](float x) { return c_api::rstd_of(x); });
}

int64_t blocks_of(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return blocks < device::max_grid() ? blocks : device::max_grid();
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

int allocate(void** memory, int64_t bytes, void* stream) {
  return device::cleared(cudaMallocAsync(memory, bytes, stream_of(stream)));
}

int release(void* memory, void* stream) {
  return device::cleared(cudaFreeAsync(memory, stream_of(stream)));
}

int clear(float* values, int64_t count, void* stream) {
  return device::cleared(cudaMemsetAsync(values, 0, count * sizeof(float), stream_of(stream)));
}

int variances_of(const float* rstd, float* to, int64_t count, void* stream) {
  return device::launch(&variances, blocks_of(count), dim3(kThreads), stream, rstd, to, count);
}

int rstd_of(const float* variances, float* rstd, int64_t count, void* stream) {
  return device::launch(
      &reciprocal_deviations, blocks_of(count), dim3(kThreads), stream, variances, rstd, count);
}

bool is_out_of_memory(int status) { return status == cudaErrorMemoryAllocation; }

const char* error_text(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

}  // namespace fusedops::c_api::gpu
