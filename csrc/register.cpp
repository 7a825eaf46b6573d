// Every schema of the package, and the version that C++ programs may ask for.
//
// Schemas are functional and hold no tuning argument; tensors are positional, so that sharding
// rules apply. The underscored twins carry no autograd formula: eager calls that need no gradient
// use them, which saves the formula's 3 us a call.

#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(fusedops, m) {
  m.def("softmax(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  m.def("log_softmax(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  m.def(
      "softmax_backward(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) "
      "-> Tensor");
  m.def(
      "log_softmax_backward(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) "
      "-> Tensor");
  m.def(
      "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> (Tensor output, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor grad_output, Tensor input, SymInt[] normalized_shape, "
      "Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) "
      "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)");

  m.def("_softmax(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  m.def("_log_softmax(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  m.def(
      "_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> (Tensor output, Tensor mean, Tensor rstd)");
}

extern "C" __attribute__((visibility("default"))) const char* fusedops_version() {
  return FUSEDOPS_VERSION;
}
