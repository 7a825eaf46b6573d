// Every schema of the package.
//
// Schemas are functional, but for those that end in _out or _, and hold no tuning argument; tensors
// are positional, so that sharding rules apply. The underscored twins carry no autograd formula:
// compiled graphs and eager calls that need no derivative use them, which saves the formula's
// Python, 3 to 8 us a call.

#include <torch/csrc/stable/library.h>

#define DEFINE_WITH_TWIN(name, signature) \
  m.def(name signature);                  \
  m.def("_" name signature)

STABLE_TORCH_LIBRARY(fusedops, m) {
  DEFINE_WITH_TWIN("softmax", "(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  DEFINE_WITH_TWIN("log_softmax", "(Tensor input, int dim, ScalarType? dtype=None) -> Tensor");
  DEFINE_WITH_TWIN(
      "softmax_backward",
      "(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) "
      "-> Tensor");
  DEFINE_WITH_TWIN(
      "log_softmax_backward",
      "(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) "
      "-> Tensor");
  // The result lands in `out`, which may be `input`.
  m.def("softmax_out(Tensor input, int dim, Tensor(a!) out) -> ()");
  m.def("log_softmax_out(Tensor input, int dim, Tensor(a!) out) -> ()");

  // What a row's softmax needs of all of it, `dim` kept with size 1: the maximum and, of what is
  // then left, the sum of powers. Those of parts of a row merge to those of the row.
  m.def("softmax_stats(Tensor input, int dim) -> (Tensor max, Tensor sum)");
  m.def(
      "softmax_apply(Tensor input, Tensor max, Tensor sum, int dim, ScalarType? dtype=None) "
      "-> Tensor");

  // torch.stack of what each input gives, each written to its slot. `dim` is one of an input's,
  // stack_dim the result's. No weights or no biases: an empty list. Statistics and gradients are
  // stacked in front.
  DEFINE_WITH_TWIN("stack_softmax", "(Tensor[] inputs, int dim, int stack_dim) -> Tensor");
  DEFINE_WITH_TWIN("stack_log_softmax", "(Tensor[] inputs, int dim, int stack_dim) -> Tensor");
  DEFINE_WITH_TWIN(
      "stack_layer_norm",
      "(Tensor[] inputs, SymInt[] normalized_shape, Tensor[] weights, "
      "Tensor[] biases, float eps, int stack_dim) -> (Tensor output, Tensor mean, Tensor rstd)");
  DEFINE_WITH_TWIN(
      "stack_layer_norm_backward",
      "(Tensor grad_output, Tensor[] inputs, SymInt[] normalized_shape, "
      "Tensor mean, Tensor rstd, Tensor[] weights, Tensor[] biases, int stack_dim, "
      "bool[3] output_mask) -> (Tensor grad_inputs, Tensor grad_weights, Tensor grad_biases)");

  // Row i of the last two dimensions sees, where `causal`, the columns up to i + diagonal. A
  // mask_value of None is -inf.
  DEFINE_WITH_TWIN(
      "masked_softmax",
      "(Tensor input, Tensor? mask, float scale, bool causal, float? mask_value, "
      "Tensor? bias=None, ScalarType? dtype=None, SymInt diagonal=0, bool zero_masked_rows=False) "
      "-> Tensor");
  m.def(
      "masked_softmax_out(Tensor input, Tensor? mask, float scale, bool causal, float? mask_value, "
      "Tensor? bias, SymInt diagonal, bool zero_masked_rows, Tensor(a!) out) -> ()");
  DEFINE_WITH_TWIN(
      "masked_softmax_backward",
      "(Tensor grad_output, Tensor probabilities, Tensor? mask, "
      "float scale, bool causal, ScalarType input_dtype, SymInt diagonal=0) -> Tensor");
  m.def(
      "masked_softmax_dropout(Tensor input, Tensor? mask, float scale, bool causal, "
      "float? mask_value, float p, Tensor seed, Tensor? bias=None, ScalarType? dtype=None, "
      "SymInt diagonal=0, bool zero_masked_rows=False) -> (Tensor output, Tensor probabilities)");
  DEFINE_WITH_TWIN(
      "masked_softmax_dropout_backward",
      "(Tensor grad_output, Tensor probabilities, Tensor? mask, "
      "float scale, bool causal, float p, Tensor seed, ScalarType input_dtype, SymInt diagonal=0) "
      "-> Tensor");
  DEFINE_WITH_TWIN(
      "layer_norm",
      "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> (Tensor output, Tensor mean, Tensor rstd)");
  DEFINE_WITH_TWIN(
      "layer_norm_backward",
      "(Tensor grad_output, Tensor input, SymInt[] normalized_shape, "
      "Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) "
      "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)");
  // rstd = 1 / (unbiased standard deviation + eps)
  DEFINE_WITH_TWIN(
      "std_norm",
      "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> (Tensor output, Tensor mean, Tensor rstd)");
  DEFINE_WITH_TWIN(
      "std_norm_backward",
      "(Tensor grad_output, Tensor input, SymInt[] normalized_shape, "
      "Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask, float eps) "
      "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)");
  // With `rounds_normalized` the normalised value takes input's dtype before the weight is applied.
  DEFINE_WITH_TWIN(
      "rms_norm",
      "(Tensor input, SymInt[] normalized_shape, Tensor? weight, float eps, "
      "float weight_offset=0.0, bool rounds_normalized=False) -> (Tensor output, Tensor rstd)");
  DEFINE_WITH_TWIN(
      "rms_norm_backward",
      "(Tensor grad_output, Tensor input, SymInt[] normalized_shape, Tensor rstd, "
      "Tensor? weight, bool[2] output_mask, float weight_offset=0.0) "
      "-> (Tensor grad_input, Tensor grad_weight)");
  // sum = dropout(input) + residual, then the norm. In a backward without dropout grad_residual is
  // empty: grad_input serves both.
  m.def(
      "add_layer_norm(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight, "
      "Tensor? bias, float eps, float p=0.0, Tensor? seed=None) "
      "-> (Tensor output, Tensor sum, Tensor mean, Tensor rstd)");
  DEFINE_WITH_TWIN(
      "add_layer_norm_backward",
      "(Tensor grad_output, Tensor? grad_sum, Tensor sum, "
      "SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, "
      "bool[4] output_mask, float p=0.0, Tensor? seed=None) "
      "-> (Tensor grad_input, Tensor grad_residual, Tensor grad_weight, Tensor grad_bias)");
  m.def(
      "add_rms_norm(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight, "
      "float eps, float weight_offset=0.0, bool rounds_normalized=False, float p=0.0, "
      "Tensor? seed=None) -> (Tensor output, Tensor sum, Tensor rstd)");
  DEFINE_WITH_TWIN(
      "add_rms_norm_backward",
      "(Tensor grad_output, Tensor? grad_sum, Tensor sum, "
      "SymInt[] normalized_shape, Tensor rstd, Tensor? weight, bool[3] output_mask, "
      "float weight_offset=0.0, float p=0.0, Tensor? seed=None) "
      "-> (Tensor grad_input, Tensor grad_residual, Tensor grad_weight)");

  // The result lands in the first argument.
  m.def("softmax_(Tensor(a!) input, int dim) -> ()");
  m.def("log_softmax_(Tensor(a!) input, int dim) -> ()");
  m.def("softmax_backward_(Tensor(a!) grad_output, Tensor output, int dim) -> ()");
  m.def("log_softmax_backward_(Tensor(a!) grad_output, Tensor output, int dim) -> ()");
  m.def(
      "masked_softmax_(Tensor(a!) input, Tensor? mask, float scale, bool causal, "
      "float? mask_value, Tensor? bias=None, SymInt diagonal=0, bool zero_masked_rows=False) "
      "-> ()");
  m.def(
      "masked_softmax_backward_(Tensor(a!) grad_output, Tensor probabilities, Tensor? mask, "
      "float scale, bool causal, SymInt diagonal=0) -> ()");
  m.def(
      "masked_softmax_dropout_backward_(Tensor(a!) grad_output, Tensor probabilities, "
      "Tensor? mask, float scale, bool causal, float p, Tensor seed, SymInt diagonal=0) -> ()");

  m.def(  // without the probabilities
      "_masked_softmax_dropout(Tensor input, Tensor? mask, float scale, bool causal, "
      "float? mask_value, float p, Tensor seed, Tensor? bias=None, ScalarType? dtype=None, "
      "SymInt diagonal=0, bool zero_masked_rows=False) -> Tensor");
  m.def(  // without the statistics, as the next two
      "_layer_norm_output(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> Tensor");
  m.def(
      "_std_norm_output(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
      "float eps) -> Tensor");
  m.def(
      "_rms_norm_output(Tensor input, SymInt[] normalized_shape, Tensor? weight, float eps, "
      "float weight_offset=0.0, bool rounds_normalized=False) -> Tensor");
  m.def(  // the sum is empty where it is not wanted
      "_add_layer_norm(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight, "
      "Tensor? bias, float eps, bool wants_sum, float p=0.0, Tensor? seed=None) "
      "-> (Tensor output, Tensor sum)");
  m.def(
      "_add_rms_norm(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight, "
      "float eps, bool wants_sum, float weight_offset=0.0, bool rounds_normalized=False, "
      "float p=0.0, Tensor? seed=None) -> (Tensor output, Tensor sum)");
}
