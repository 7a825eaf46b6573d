// Launches kernels on a tensor's CUDA device, in the current stream of that device.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "cuda/launch/launch.h"
#include "ops/tensor.h"

namespace fusedops {

// The device of `tensor` is the current one as long as the launcher lives.
class CudaLauncher {
 public:
  static constexpr bool kReadsRuns = false;  // runs of rows: row_of() in block/tile.h says why not

  explicit CudaLauncher(const Tensor& tensor) : guard_(tensor.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream_));
  }

  // Returns whether launches are recorded to a CUDA graph. Nothing may wait for the device
  // meanwhile.
  bool is_captured() const {
    bool result = false;
    STD_CUDA_CHECK(static_cast<cudaError_t>(cuda::query_capture(stream_, result)));
    return result;
  }

  template <class Args>
  void launch(const Args& args) const {
    STD_CUDA_CHECK(static_cast<cudaError_t>(cuda::launch(args, stream_)));
  }

  template <class Args>
  int64_t workspace_bytes(const Args& args) const {
    return cuda::workspace_bytes(args);
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

}  // namespace fusedops
