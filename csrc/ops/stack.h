// Implements softmax, log_softmax and layer_norm of several tensors of the same shape, with each
// result in its slot of one stacked tensor: checks tensors, passes stacks of rows to the launcher,
// and returns tensors.
#pragma once

#include <algorithm>

#include "ops/norm.h"
#include "ops/softmax.h"

namespace fusedops {

using Tensors = std::vector<Tensor>;

// Checks that all tensors have the dtype, shape and device of the first, and are in memory.
inline void check_alike(const char* op, const char* name, const Tensors& tensors) {
  FUSEDOPS_CHECK(!tensors.empty(), op, ": ", name, " is empty, wanted at least one tensor");
  const Tensor& first = tensors.front();
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) check_memory(op, name, tensor);
  }
  for (size_t i = 1; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    FUSEDOPS_CHECK(
        dtype_of(tensor) == dtype_of(first) && have_same_sizes(tensor, first) &&
            is_on_one_device(tensor, first),
        op, ": ", name, "[", i, "] is ", dtype_text(tensor), " of shape ",
        list_text(tensor.sizes()), " on ", device_name(tensor), ", wanted ", dtype_text(first),
        " of shape ", list_text(first.sizes()), " on ", device_name(first), " as ", name, "[0] is");
  }
}

inline int64_t resolve_stack_dim(const char* op, int64_t rank, int64_t stack_dim) {
  FUSEDOPS_CHECK(
      stack_dim >= -rank - 1 && stack_dim <= rank, op, ": stack_dim is ", stack_dim,
      ", wanted a value in [", -rank - 1, ", ", rank, "] for tensors of ", rank, " dimensions");
  return stack_dim < 0 ? stack_dim + rank + 1 : stack_dim;
}

inline Sizes stacked_sizes(Sizes sizes, int64_t stack_dim, size_t count) {
  sizes.insert(sizes.begin() + stack_dim, static_cast<int64_t>(count));
  return sizes;
}

// Returns a contiguous tensor in which dimension `from` of `tensor` is dimension `to`.
inline Tensor moved_dim(const char* op, const Tensor& tensor, int64_t from, int64_t to) {
  Tensor view = tensor;
  for (int64_t d = from; d < to; ++d) view = torch::stable::transpose(view, d, d + 1);
  for (int64_t d = from; d > to; --d) view = torch::stable::transpose(view, d, d - 1);
  return as_contiguous(op, view);
}

// Describes the slots of a stacked tensor: the rows of the first, and the distance between slots.
struct Slots {
  RowView first;
  int64_t slot;  // elements from one slot to the next
};
// Views each slot as rows of its dimensions from `first` on. Returns nullopt if that would take a
// copy.
template <class Launcher>
std::optional<Slots> slots_of(Tensor stacked, int64_t stack_dim, int64_t first) {
  const Tensor slot = torch::stable::select(stacked, stack_dim, 0);
  const auto spacing = row_spacing<Launcher>(slot, first);
  if (!spacing) return std::nullopt;
  return Slots{{slot, *spacing}, stacked.strides()[stack_dim]};
}

template <class Launcher>
std::vector<RowView> rows_of_inputs(const char* op, const Tensors& inputs, int64_t first) {
  std::vector<RowView> rows;
  for (const Tensor& input : inputs) rows.push_back(as_rows<Launcher>(op, input, first));
  return rows;
}

// Launches with one workspace, which the tensors of the stack share.
template <class Stack, class Launcher>
void launch_stack(const char* op, const Launcher& launcher, const Tensor& like, Stack stack) {
  const int64_t bytes = launcher.workspace_bytes(stack);
  const Tensor workspace = empty_contiguous(op, like, {bytes}, ScalarType::Byte);
  stack.each.workspace = workspace.mutable_data_ptr();
  launcher.launch(stack);
}

// Divides `count` tensors into launches of at most kMaxStack, and calls launch(first tensor, number
// of tensors) for each.
template <class Body>
void for_launches(size_t count, Body launch) {
  const auto total = static_cast<int64_t>(count);
  for (int64_t begin = 0; begin < total; begin += kMaxStack) {
    launch(begin, static_cast<int32_t>(std::min<int64_t>(total - begin, kMaxStack)));
  }
}

// --- softmax ------------------------------------------------------------------------------------

template <class Launcher>
void launch_softmax_stack(
    const char* op, const Tensors& inputs, const SoftmaxDim& at, const Slots& slots, bool log) {
  const std::vector<RowView> sources = rows_of_inputs<Launcher>(op, inputs, at.dim);
  const Launcher launcher(inputs.front());
  for_launches(inputs.size(), [&](int64_t begin, int32_t count) {
    SoftmaxStack stack{};
    for (int32_t i = 0; i < count; ++i) stack.inputs[i] = sources[begin + i].read();
    stack.each.input = stack.inputs[0];
    stack.each.output = slots.first.write();
    stack.each.output.data =
        moved(stack.each.output.data, begin * slots.slot, stack.each.output.dtype);
    stack.each.rows = inputs.front().numel() / at.cols;
    stack.each.cols = at.cols;
    stack.each.log = log;
    stack.slot = slots.slot;
    stack.count = count;
    launch_stack(op, launcher, inputs.front(), stack);
  });
}

// Contains the functions that operators.def names for stacks of softmaxes and, with kLog, of
// log_softmaxes, which are registered for the device of `Launcher`. They take lists by value,
// because boxed calls pass them so.
template <class Launcher>
struct StackOps {
  // Returns the stack of the inputs' softmaxes. Tensors are launched one by one if dim is not the
  // last dimension, or if a slot is not made of rows because the stack dimension follows dim.
  template <bool kLog>
  static Tensor softmax(Tensors inputs, int64_t dim, int64_t stack_dim) {
    const char* op = kLog ? "stack_log_softmax" : "stack_softmax";
    check_alike(op, "inputs", inputs);
    const Tensor& input = inputs.front();
    check_dtype_of(op, "inputs", input);
    const SoftmaxDim at = resolve_dim(op, input.sizes(), dim);
    stack_dim = resolve_stack_dim(op, input.dim(), stack_dim);
    Tensor output = empty_contiguous(
        op, input, stacked_sizes(input.sizes().vec(), stack_dim, inputs.size()), dtype_of(input));
    if (output.numel() == 0) return output;
    const auto slots = slots_of<Launcher>(output, stack_dim, at.dim);
    if (slots && at.inner == 1) {
      launch_softmax_stack<Launcher>(op, inputs, at, *slots, kLog);
      return output;
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor slot = torch::stable::select(output, stack_dim, static_cast<int64_t>(i));
      softmax_out<Launcher>(op, inputs[i], dim, slot, kLog);
    }
    return output;
  }
};

// --- layer_norm ---------------------------------------------------------------------------------

// Returns the first tensor of a list, whose dtype all others have, or nullopt if the list is empty.
inline std::optional<Tensor> first_of(const Tensors& tensors) {
  return tensors.empty() ? std::nullopt : std::optional(tensors.front());
}

// Holds weights and biases as kernels read them.
struct StackParameters {
  Tensors weights, biases;

  StackParameters(
      const char* op, const Tensors& weights_, const Tensors& biases_, ScalarType input) {
    const ScalarType dtype = kernel_parameter_dtype(first_of(weights_), first_of(biases_), input);
    for (const Tensor& weight : weights_) weights.push_back(prepared_parameter(op, weight, dtype));
    for (const Tensor& bias : biases_) biases.push_back(prepared_parameter(op, bias, dtype));
  }
};

inline const void* data_of(const Tensors& tensors, int64_t index) {
  return tensors.empty() ? nullptr : tensors[index].const_data_ptr();
}

inline void check_stack_parameters(
    const char* op, const char* name, const Tensors& parameters, const Tensors& inputs,
    const Sizes& normalized_shape) {
  if (parameters.empty()) return;
  FUSEDOPS_CHECK(
      parameters.size() == inputs.size(), op, ": there are ", parameters.size(), " ", name,
      ", wanted as many as inputs, ", inputs.size(), ", or none");
  check_alike(op, name, parameters);
  check_norm_parameter(op, name, parameters.front(), {"inputs", inputs.front()}, normalized_shape);
}

inline NormShape checked_norm_stack(
    const char* op, const Tensors& inputs, const Sizes& normalized_shape, const Tensors& weights,
    const Tensors& biases) {
  check_alike(op, "inputs", inputs);
  const Like input{"inputs", inputs.front()};
  check_dtype_of(op, input.name, input.tensor);
  check_stack_parameters(op, "weights", weights, inputs, normalized_shape);
  check_stack_parameters(op, "biases", biases, inputs, normalized_shape);
  return resolve_norm_shape(op, input, normalized_shape);
}

// Returns output, mean and rstd. The statistics are stacked along a new first dimension.
template <class Launcher>
std::tuple<Tensor, Tensor, Tensor> stack_layer_norm(
    Tensors inputs, Sizes normalized_shape, Tensors weights, Tensors biases, double eps,
    int64_t stack_dim) {
  const char* op = "stack_layer_norm";
  const NormShape shape = checked_norm_stack(op, inputs, normalized_shape, weights, biases);
  const Tensor& input = inputs.front();
  check_eps(op, eps);
  stack_dim = resolve_stack_dim(op, input.dim(), stack_dim);

  const ScalarType dtype = dtype_of(input), statistics = statistics_dtype(dtype);
  const Sizes statistic_sizes = stacked_sizes(shape.statistics, /*stack_dim=*/0, inputs.size());
  const Tensor mean = empty_contiguous(op, input, statistic_sizes, statistics);
  const Tensor rstd = empty_contiguous(op, input, statistic_sizes, statistics);
  Tensor output = empty_contiguous(
      op, input, stacked_sizes(input.sizes().vec(), stack_dim, inputs.size()), dtype);
  if (output.numel() == 0) {
    NormResult result{output, /*sum=*/{}, mean, rstd};
    if (shape.cols == 0) result.fill_statistics(NormKind::kLayer, eps);
    return {output, *result.mean, *result.rstd};
  }
  auto slots = slots_of<Launcher>(output, stack_dim, shape.dim);
  // If the slots of the output cannot be written as rows, a stack in dimension 0 is written, and
  // then its dimensions are moved.
  const bool in_place = slots.has_value();
  if (!in_place) {
    const Sizes in_front = stacked_sizes(input.sizes().vec(), /*stack_dim=*/0, inputs.size());
    output = empty_contiguous(op, input, in_front, dtype);
    slots = slots_of<Launcher>(output, /*stack_dim=*/0, shape.dim);
  }

  const std::vector<RowView> sources = rows_of_inputs<Launcher>(op, inputs, shape.dim);
  const StackParameters parameters(op, weights, biases, dtype);
  const Launcher launcher(input);
  for_launches(inputs.size(), [&](int64_t begin, int32_t count) {
    NormStack stack{};
    for (int32_t i = 0; i < count; ++i) {
      stack.inputs[i] = sources[begin + i].read();
      stack.weights[i] = data_of(parameters.weights, begin + i);
      stack.biases[i] = data_of(parameters.biases, begin + i);
    }
    NormForward& each = stack.each;
    each.kind = NormKind::kLayer;
    each.input = stack.inputs[0];
    each.output = slots->first.write();
    each.output.data = moved(each.output.data, begin * slots->slot, each.output.dtype);
    each.weight = NormParameters::columns(first_of(parameters.weights));
    each.bias = NormParameters::columns(first_of(parameters.biases));
    each.mean = moved(mean.mutable_data_ptr(), begin * shape.rows(), kernel_dtype(statistics));
    each.rstd = moved(rstd.mutable_data_ptr(), begin * shape.rows(), kernel_dtype(statistics));
    each.rows = shape.rows();
    each.cols = shape.cols;
    each.eps = eps;
    stack.slot = slots->slot;
    stack.count = count;
    launch_stack(op, launcher, input, stack);
  });
  return {in_place ? output : moved_dim(op, output, /*from=*/0, /*to=*/stack_dim), mean, rstd};
}

// Holds the tensors of a backward beside inputs and parameters. grad_output is stacked along
// `stack_dim`.
struct NormStackGradients {
  const Tensor &grad_output, &mean, &rstd;
  int64_t stack_dim;
};

inline void check_stack_layer_norm_backward(
    const char* op, const NormStackGradients& tensors, const Tensors& inputs,
    const NormShape& shape) {
  const Like input{"inputs", inputs.front()};
  check_tensor(
      op, "grad_output", tensors.grad_output, dtype_of(input.tensor),
      stacked_sizes(input.tensor.sizes().vec(), tensors.stack_dim, inputs.size()), input,
      " as the stack is");
  const Sizes statistics = stacked_sizes(shape.statistics, /*stack_dim=*/0, inputs.size());
  check_statistic(op, "mean", tensors.mean, input, statistics);
  check_statistic(op, "rstd", tensors.rstd, input, statistics);
}

// Computes the stacked gradients for which `result` holds tensors.
template <class Launcher>
void launch_norm_stack_backward(
    const char* op, const Tensors& inputs, const NormStackGradients& tensors,
    const NormShape& shape, const StackParameters& parameters, const NormGradResult& result) {
  auto slots = slots_of<Launcher>(tensors.grad_output, tensors.stack_dim, shape.dim);
  if (!slots) {
    const Tensor in_front =
        moved_dim(op, tensors.grad_output, /*from=*/tensors.stack_dim, /*to=*/0);
    slots = slots_of<Launcher>(in_front, /*stack_dim=*/0, shape.dim);
  }
  const std::vector<RowView> sources = rows_of_inputs<Launcher>(op, inputs, shape.dim);
  const Tensor mean = as_contiguous(op, tensors.mean), rstd = as_contiguous(op, tensors.rstd);
  const DType statistics = kernel_dtype(dtype_of(rstd));
  // Returns the part of a stacked gradient that begins after `elements` elements.
  const auto columns_from = [](const std::optional<Tensor>& grad, int64_t elements) {
    const Columns all = written_columns(grad);
    return Columns{moved(all.data, elements, all.dtype), all.dtype};
  };
  const Launcher launcher(inputs.front());
  for_launches(inputs.size(), [&](int64_t begin, int32_t count) {
    NormStackBackward stack{};
    for (int32_t i = 0; i < count; ++i) {
      stack.inputs[i] = sources[begin + i].read();
      stack.weights[i] = data_of(parameters.weights, begin + i);
    }
    NormBackward& each = stack.each;
    each.kind = NormKind::kLayer;
    each.grad_output = slots->first.read();
    each.grad_output.data =
        moved(each.grad_output.data, begin * slots->slot, each.grad_output.dtype);
    each.input = stack.inputs[0];
    each.mean = moved(mean.const_data_ptr(), begin * shape.rows(), statistics);
    each.rstd = moved(rstd.const_data_ptr(), begin * shape.rows(), statistics);
    each.weight = NormParameters::columns(first_of(parameters.weights));
    const Columns rows = columns_from(result.input, begin * shape.rows() * shape.cols);
    each.grad_input = {rows.data, {shape.cols}, rows.dtype};
    each.grad_weight = columns_from(result.weight, begin * shape.cols);
    each.grad_bias = columns_from(result.bias, begin * shape.cols);
    each.rows = shape.rows();
    each.cols = shape.cols;
    stack.slot = slots->slot;
    stack.count = count;
    stack.workspace_bytes = launcher.workspace_bytes(stack);
    const Tensor workspace =
        empty_contiguous(op, inputs.front(), {count * stack.workspace_bytes}, ScalarType::Byte);
    each.workspace = workspace.mutable_data_ptr();
    launcher.launch(stack);
  });
}

// Returns the gradients of inputs, weights and biases, each stacked along a new first dimension, or
// empty if not wanted.
template <class Launcher>
std::tuple<Tensor, Tensor, Tensor> stack_layer_norm_backward(
    const Tensor& grad_output, Tensors inputs, Sizes normalized_shape, const Tensor& mean,
    const Tensor& rstd, Tensors weights, Tensors biases, int64_t stack_dim,
    std::vector<bool> output_mask) {
  const char* op = "stack_layer_norm_backward";
  const NormWanted wanted = wanted_of(op, output_mask, /*has_bias=*/true);
  const NormShape shape = checked_norm_stack(op, inputs, normalized_shape, weights, biases);
  const Tensor& input = inputs.front();
  stack_dim = resolve_stack_dim(op, input.dim(), stack_dim);
  const NormStackGradients tensors{grad_output, mean, rstd, stack_dim};
  check_stack_layer_norm_backward(op, tensors, inputs, shape);

  const ScalarType dtype = dtype_of(input);
  const StackParameters parameters(op, weights, biases, dtype);
  const auto stacked = [&](const Sizes& sizes) {
    return stacked_sizes(sizes, /*stack_dim=*/0, inputs.size());
  };
  NormGradResult result;
  if (wanted.input) result.input = empty_contiguous(op, input, stacked(input.sizes().vec()), dtype);
  result.allocate_parameters(
      op, wanted, input, first_of(parameters.weights), first_of(parameters.biases),
      stacked(normalized_shape), shape.rows());
  if (shape.rows() > 0 && shape.cols > 0) {
    launch_norm_stack_backward<Launcher>(op, inputs, tensors, shape, parameters, result);
  }
  const auto weight = first_of(weights), bias = first_of(biases);
  result.convert_parameters(op, weight, bias, input);
  return std::tuple_cat(
      std::tuple(or_empty(op, result.input, input, dtype)),
      parameter_gradients(op, result, input, weight, bias));
}

}  // namespace fusedops
