// Implements norms over any one dimension: checks tensors, passes rows or slices to the launcher,
// and returns tensors.
#pragma once

#include <tuple>

#include "ops/norm.h"
#include "ops/softmax.h"

namespace fusedops {

// Holds the arguments that define a norm over `dim`, which its forward and backward ops share.
struct SpatialNormOptions {
  const char* op;
  NormKind kind;
  int64_t dim;
  const std::optional<Tensor>& weight;
  std::optional<Tensor> bias;
};

// Holds the sizes of a tensor around the dimension that is normalized.
struct SpatialNormShape {
  int64_t dim, outer, dim_size, inner;
  Sizes statistics;  // the input's shape, with a size of 1 in `dim`
};

// Checks the tensor and the parameters of a norm over `dim`, and returns the sizes around it.
inline SpatialNormShape checked_spatial_norm(
    const SpatialNormOptions& options, const Tensor& tensor) {
  const Like input{"input", tensor};
  const char* op = options.op;
  check_dtype_of(op, input.name, tensor);
  const SizesView sizes = tensor.sizes();
  const SoftmaxDim at = resolve_dim(op, sizes, options.dim);
  const auto check_parameter = [&](const char* name, const std::optional<Tensor>& parameter) {
    check_norm_parameter(
        op, name, parameter, input, {&at.cols, 1}, /*before=*/"", ", the size of dim ", at.dim);
  };
  check_parameter("weight", options.weight);
  check_parameter("bias", options.bias);
  SpatialNormShape shape{at.dim, product(sizes, 0, at.dim), at.cols, at.inner, sizes.vec()};
  if (!shape.statistics.empty()) shape.statistics[at.dim] = 1;
  return shape;
}

// Returns the strides of a dense tensor whose elements are adjacent in memory along `dim`.
inline Sizes strides_with_innermost(SizesView sizes, int64_t dim) {
  Sizes strides(sizes.size());
  int64_t stride = sizes.empty() || sizes[dim] == 0 ? 1 : sizes[dim];
  for (size_t i = sizes.size(); i-- > 0;) {
    if (static_cast<int64_t>(i) == dim) continue;
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  if (!sizes.empty()) strides[dim] = 1;
  return strides;
}

// Whether `dim` is the innermost dimension of a dense tensor, though not its last.
inline bool is_innermost_dim(const Tensor& tensor, int64_t dim) {
  if (tensor.is_contiguous()) return false;
  const Layout layout(tensor);
  const Sizes wanted = strides_with_innermost(layout.sizes, dim);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (layout.sizes[i] > 1 && layout.strides[i] != wanted[i]) return false;
  }
  return true;
}

// Says how kernels see the tensors of a call: as rows if elements are adjacent along `dim`, and
// otherwise as slices around it.
struct SpatialNormLayout {
  const char* op;
  const SpatialNormShape& shape;
  bool is_innermost;  // whether is_innermost_dim() holds for the tensors of the call

  bool has_rows() const { return is_innermost || shape.inner == 1; }

  Tensor empty_like(const Tensor& input) const {
    const SizesView sizes = input.sizes();
    const ScalarType dtype = dtype_of(input);
    if (!is_innermost) return empty_contiguous(op, input, sizes, dtype);
    return empty_strided(op, input, sizes, strides_with_innermost(sizes, shape.dim).data(), dtype);
  }

  template <class Launcher>
  RowView rows(const Tensor& tensor) const {
    if (is_innermost) return {tensor, {shape.dim_size}};
    return as_rows<Launcher>(op, tensor, shape.dim);
  }
};

template <class Launcher>
void launch_spatial_norm(
    const SpatialNormOptions& options, const SpatialNormLayout& layout, const Tensor& input,
    const NormResult& result, double eps) {
  const char* op = options.op;
  const SpatialNormShape& shape = layout.shape;
  const Tensor& output = result.output;
  const NormParameters parameters(op, options.weight, options.bias, dtype_of(input));
  const auto set_common = [&](auto& args) {
    args.kind = options.kind;
    args.weight = NormParameters::columns(parameters.weight);
    args.bias = NormParameters::columns(parameters.bias);
    if (result.mean) args.mean = result.mean->mutable_data_ptr();
    if (result.rstd) args.rstd = result.rstd->mutable_data_ptr();
    args.eps = eps;
  };
  if (layout.has_rows()) {
    const RowView source = layout.rows<Launcher>(input), to = layout.rows<Launcher>(output);
    NormForward args{};
    set_common(args);
    args.input = source.read();
    args.output = to.write();
    args.rows = shape.outer * shape.inner;
    args.cols = shape.dim_size;
    return launch_with_workspace(op, Launcher(input), input, args);
  }
  const SliceView source = as_slices(op, input, shape.dim), to = as_slices(op, output, shape.dim);
  SpatialNormForward args{};
  set_common(args);
  args.input = source.read();
  args.output = to.write();
  args.outer = shape.outer;
  args.dim_size = shape.dim_size;
  args.inner = shape.inner;
  Launcher(input).launch(args);
}

template <class Launcher>
NormResult spatial_norm_forward(
    const SpatialNormOptions& options, const Tensor& input, double eps, bool wants_statistics) {
  const char* op = options.op;
  const SpatialNormShape shape = checked_spatial_norm(options, input);
  FUSEDOPS_CHECK(
      shape.dim_size > 0, op, ": dim ", shape.dim, " has size 0, wanted at least one element");
  check_eps(op, eps);
  const SpatialNormLayout layout{op, shape, is_innermost_dim(input, shape.dim)};
  NormResult result{layout.empty_like(input), /*sum=*/{}, /*mean=*/{}, /*rstd=*/{}};
  if (wants_statistics) result.allocate_statistics(op, options.kind, shape.statistics);
  if (input.numel() > 0) launch_spatial_norm<Launcher>(options, layout, input, result, eps);
  return result;
}

// Computes the gradients for which `result` holds tensors.
template <class Launcher>
void launch_spatial_norm_backward(
    const SpatialNormOptions& options, const SpatialNormLayout& layout,
    const NormGradients& tensors, const NormParameters& parameters, const NormGradResult& result) {
  const char* op = options.op;
  const SpatialNormShape& shape = layout.shape;
  const Tensor& input = tensors.input.tensor;
  const std::optional<Tensor> mean =
      tensors.mean ? std::optional(as_contiguous(op, *tensors.mean)) : std::nullopt;
  const Tensor rstd = as_contiguous(op, tensors.rstd);
  const auto set_common = [&](auto& args) {
    args.kind = options.kind;
    if (mean) args.mean = mean->const_data_ptr();
    args.rstd = rstd.const_data_ptr();
    args.weight = NormParameters::columns(parameters.weight);
    args.grad_weight = written_columns(result.weight);
    args.grad_bias = written_columns(result.bias);
  };
  if (layout.has_rows()) {
    const RowView grad = layout.rows<Launcher>(tensors.grad_output);
    const RowView source = layout.rows<Launcher>(input);
    NormBackward args{};
    set_common(args);
    args.grad_output = grad.read();
    args.input = source.read();
    if (result.input) args.grad_input = layout.rows<Launcher>(*result.input).write();
    args.rows = shape.outer * shape.inner;
    args.cols = shape.dim_size;
    return launch_with_workspace(op, Launcher(input), input, args);
  }
  const SliceView grad = as_slices(op, tensors.grad_output, shape.dim);
  const SliceView source = as_slices(op, input, shape.dim);
  SpatialNormBackward args{};
  set_common(args);
  args.grad_output = grad.read();
  args.input = source.read();
  if (result.input) args.grad_input = as_slices(op, *result.input, shape.dim).write();
  args.outer = shape.outer;
  args.dim_size = shape.dim_size;
  args.inner = shape.inner;
  launch_with_workspace(op, Launcher(input), input, args);
}

template <class Launcher>
NormGradResult spatial_norm_backward(
    const SpatialNormOptions& options, const NormGradients& tensors, const NormWanted& wanted) {
  const char* op = options.op;
  const Tensor& input = tensors.input.tensor;
  const SpatialNormShape shape = checked_spatial_norm(options, input);
  check_norm_backward(op, tensors, shape.statistics);

  const bool is_innermost =
      is_innermost_dim(input, shape.dim) && is_innermost_dim(tensors.grad_output, shape.dim);
  const SpatialNormLayout layout{op, shape, is_innermost};
  const NormParameters parameters(op, options.weight, options.bias, dtype_of(input));
  NormGradResult result;
  result.allocate_parameters(
      op, wanted, input, parameters, {shape.dim_size}, shape.outer * shape.inner);
  if (wanted.input) result.input = layout.empty_like(input);
  if (input.numel() > 0) {
    launch_spatial_norm_backward<Launcher>(options, layout, tensors, parameters, result);
  }
  result.convert_parameters(options, input);
  return result;
}

// Contains the functions that operators.def names for a kind of spatial norm, which are registered
// for the device of `Launcher`.
template <
    class Launcher, NormKind kKind, class = PackIf<has_mean(kKind), Tensor>,
    class = PackIf<has_mean(kKind), MaybeTensor>>
struct SpatialNormOps;
template <class Launcher, NormKind kKind, class... Mean, class... Bias>
struct SpatialNormOps<Launcher, kKind, Pack<Mean...>, Pack<Bias...>> {
  using Traits = NormTraits<kKind>;

  static auto forward(
      const Tensor& input, int64_t dim, MaybeTensor weight, Bias... bias, double eps) {
    const NormResult result = spatial_norm_forward<Launcher>(
        options(Traits::spatial, dim, weight, bias...), input, eps, /*wants_statistics=*/true);
    return std::tuple_cat(std::tuple(result.output), statistics_of<kKind>(result));
  }

  static Tensor output(
      const Tensor& input, int64_t dim, MaybeTensor weight, Bias... bias, double eps) {
    const SpatialNormOptions of_norm = options(Traits::spatial, dim, weight, bias...);
    return spatial_norm_forward<Launcher>(of_norm, input, eps, /*wants_statistics=*/false).output;
  }

  static auto backward(
      const Tensor& grad_output, const Tensor& input, int64_t dim, const Mean&... mean,
      const Tensor& rstd, MaybeTensor weight, Bias... bias, std::vector<bool> output_mask) {
    const char* op = Traits::spatial_backward;
    const NormGradResult grad = spatial_norm_backward<Launcher>(
        options(op, dim, weight, bias...),
        {grad_output, {"input", input}, argument_or<MaybeTensor>(/*missing=*/{}, mean...), rstd},
        wanted_of(op, output_mask, has_mean(kKind)));
    return std::tuple_cat(
        std::tuple(grad_of_input(op, grad.input, input)),
        parameter_gradients(op, grad, input, weight, bias...));
  }

 private:
  static SpatialNormOptions options(
      const char* op, int64_t dim, const MaybeTensor& weight, const Bias&... bias) {
    return {op, kKind, dim, weight, argument_or<MaybeTensor>(/*missing=*/{}, bias...)};
  }
};

}  // namespace fusedops
