// Every schema of the package, and the version that C++ programs may ask for.
//
// Schemas are functional, but for those that end in _out or _, and hold no tuning argument; tensors
// are positional, so that sharding rules apply. The underscored twins carry no autograd formula:
// eager calls that need no gradient use them, which saves the formula's 3 us a call.

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
  // The result lands in `out`, which may be `input`.
  m.def("softmax_out(Tensor input, int dim, Tensor(a!) out) -> ()");
  m.def("log_softmax_out(Tensor input, int dim, Tensor(a!) out) -> ()");

  // Row i of the last two dimensions sees, where `causal`, the columns up to i + diagonal.
  m.def(
      "masked_softmax(Tensor input, Tensor? mask, float scale, bool causal, float mask_value, "
      "Tensor? bias=None, ScalarType? dtype=None, SymInt diagonal=0, bool zero_masked_rows=False) "
      "-> Tensor");
  m.def(
      "masked_softmax_out(Tensor input, Tensor? mask, float scale, bool causal, float mask_value, "
      "Tensor? bias, SymInt diagonal, bool zero_masked_rows, Tensor(a!) out) -> ()");
  m.def(
      "masked_softmax_backward(Tensor grad_output, Tensor probabilities, Tensor? mask, "
      "float scale, bool causal, ScalarType input_dtype, SymInt diagonal=0) -> Tensor");
  m.def(
      "masked_softmax_dropout(Tensor input, Tensor? mask, float scale, bool causal, "
      "float mask_value, float p, Tensor seed, Tensor? bias=None, ScalarType? dtype=None, "
      "SymInt diagonal=0, bool zero_masked_rows=False) -> (Tensor output, Tensor probabilities)");
  m.def(
      "masked_softmax_dropout_backward(Tensor grad_output, Tensor probabilities, Tensor? mask, "
      "float scale, bool causal, float p, Tensor seed, ScalarType input_dtype, SymInt diagonal=0) "
      "-> Tensor");
  m.def(
      "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> (Tensor output, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor grad_output, Tensor input, SymInt[] normalized_shape, "
      "Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) "
      "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)");

  // The result lands in the first argument.
  m.def("softmax_(Tensor(a!) input, int dim) -> ()");
  m.def("log_softmax_(Tensor(a!) input, int dim) -> ()");
  m.def("softmax_backward_(Tensor(a!) grad_output, Tensor output, int dim) -> ()");
  m.def("log_softmax_backward_(Tensor(a!) grad_output, Tensor output, int dim) -> ()");
  m.def(
      "masked_softmax_(Tensor(a!) input, Tensor? mask, float scale, bool causal, "
      "float mask_value, Tensor? bias=None, SymInt diagonal=0, bool zero_masked_rows=False) "
      "-> ()");
  m.def(
      "masked_softmax_backward_(Tensor(a!) grad_output, Tensor probabilities, Tensor? mask, "
      "float scale, bool causal, SymInt diagonal=0) -> ()");
  m.def(
      "masked_softmax_dropout_backward_(Tensor(a!) grad_output, Tensor probabilities, "
      "Tensor? mask, float scale, bool causal, float p, Tensor seed, SymInt diagonal=0) -> ()");

  m.def("_softmax(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  m.def("_log_softmax(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  m.def(
      "_masked_softmax(Tensor input, Tensor? mask, float scale, bool causal, float mask_value, "
      "Tensor? bias=None, ScalarType? dtype=None, SymInt diagonal=0, bool zero_masked_rows=False) "
      "-> Tensor");
  m.def(  // without the probabilities
      "_masked_softmax_dropout(Tensor input, Tensor? mask, float scale, bool causal, "
      "float mask_value, float p, Tensor seed, Tensor? bias=None, ScalarType? dtype=None, "
      "SymInt diagonal=0, bool zero_masked_rows=False) -> Tensor");
  m.def(
      "_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> (Tensor output, Tensor mean, Tensor rstd)");
}

extern "C" __attribute__((visibility("default"))) const char* fusedops_version() {
  return FUSEDOPS_VERSION;
}
