// Registers every op for one backend's dispatch key: the one list of implementations.
#pragma once

#include <torch/csrc/stable/library.h>

#include "ops/layer_norm.h"
#include "ops/softmax.h"

#define FUSEDOPS_REGISTER(key, Backend)                                                           \
  STABLE_TORCH_LIBRARY_IMPL(fusedops, key, m) {                                                   \
    m.impl("softmax", TORCH_BOX(&fusedops::SoftmaxOps<Backend>::softmax));                        \
    m.impl("_softmax", TORCH_BOX(&fusedops::SoftmaxOps<Backend>::softmax));                       \
    m.impl("softmax_backward", TORCH_BOX(&fusedops::SoftmaxOps<Backend>::softmax_backward));      \
    m.impl("log_softmax", TORCH_BOX(&fusedops::SoftmaxOps<Backend>::log_softmax));                \
    m.impl("_log_softmax", TORCH_BOX(&fusedops::SoftmaxOps<Backend>::log_softmax));               \
    m.impl(                                                                                       \
        "log_softmax_backward", TORCH_BOX(&fusedops::SoftmaxOps<Backend>::log_softmax_backward)); \
    m.impl("layer_norm", TORCH_BOX(&fusedops::LayerNormOps<Backend>::layer_norm));                \
    m.impl("_layer_norm", TORCH_BOX(&fusedops::LayerNormOps<Backend>::layer_norm));               \
    m.impl(                                                                                       \
        "layer_norm_backward", TORCH_BOX(&fusedops::LayerNormOps<Backend>::layer_norm_backward)); \
  }
