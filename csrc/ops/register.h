// Registers every op for one backend's dispatch key: the one list of implementations.
#pragma once

#include <torch/csrc/stable/library.h>

#include "ops/masked_softmax.h"
#include "ops/norm.h"
#include "ops/softmax.h"
#include "ops/stack.h"

#define FUSEDOPS_IMPL_WITH_TWIN(name, function) \
  m.impl(name, TORCH_BOX(function));            \
  m.impl("_" name, TORCH_BOX(function))

#define FUSEDOPS_REGISTER(key, Backend)                                                            \
  STABLE_TORCH_LIBRARY_IMPL(fusedops, key, m) {                                                    \
    using Softmax = fusedops::SoftmaxOps<Backend>;                                                 \
    FUSEDOPS_IMPL_WITH_TWIN("softmax", &Softmax::softmax);                                         \
    m.impl("softmax_out", TORCH_BOX(&Softmax::softmax_out));                                       \
    m.impl("softmax_", TORCH_BOX(&Softmax::softmax_));                                             \
    m.impl("log_softmax_", TORCH_BOX(&Softmax::log_softmax_));                                     \
    m.impl("softmax_backward_", TORCH_BOX(&Softmax::softmax_backward_));                           \
    m.impl("log_softmax_backward_", TORCH_BOX(&Softmax::log_softmax_backward_));                   \
    FUSEDOPS_IMPL_WITH_TWIN("softmax_backward", &Softmax::softmax_backward);                       \
    FUSEDOPS_IMPL_WITH_TWIN("log_softmax", &Softmax::log_softmax);                                 \
    m.impl("log_softmax_out", TORCH_BOX(&Softmax::log_softmax_out));                               \
    FUSEDOPS_IMPL_WITH_TWIN("log_softmax_backward", &Softmax::log_softmax_backward);               \
    m.impl("softmax_stats", TORCH_BOX(&Softmax::softmax_stats));                                   \
    m.impl("softmax_apply", TORCH_BOX(&Softmax::softmax_apply));                                   \
    using Stack = fusedops::StackOps<Backend>;                                                     \
    FUSEDOPS_IMPL_WITH_TWIN("stack_softmax", &Stack::stack_softmax);                               \
    FUSEDOPS_IMPL_WITH_TWIN("stack_log_softmax", &Stack::stack_log_softmax);                       \
    FUSEDOPS_IMPL_WITH_TWIN("stack_layer_norm", &Stack::stack_layer_norm);                         \
    FUSEDOPS_IMPL_WITH_TWIN("stack_layer_norm_backward", &Stack::stack_layer_norm_backward);       \
    using Masked = fusedops::MaskedSoftmaxOps<Backend>;                                            \
    FUSEDOPS_IMPL_WITH_TWIN("masked_softmax", &Masked::masked_softmax);                            \
    m.impl("masked_softmax_out", TORCH_BOX(&Masked::masked_softmax_out));                          \
    m.impl("masked_softmax_", TORCH_BOX(&Masked::masked_softmax_));                                \
    m.impl("masked_softmax_backward_", TORCH_BOX(&Masked::masked_softmax_backward_));              \
    m.impl(                                                                                        \
        "masked_softmax_dropout_backward_", TORCH_BOX(&Masked::masked_softmax_dropout_backward_)); \
    FUSEDOPS_IMPL_WITH_TWIN("masked_softmax_backward", &Masked::masked_softmax_backward);          \
    m.impl("masked_softmax_dropout", TORCH_BOX(&Masked::masked_softmax_dropout));                  \
    m.impl("_masked_softmax_dropout", TORCH_BOX(&Masked::masked_softmax_dropout_inference));       \
    FUSEDOPS_IMPL_WITH_TWIN(                                                                       \
        "masked_softmax_dropout_backward", &Masked::masked_softmax_dropout_backward);              \
    using Norm = fusedops::NormOps<Backend>;                                                       \
    FUSEDOPS_IMPL_WITH_TWIN("layer_norm", &Norm::layer_norm);                                      \
    m.impl("_layer_norm_output", TORCH_BOX(&Norm::layer_norm_output));                             \
    FUSEDOPS_IMPL_WITH_TWIN("layer_norm_backward", &Norm::layer_norm_backward);                    \
    FUSEDOPS_IMPL_WITH_TWIN("std_norm", &Norm::std_norm);                                          \
    m.impl("_std_norm_output", TORCH_BOX(&Norm::std_norm_output));                                 \
    FUSEDOPS_IMPL_WITH_TWIN("std_norm_backward", &Norm::std_norm_backward);                        \
    FUSEDOPS_IMPL_WITH_TWIN("rms_norm", &Norm::rms_norm);                                          \
    m.impl("_rms_norm_output", TORCH_BOX(&Norm::rms_norm_output));                                 \
    FUSEDOPS_IMPL_WITH_TWIN("rms_norm_backward", &Norm::rms_norm_backward);                        \
    m.impl("add_layer_norm", TORCH_BOX(&Norm::add_layer_norm));                                    \
    m.impl("_add_layer_norm", TORCH_BOX(&Norm::add_layer_norm_inference));                         \
    FUSEDOPS_IMPL_WITH_TWIN("add_layer_norm_backward", &Norm::add_layer_norm_backward);            \
    m.impl("add_rms_norm", TORCH_BOX(&Norm::add_rms_norm));                                        \
    m.impl("_add_rms_norm", TORCH_BOX(&Norm::add_rms_norm_inference));                             \
    FUSEDOPS_IMPL_WITH_TWIN("add_rms_norm_backward", &Norm::add_rms_norm_backward);                \
  }
