// Runs the CPU kernels over rows, in parallel.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "fusedops/args.h"

namespace fusedops {

struct CpuBackend {
  explicit CpuBackend(const torch::stable::Tensor&) {}

  void launch(const SoftmaxForward& args) const;
  void launch(const SoftmaxBackward& args) const;
  void launch(const LayerNormForward& args) const;
  void launch(const LayerNormBackward& args) const;

  int64_t workspace_bytes(const LayerNormBackward& args) const;
};

}  // namespace fusedops
