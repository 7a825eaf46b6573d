// Implements the device of the C interface for the CPU.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "c_api/c_device.h"
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"

namespace fusedops::c_api {

Device::Device(void* stream) : stream_(stream) {
  if (stream != nullptr) {
    throw Failure{
        FUSEDOPS_INVALID_STREAM,
        "stream is not NULL, but this library computes on the CPU; libfusedops_c_cuda takes "
        "CUDA streams"};
  }
  try {
    cpu_kernels();  // throws if FUSEDOPS_CPU_ISA names no instruction set that can be used
  } catch (const std::runtime_error& error) {
    throw Failure{FUSEDOPS_INVALID_ENVIRONMENT, error.what()};
  }
}

void Device::launch(const MaskedSoftmaxForward& args) const { CpuLauncher().launch(args); }
void Device::launch(const SoftmaxBackward& args) const { CpuLauncher().launch(args); }
void Device::launch(const NormForward& args) const { CpuLauncher().launch(args); }
void Device::launch(const NormBackward& args) const { CpuLauncher().launch(args); }

int64_t Device::workspace_bytes(const SoftmaxBackward& args) const {
  return CpuLauncher().workspace_bytes(args);
}
int64_t Device::workspace_bytes(const NormForward& args) const {
  return CpuLauncher().workspace_bytes(args);
}
int64_t Device::workspace_bytes(const NormBackward& args) const {
  return CpuLauncher().workspace_bytes(args);
}

void* Device::allocate(int64_t bytes) const {
  void* const memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Device::release(void* memory) const noexcept { std::free(memory); }

void Device::clear(float* values, int64_t count) const { std::fill_n(values, count, 0.0f); }

void Device::rstd_to_variance(float* values, int64_t count) const {
  std::transform(values, values + count, values, variance_of);
}

void Device::variance_to_rstd(const float* variances, float* rstd, int64_t count) const {
  std::transform(variances, variances + count, rstd, rstd_of);
}

}  // namespace fusedops::c_api
