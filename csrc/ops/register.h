// Registers every op for one backend's dispatch key: the one list of implementations.
#pragma once

#include <torch/csrc/stable/library.h>

#include "ops/masked_softmax.h"
#include "ops/norm.h"
#include "ops/softmax.h"
#include "ops/stack.h"

#define FUSEDOPS_REGISTER(key, Backend)                                                            \
  STABLE_TORCH_LIBRARY_IMPL(fusedops, key, m) {                                                    \
    using Softmax = fusedops::SoftmaxOps<Backend>;                                                 \
    m.impl("softmax", TORCH_BOX(&Softmax::softmax));                                               \
    m.impl("_softmax", TORCH_BOX(&Softmax::softmax));                                              \
    m.impl("softmax_out", TORCH_BOX(&Softmax::softmax_out));                                       \
    m.impl("softmax_", TORCH_BOX(&Softmax::softmax_));                                             \
    m.impl("log_softmax_", TORCH_BOX(&Softmax::log_softmax_));                                     \
    m.impl("softmax_backward_", TORCH_BOX(&Softmax::softmax_backward_));                           \
    m.impl("log_softmax_backward_", TORCH_BOX(&Softmax::log_softmax_backward_));                   \
    m.impl("softmax_backward", TORCH_BOX(&Softmax::softmax_backward));                             \
    m.impl("log_softmax", TORCH_BOX(&Softmax::log_softmax));                                       \
    m.impl("_log_softmax", TORCH_BOX(&Softmax::log_softmax));                                      \
    m.impl("log_softmax_out", TORCH_BOX(&Softmax::log_softmax_out));                               \
    m.impl("log_softmax_backward", TORCH_BOX(&Softmax::log_softmax_backward));                     \
    m.impl("softmax_stats", TORCH_BOX(&Softmax::softmax_stats));                                   \
    m.impl("softmax_apply", TORCH_BOX(&Softmax::softmax_apply));                                   \
    using Stack = fusedops::StackOps<Backend>;                                                     \
    m.impl("stack_softmax", TORCH_BOX(&Stack::stack_softmax));                                     \
    m.impl("stack_log_softmax", TORCH_BOX(&Stack::stack_log_softmax));                             \
    m.impl("stack_layer_norm", TORCH_BOX(&Stack::stack_layer_norm));                               \
    m.impl("_stack_softmax", TORCH_BOX(&Stack::stack_softmax));                                    \
    m.impl("_stack_log_softmax", TORCH_BOX(&Stack::stack_log_softmax));                            \
    m.impl("_stack_layer_norm", TORCH_BOX(&Stack::stack_layer_norm));                              \
    m.impl("stack_layer_norm_backward", TORCH_BOX(&Stack::stack_layer_norm_backward));             \
    using Masked = fusedops::MaskedSoftmaxOps<Backend>;                                            \
    m.impl("masked_softmax", TORCH_BOX(&Masked::masked_softmax));                                  \
    m.impl("_masked_softmax", TORCH_BOX(&Masked::masked_softmax));                                 \
    m.impl("masked_softmax_out", TORCH_BOX(&Masked::masked_softmax_out));                          \
    m.impl("masked_softmax_", TORCH_BOX(&Masked::masked_softmax_));                                \
    m.impl("masked_softmax_backward_", TORCH_BOX(&Masked::masked_softmax_backward_));              \
    m.impl(                                                                                        \
        "masked_softmax_dropout_backward_", TORCH_BOX(&Masked::masked_softmax_dropout_backward_)); \
    m.impl("masked_softmax_backward", TORCH_BOX(&Masked::masked_softmax_backward));                \
    m.impl("masked_softmax_dropout", TORCH_BOX(&Masked::masked_softmax_dropout));                  \
    m.impl("_masked_softmax_dropout", TORCH_BOX(&Masked::masked_softmax_dropout_inference));       \
    m.impl(                                                                                        \
        "masked_softmax_dropout_backward", TORCH_BOX(&Masked::masked_softmax_dropout_backward));   \
    using Norm = fusedops::NormOps<Backend>;                                                       \
    m.impl("layer_norm", TORCH_BOX(&Norm::layer_norm));                                            \
    m.impl("_layer_norm", TORCH_BOX(&Norm::layer_norm));                                           \
    m.impl("layer_norm_backward", TORCH_BOX(&Norm::layer_norm_backward));                          \
    m.impl("std_norm", TORCH_BOX(&Norm::std_norm));                                                \
    m.impl("_std_norm", TORCH_BOX(&Norm::std_norm));                                               \
    m.impl("std_norm_backward", TORCH_BOX(&Norm::std_norm_backward));                              \
    m.impl("rms_norm", TORCH_BOX(&Norm::rms_norm));                                                \
    m.impl("_rms_norm", TORCH_BOX(&Norm::rms_norm));                                               \
    m.impl("rms_norm_backward", TORCH_BOX(&Norm::rms_norm_backward));                              \
    m.impl("add_layer_norm", TORCH_BOX(&Norm::add_layer_norm));                                    \
    m.impl("_add_layer_norm", TORCH_BOX(&Norm::add_layer_norm_inference));                         \
    m.impl("add_layer_norm_backward", TORCH_BOX(&Norm::add_layer_norm_backward));                  \
    m.impl("add_rms_norm", TORCH_BOX(&Norm::add_rms_norm));                                        \
    m.impl("_add_rms_norm", TORCH_BOX(&Norm::add_rms_norm_inference));                             \
    m.impl("add_rms_norm_backward", TORCH_BOX(&Norm::add_rms_norm_backward));                      \
  }
