// layer_norm, forward and backward: tensors in, rows to the backend, tensors out.
#pragma once

#include <tuple>

#include "ops/tensor.h"

namespace fusedops {

// How normalized_shape splits an input: dimensions [first, end) form a row.
struct NormShape {
  int64_t first, rows, cols;
  Sizes statistics;  // the input's shape with every normalized dimension 1
};

inline NormShape resolve_norm_shape(
    const char* op, const Sizes& sizes, const Sizes& normalized_shape) {
  const size_t rank = sizes.size(), normalized = normalized_shape.size();
  check(normalized > 0, op, ": normalized_shape is empty, wanted at least one dimension");
  const bool matches = normalized <= rank &&
      std::equal(normalized_shape.begin(), normalized_shape.end(), sizes.end() - normalized);
  check(
      matches, op, ": normalized_shape is ", list_text(normalized_shape),
      ", wanted the last dimensions of input, whose shape is ", list_text(sizes));
  const size_t first = rank - normalized;
  NormShape shape{
      static_cast<int64_t>(first), product(sizes, 0, first), product(sizes, first, rank), sizes};
  std::fill(shape.statistics.begin() + first, shape.statistics.end(), 1);
  check_cols(op, shape.cols);
  return shape;
}

inline void check_norm_parameter(
    const char* op, const char* name, const std::optional<Tensor>& parameter, const Tensor& input,
    const Sizes& normalized_shape) {
  if (!parameter) return;
  check(
      sizes_of(*parameter) == normalized_shape, op, ": ", name, " has shape ",
      list_text(sizes_of(*parameter)), ", wanted normalized_shape, ", list_text(normalized_shape));
  check_device(op, name, *parameter, input);
  check_dtype(op, name, parameter->scalar_type());
}

// weight and bias in the dtype the kernel takes: the input's, or float32 where one of them differs.
struct NormParameters {
  std::optional<Tensor> weight, bias;

  NormParameters(
      const std::optional<Tensor>& weight_, const std::optional<Tensor>& bias_, ScalarType input) {
    const bool same =
        (!weight_ || weight_->scalar_type() == input) && (!bias_ || bias_->scalar_type() == input);
    const ScalarType dtype = same || input == ScalarType::Double ? input : ScalarType::Float;
    weight = prepared(weight_, dtype);
    bias = prepared(bias_, dtype);
  }

  static std::optional<Tensor> prepared(const std::optional<Tensor>& given, ScalarType dtype) {
    if (!given) return given;
    return torch::stable::contiguous(convert(*given, dtype));
  }

  static ConstColumns columns(const std::optional<Tensor>& parameter) {
    if (!parameter) return {nullptr, DType::kFloat32};
    return {parameter->const_data_ptr(), kernel_dtype(parameter->scalar_type())};
  }
};

inline ScalarType statistics_dtype(ScalarType input) {
  return input == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor> layer_norm_forward(
    const Tensor& input, const Sizes& normalized_shape, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias, double eps) {
  constexpr const char* op = "layer_norm";
  check_dtype(op, "input", input.scalar_type());
  const Sizes sizes = sizes_of(input);
  const NormShape shape = resolve_norm_shape(op, sizes, normalized_shape);
  check_norm_parameter(op, "weight", weight, input, normalized_shape);
  check_norm_parameter(op, "bias", bias, input, normalized_shape);
  check(
      shape.cols > 0, op, ": normalized_shape is ", list_text(normalized_shape),
      ", wanted no dimension of size 0");
  check(eps >= 0, op, ": eps is ", eps, ", wanted a value >= 0");

  const ScalarType dtype = input.scalar_type();
  const Tensor output = empty_contiguous(input, sizes, dtype);
  const Tensor mean = empty_contiguous(input, shape.statistics, statistics_dtype(dtype));
  const Tensor rstd = empty_contiguous(input, shape.statistics, statistics_dtype(dtype));
  if (shape.rows > 0) {
    const RowView source = as_rows<Backend>(input, shape.first);
    const NormParameters parameters(weight, bias, dtype);
    Backend(input).launch(
        LayerNormForward{
            source.read(), RowView{output, {shape.cols}}.write(),
            NormParameters::columns(parameters.weight), NormParameters::columns(parameters.bias),
            mean.mutable_data_ptr(), rstd.mutable_data_ptr(), shape.rows, shape.cols, eps});
  }
  return {output, mean, rstd};
}

// The gradient of weight or bias: empty where it is not wanted, zero where there are no rows.
inline Tensor norm_parameter_grad(
    bool wanted, const Tensor& input, const std::optional<Tensor>& parameter,
    const Sizes& normalized_shape, int64_t rows) {
  const ScalarType dtype = parameter ? parameter->scalar_type() : input.scalar_type();
  Tensor grad = empty_contiguous(input, wanted ? normalized_shape : Sizes{0}, dtype);
  if (wanted && rows == 0) torch::stable::zero_(grad);
  return grad;
}

inline void check_norm_backward(
    const char* op, const Tensor& grad_output, const Tensor& input, const NormShape& shape,
    const Tensor& mean, const Tensor& rstd) {
  check_like(op, "grad_output", grad_output, "input", input);
  const ScalarType dtype = statistics_dtype(input.scalar_type());
  for (const Tensor* statistic : {&mean, &rstd}) {
    check(
        statistic->scalar_type() == dtype && statistic->is_contiguous() &&
            statistic->numel() == shape.rows,
        op, ": mean and rstd must be the contiguous ", dtype_name(dtype),
        " tensors that layer_norm returned, of shape ", list_text(shape.statistics));
  }
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& grad_output, const Tensor& input, const Sizes& normalized_shape,
    const Tensor& mean, const Tensor& rstd, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias, const std::vector<bool>& output_mask) {
  constexpr const char* op = "layer_norm_backward";
  check_dtype(op, "input", input.scalar_type());
  const Sizes sizes = sizes_of(input);
  const NormShape shape = resolve_norm_shape(op, sizes, normalized_shape);
  check_norm_parameter(op, "weight", weight, input, normalized_shape);
  check_norm_parameter(op, "bias", bias, input, normalized_shape);
  check_norm_backward(op, grad_output, input, shape, mean, rstd);

  const ScalarType dtype = input.scalar_type();
  const NormParameters parameters(weight, bias, dtype);
  const Tensor grad_input = empty_contiguous(input, output_mask[0] ? sizes : Sizes{0}, dtype);
  const Tensor grad_weight =
      norm_parameter_grad(output_mask[1], input, parameters.weight, normalized_shape, shape.rows);
  const Tensor grad_bias =
      norm_parameter_grad(output_mask[2], input, parameters.bias, normalized_shape, shape.rows);
  const auto columns = [](bool wanted, const Tensor& grad) {
    return Columns{wanted ? grad.mutable_data_ptr() : nullptr, kernel_dtype(grad.scalar_type())};
  };
  if (shape.rows > 0 && shape.cols > 0) {
    const RowView grad = as_rows<Backend>(grad_output, shape.first);
    const RowView source = as_rows<Backend>(input, shape.first);
    const RowView result{grad_input, shape.cols};
    LayerNormBackward args{
        grad.read(),
        source.read(),
        mean.const_data_ptr(),
        rstd.const_data_ptr(),
        NormParameters::columns(parameters.weight),
        result.write(),
        columns(output_mask[1], grad_weight),
        columns(output_mask[2], grad_bias),
        nullptr,
        shape.rows,
        shape.cols};
    if (!output_mask[0]) args.grad_input.data = nullptr;
    const Backend backend(input);
    const Tensor workspace =
        empty_contiguous(input, {backend.workspace_bytes(args)}, ScalarType::Byte);
    args.workspace = workspace.mutable_data_ptr();
    backend.launch(args);
  }
  const auto as_given = [](const Tensor& grad, const std::optional<Tensor>& parameter) {
    return parameter ? convert(grad, parameter->scalar_type()) : grad;
  };
  return {grad_input, as_given(grad_weight, weight), as_given(grad_bias, bias)};
}

// The entry points that a backend registers. Sizes arrive by value from the boxed call.
template <class Backend>
struct LayerNormOps {
  static std::tuple<Tensor, Tensor, Tensor> layer_norm(
      const Tensor& input, Sizes normalized_shape, std::optional<Tensor> weight,
      std::optional<Tensor> bias, double eps) {
    return layer_norm_forward<Backend>(input, normalized_shape, weight, bias, eps);
  }
  static std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
      const Tensor& grad_output, const Tensor& input, Sizes normalized_shape, const Tensor& mean,
      const Tensor& rstd, std::optional<Tensor> weight, std::optional<Tensor> bias,
      std::vector<bool> output_mask) {
    return fusedops::layer_norm_backward<Backend>(
        grad_output, input, normalized_shape, mean, rstd, weight, bias, output_mask);
  }
};

}  // namespace fusedops
