// Host side of the C interface for CUDA. The emulator compiles this file as C++, with its own
// cuda_runtime_api.h.
#include <cuda_runtime_api.h>

#include <string>

#include "c_api/c_device.h"
#include "fusedops/cuda/launch.h"
#include "fusedops/device.h"

namespace fusedops::c_api {
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
  convert_each(variances, rstd, count, [](float x) { return rstd_of(x); });
}

int64_t blocks_of(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return blocks < device::max_grid() ? blocks : device::max_grid();
}

void check(int status) {
  if (status == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(status);
  throw Failure{
      error == cudaErrorMemoryAllocation ? FUSEDOPS_OUT_OF_MEMORY : FUSEDOPS_DEVICE_ERROR,
      std::string("CUDA: ") + cudaGetErrorString(error)};
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

Device::Device(void* stream) : stream_(stream) {}

void Device::launch(const MaskedSoftmaxForward& args) const { check(cuda::launch(args, stream_)); }
void Device::launch(const SoftmaxBackward& args) const { check(cuda::launch(args, stream_)); }
void Device::launch(const NormForward& args) const { check(cuda::launch(args, stream_)); }
void Device::launch(const NormBackward& args) const { check(cuda::launch(args, stream_)); }

int64_t Device::workspace_bytes(const SoftmaxBackward& args) const {
  return cuda::workspace_bytes(args);
}
int64_t Device::workspace_bytes(const NormForward& args) const {
  return cuda::workspace_bytes(args);
}
int64_t Device::workspace_bytes(const NormBackward& args) const {
  return cuda::workspace_bytes(args);
}

// Allocated in stream order, so that no call waits for the device.
void* Device::allocate(int64_t bytes) const {
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, bytes, stream_of(stream_)));
  return memory;
}

void Device::release(void* memory) const noexcept { cudaFreeAsync(memory, stream_of(stream_)); }

void Device::clear(float* values, int64_t count) const {
  check(cudaMemsetAsync(values, 0, count * sizeof(float), stream_of(stream_)));
}

void Device::rstd_to_variance(float* values, int64_t count) const {
  check(
      device::launch(&variances, blocks_of(count), dim3(kThreads), stream_, values, values, count));
}

void Device::variance_to_rstd(const float* variances, float* rstd, int64_t count) const {
  check(
      device::launch(
          &reciprocal_deviations, blocks_of(count), dim3(kThreads), stream_, variances, rstd,
          count));
}

}  // namespace fusedops::c_api
