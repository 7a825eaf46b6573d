// Implements the device of the C interface for CUDA.
#include <string>

#include "c_api/c_device.h"
#include "c_api/c_memory_cuda.h"
#include "cuda/launch/launch.h"

namespace fusedops::c_api {
namespace {

void check(int status) {
  if (status == 0) return;
  throw Failure{
      gpu::is_out_of_memory(status) ? FUSEDOPS_OUT_OF_MEMORY : FUSEDOPS_DEVICE_ERROR,
      std::string("CUDA: ") + gpu::error_text(status)};
}

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

void* Device::allocate(int64_t bytes) const {
  void* memory = nullptr;
  check(gpu::allocate(&memory, bytes, stream_));
  return memory;
}

void Device::release(void* memory) const noexcept { gpu::release(memory, stream_); }

void Device::clear(float* values, int64_t count) const {
  check(gpu::clear(values, count, stream_));
}

void Device::rstd_to_variance(float* values, int64_t count) const {
  check(gpu::variances_of(values, values, count, stream_));
}

void Device::variance_to_rstd(const float* variances, float* rstd, int64_t count) const {
  check(gpu::rstd_of(variances, rstd, count, stream_));
}

}  // namespace fusedops::c_api
