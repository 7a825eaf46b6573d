// Implements the norms of norm_kinds.def, of the last dimensions of an input or of its sum with a
// residual, or of any one dimension of an input, forward and backward: checks tensors, passes rows
// or slices to the launcher, and returns tensors.
#pragma once

#include <tuple>

#include "ops/dropout.h"
#include "ops/norm_shape.h"

namespace fusedops {

inline Tensor prepared_parameter(const char* op, const Tensor& parameter, ScalarType dtype) {
  return as_contiguous(op, convert(op, parameter, dtype));
}

// Returns the dtype in which kernels read weight and bias: the input's, or float32 if weight or
// bias has another one and the input is not float64.
inline ScalarType kernel_parameter_dtype(
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, ScalarType input) {
  const bool same = (!weight || dtype_of(*weight) == input) && (!bias || dtype_of(*bias) == input);
  return same || input == ScalarType::Double ? input : ScalarType::Float;
}

// Holds weight and bias as kernels read them.
struct NormParameters {
  std::optional<Tensor> weight, bias;

  NormParameters(
      const char* op, const std::optional<Tensor>& weight_, const std::optional<Tensor>& bias_,
      ScalarType input) {
    const ScalarType dtype = kernel_parameter_dtype(weight_, bias_, input);
    if (weight_) weight = prepared_parameter(op, *weight_, dtype);
    if (bias_) bias = prepared_parameter(op, *bias_, dtype);
  }

  static ConstColumns columns(const std::optional<Tensor>& parameter) {
    if (!parameter) return {nullptr, DType::kFloat32};
    return {parameter->const_data_ptr(), kernel_dtype(dtype_of(*parameter))};
  }
};

// Holds the arguments that define a norm, which its forward and backward ops share. `where` is
// normalized_shape (Sizes) or, for a spatial norm, a dimension (int64_t).
template <class Where>
struct NormOptions {
  const char* op;
  NormKind kind;
  const Where& where;
  const std::optional<Tensor>& weight;
  std::optional<Tensor> bias;
  double weight_offset = 0;

  // Without a weight the factor is 1, to which no offset is added.
  double offset() const { return weight ? weight_offset : 0; }

  static constexpr bool kIsSpatial = std::is_same_v<Where, int64_t>;

  // Returns the shape of weight and bias, as a view of `where` or `shape`.
  SizesView parameter_sizes(const NormShape& shape) const {
    if constexpr (kIsSpatial) {
      return {&shape.cols, 1};
    } else {
      return where;
    }
  }

  NormShape checked_shape(const Like& input) const {
    check_dtype_of(op, input.name, input.tensor);
    const NormShape shape = resolve_norm_shape(op, input, where);
    const SizesView wanted = parameter_sizes(shape);
    const auto dim = kIsSpatial ? std::optional(shape.dim) : std::nullopt;
    check_norm_parameter(op, "weight", weight, input, wanted, dim);
    check_norm_parameter(op, "bias", bias, input, wanted, dim);
    return shape;
  }
};

// Holds the dtypes of the terms of dropout(input) + residual, and that of the sum, to which torch
// promotes them.
//
// Kernels can read one term, the branch, in 16 bits if the sum is float32, and write its gradient
// in 16 bits too. The branch is the input or, if only the residual is 16-bit and there is no
// dropout, the residual. Other terms are converted to the sum's dtype before a forward, and their
// gradients from the sum's dtype after a backward.
struct TermDtypes {
  ScalarType input, residual, sum;
  bool drops;

  // Whether a term of this dtype may be a branch that is not converted: 16 bits beside float32.
  bool is_branch(ScalarType dtype) const { return is_16_bit(dtype) && sum == ScalarType::Float; }
  // Whether the residual is the branch, and the input the other term.
  bool trade_places() const { return !drops && input == sum && is_branch(residual); }

  // Returns the dtype in which kernels take the branch.
  ScalarType branch() const {
    const ScalarType dtype = trade_places() ? residual : input;
    return is_branch(dtype) ? dtype : sum;
  }

  // Whether one tensor is the gradient of both terms.
  bool share_gradient() const { return !drops && input == residual; }
  // Whether kernels write one gradient only, from which the other differs at most in dtype.
  bool compute_one() const { return !drops && branch() == sum; }
};

// Holds the residual, if there is one, that is added to dropout(input) before the norm.
struct NormResidual {
  std::optional<Tensor> residual;
  Dropout dropout = {};  // applied to the input
};

// Holds the terms of a sum as kernels read them.
struct NormTerms {
  Tensor branch;
  std::optional<Tensor> residual;

  NormTerms(const char* op, const Tensor& input, const NormResidual& added, ScalarType sum)
      : branch(input), residual(added.residual) {
    if (!residual) return;
    const TermDtypes dtypes{
        dtype_of(input), dtype_of(*residual), sum, added.dropout.seed != nullptr};
    if (dtypes.trade_places()) std::swap(branch, *residual);
    branch = convert(op, branch, dtypes.branch());
    residual = convert(op, *residual, sum);
  }
};

// Says which optional results are wanted, if the norm has them.
struct NormOutputs {
  bool sum = true, statistics = true;
};

struct NormResult {
  Tensor output;
  std::optional<Tensor> sum, mean, rstd;

  void allocate_statistics(const char* op, NormKind kind, const Sizes& sizes) {
    const ScalarType dtype = statistics_dtype(dtype_of(output));
    if (has_mean(kind)) mean = empty_contiguous(op, output, sizes, dtype);
    rstd = empty_contiguous(op, output, sizes, dtype);
  }

  // Sets the statistics of rows without elements as torch does: their mean is 0 and rstd NaN. That
  // of l2_norm, which divides nothing by the number of columns, is 1 / eps. No operator here takes
  // a Scalar, which the stable ABI cannot pass.
  void fill_statistics(NormKind kind, double eps) {
    if (!rstd) return;
    using Number = std::optional<double>;
    const Tensor zeros = torch::stable::new_zeros(*rstd, rstd->sizes());
    const Number value = kind == NormKind::kL2 ? 1 / eps : std::nan("");
    const Tensor nans = call_aten("aten::div", "Tensor", zeros, zeros);
    rstd = call_aten("aten::nan_to_num", "", nans, value, Number(), Number());
    if (mean) mean = zeros;
  }
};

// Returns an optional result, or an empty tensor if it is not wanted.
inline Tensor or_empty(
    const char* op, const std::optional<Tensor>& result, const Tensor& like, ScalarType dtype) {
  return result ? *result : empty_contiguous(op, like, Sizes{0}, dtype);
}

// Computes the results for which `result` holds tensors.
template <class Launcher, class Where>
void launch_norm(
    const NormOptions<Where>& options, const NormShape& shape, const Tensor& input,
    const NormResidual& added, double eps, bool rounds_normalized, const NormResult& result) {
  const char* op = options.op;
  const ScalarType dtype = dtype_of(result.output);
  const NormParameters parameters(op, options.weight, options.bias, dtype);
  const auto set_common = [&](auto& args) {
    args.kind = options.kind;
    args.weight = NormParameters::columns(parameters.weight);
    args.bias = NormParameters::columns(parameters.bias);
    if (result.mean) args.mean = result.mean->mutable_data_ptr();
    if (result.rstd) args.rstd = result.rstd->mutable_data_ptr();
    args.eps = eps;
  };
  if (!shape.has_rows()) {
    const SliceView source = as_slices(op, input, shape.dim);
    SpatialNormForward args{};
    set_common(args);
    args.input = source.read();
    args.output = as_slices(op, result.output, shape.dim).write();
    args.outer = shape.outer;
    args.dim_size = shape.cols;
    args.inner = shape.inner;
    return Launcher(input).launch(args);
  }
  const NormTerms terms(op, input, added, dtype);
  const RowView source = shape.rows_of<Launcher>(op, terms.branch);
  const std::optional<RowView> residual = shape.rows_of<Launcher>(op, terms.residual);
  NormForward args{};
  set_common(args);
  args.input = source.read();
  if (residual) args.residual = residual->read();
  args.output = RowView{result.output, {shape.cols}}.write();
  if (result.sum) args.sum = RowView{*result.sum, {shape.cols}}.write();
  args.dropout = added.dropout;
  args.rows = shape.rows();
  args.cols = shape.cols;
  args.weight_offset = options.offset();
  args.rounds_normalized = rounds_normalized;
  launch_with_workspace(op, Launcher(input), input, args);
}

template <class Launcher, class Where>
NormResult norm_forward(
    const NormOptions<Where>& options, const Tensor& input, const NormResidual& added, double eps,
    const NormOutputs& wanted, bool rounds_normalized) {
  const char* op = options.op;
  NormShape shape = options.checked_shape({"input", input});
  check_eps(op, eps);
  if (added.residual) check_term(op, "residual", *added.residual, {"input", input});
  shape.is_innermost = options.kIsSpatial && is_innermost_dim(input, shape.dim);

  const ScalarType input_dtype = dtype_of(input);
  const ScalarType dtype =
      added.residual ? promoted(input_dtype, dtype_of(*added.residual)) : input_dtype;
  NormResult result{shape.empty_like(op, input, dtype), /*sum=*/{}, /*mean=*/{}, /*rstd=*/{}};
  if (added.residual && wanted.sum) result.sum = shape.empty_like(op, input, dtype);
  if (wanted.statistics) result.allocate_statistics(op, options.kind, shape.statistics);
  if (shape.cols == 0) {
    result.fill_statistics(options.kind, eps);
  } else if (shape.rows() > 0) {
    launch_norm<Launcher>(options, shape, input, added, eps, rounds_normalized, result);
  }
  return result;
}

// Holds the tensors of a backward. `input` is the tensor that was normalized.
struct NormGradients {
  const Tensor& grad_output;
  Like input;
  std::optional<Tensor> mean;
  const Tensor& rstd;
  std::optional<Tensor> grad_sum = std::nullopt;
  Dropout dropout = {};  // applied to the input before the residual is added
  double eps = 0;        // used by std_norm and l2_norm
};

// Says which gradients are wanted. `branch` is the dtype of the gradient of the branch
// (TermDtypes), or nullopt if that is not wanted.
struct NormWanted {
  bool input;
  std::optional<ScalarType> branch;
  bool weight, bias;
};

// Reads the output_mask of a backward, whose entries are input, weight and, if the norm has one,
// bias.
inline NormWanted wanted_of(const char* op, const std::vector<bool>& mask, bool has_bias) {
  check_output_mask(op, mask, has_bias ? 3 : 2);
  return {mask[0], std::nullopt, mask[1], has_bias && mask[2]};
}

// Checks and returns the dtypes of the terms of a sum in a backward. A term whose dtype, `input` or
// `residual`, is nullopt has the dtype of `sum`.
inline TermDtypes checked_terms(
    const char* op, const Tensor& sum, std::optional<ScalarType> input,
    std::optional<ScalarType> residual, bool drops) {
  check_dtype_of(op, "sum", sum);
  const ScalarType sum_dtype = dtype_of(sum);
  const TermDtypes dtypes{
      input.value_or(sum_dtype), residual.value_or(sum_dtype), sum_dtype, drops};
  check_dtype(op, "input_dtype", dtypes.input);
  check_dtype(op, "residual_dtype", dtypes.residual);
  FUSEDOPS_CHECK(
      promoted(dtypes.input, dtypes.residual) == sum_dtype, op, ": input_dtype is ",
      dtype_name(dtypes.input), " and residual_dtype ", dtype_name(dtypes.residual),
      ", wanted those whose sum is ", dtype_name(sum_dtype), " as sum is");
  return dtypes;
}

// Returns which gradients kernels have to write in a backward with a residual. The residual's entry
// in the output_mask follows the input's.
inline NormWanted wanted_of_added(
    const std::vector<bool>& mask, const TermDtypes& dtypes, bool has_bias) {
  NormWanted wanted{mask[0] || mask[1], std::nullopt, mask[2], has_bias && mask[3]};
  if (dtypes.compute_one()) return wanted;
  // The kernels' grad_input is the gradient of the term that is not the branch.
  const bool trade = dtypes.trade_places();
  wanted.input = mask[trade ? 0 : 1];
  if (mask[trade ? 1 : 0]) wanted.branch = dtypes.branch();
  return wanted;
}

inline void check_norm_backward(
    const char* op, const NormGradients& tensors, const Sizes& statistics) {
  check_like(op, "grad_output", tensors.grad_output, tensors.input);
  if (tensors.grad_sum) check_like(op, "grad_sum", *tensors.grad_sum, tensors.input);
  if (tensors.mean) check_statistic(op, "mean", *tensors.mean, tensors.input, statistics);
  check_statistic(op, "rstd", tensors.rstd, tensors.input, statistics);
  check_eps(op, tensors.eps);
}

// Returns the dtype of the gradient of weight or bias: the parameter's or, without it, the input's.
inline ScalarType norm_parameter_dtype(
    const Tensor& input, const std::optional<Tensor>& parameter) {
  return parameter ? dtype_of(*parameter) : dtype_of(input);
}

struct NormGradResult {
  std::optional<Tensor> input, branch, weight, bias;  // nullopt if not wanted

  // Allocates the gradients of the parameters. They are zero if there are no rows.
  void allocate_parameters(
      const char* op, const NormWanted& wanted, const Tensor& like,
      const std::optional<Tensor>& weight_, const std::optional<Tensor>& bias_, SizesView sizes,
      int64_t rows) {
    const auto empty = [&](const std::optional<Tensor>& parameter) {
      Tensor grad = empty_contiguous(op, like, sizes, norm_parameter_dtype(like, parameter));
      if (rows == 0) torch::stable::zero_(grad);
      return grad;
    };
    if (wanted.weight) weight = empty(weight_);
    if (wanted.bias) bias = empty(bias_);
  }

  // Converts the gradients of the parameters to the dtypes that the caller expects.
  void convert_parameters(
      const char* op, const std::optional<Tensor>& weight_, const std::optional<Tensor>& bias_,
      const Tensor& like) {
    if (weight) weight = convert(op, *weight, norm_parameter_dtype(like, weight_));
    if (bias) bias = convert(op, *bias, norm_parameter_dtype(like, bias_));
  }
};

inline Columns written_columns(const std::optional<Tensor>& grad) {
  return grad ? Columns{grad->mutable_data_ptr(), kernel_dtype(dtype_of(*grad))} : Columns{};
}

// Computes the gradients for which `result` holds tensors.
template <class Launcher, class Where>
void launch_norm_backward(
    const NormOptions<Where>& options, const NormGradients& tensors, const NormShape& shape,
    const NormParameters& parameters, const NormGradResult& result) {
  const char* op = options.op;
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
  if (!shape.has_rows()) {
    const SliceView grad = as_slices(op, tensors.grad_output, shape.dim);
    const SliceView source = as_slices(op, input, shape.dim);
    SpatialNormBackward args{};
    set_common(args);
    args.grad_output = grad.read();
    args.input = source.read();
    if (result.input) args.grad_input = as_slices(op, *result.input, shape.dim).write();
    args.outer = shape.outer;
    args.dim_size = shape.cols;
    args.inner = shape.inner;
    return launch_with_workspace(op, Launcher(input), input, args);
  }
  const RowView grad = shape.rows_of<Launcher>(op, tensors.grad_output);
  const std::optional<RowView> grad_sum = shape.rows_of<Launcher>(op, tensors.grad_sum);
  const RowView source = shape.rows_of<Launcher>(op, input);
  NormBackward args{};
  set_common(args);
  args.grad_output = grad.read();
  if (grad_sum) args.grad_sum = grad_sum->read();
  args.input = source.read();
  if (result.input) args.grad_input = RowView{*result.input, {shape.cols}}.write();
  if (result.branch) args.grad_branch = RowView{*result.branch, {shape.cols}}.write();
  args.dropout = tensors.dropout;
  args.rows = shape.rows();
  args.cols = shape.cols;
  args.eps = tensors.eps;
  args.weight_offset = options.offset();
  launch_with_workspace(op, Launcher(input), input, args);
}

template <class Launcher, class Where>
NormGradResult norm_backward(
    const NormOptions<Where>& options, const NormGradients& tensors, const NormWanted& wanted) {
  const char* op = options.op;
  const Tensor& input = tensors.input.tensor;
  NormShape shape = options.checked_shape(tensors.input);
  check_norm_backward(op, tensors, shape.statistics);
  shape.is_innermost = options.kIsSpatial && is_innermost_dim(input, shape.dim) &&
      is_innermost_dim(tensors.grad_output, shape.dim);

  const ScalarType dtype = dtype_of(input);
  const NormParameters parameters(op, options.weight, options.bias, dtype);
  NormGradResult result;
  result.allocate_parameters(
      op, wanted, input, parameters.weight, parameters.bias, options.parameter_sizes(shape),
      shape.rows());
  if (wanted.input) result.input = shape.empty_like(op, input, dtype);
  if (wanted.branch) result.branch = shape.empty_like(op, input, *wanted.branch);
  if (shape.rows() > 0 && shape.cols > 0) {
    launch_norm_backward<Launcher>(options, tensors, shape, parameters, result);
  }
  result.convert_parameters(op, options.weight, options.bias, input);
  return result;
}

// --- entry points -------------------------------------------------------------------------------

using MaybeTensor = std::optional<Tensor>;

// Holds what norm_kinds.def says of a kind: the names of its operators, for messages, and the
// arguments that not every kind has.
template <NormKind kKind, class Where>
struct NormTraits;
#define NORM_KIND(kind, name, mean, offset, eps, ...)                       \
  template <>                                                               \
  struct NormTraits<NormKind::k##kind, Sizes> {                             \
    static constexpr const char* op = #name;                                \
    static constexpr const char* backward = #name "_backward";              \
    static constexpr const char* added = "add_" #name;                      \
    static constexpr const char* added_backward = "add_" #name "_backward"; \
    static constexpr bool has_offset = offset, has_eps = eps;               \
  };                                                                        \
  template <>                                                               \
  struct NormTraits<NormKind::k##kind, int64_t> {                           \
    static constexpr const char* op = "spatial_" #name;                     \
    static constexpr const char* backward = "spatial_" #name "_backward";   \
    static constexpr bool has_offset = false, has_eps = false;              \
  };
#include "norm_kinds.def"
#undef NORM_KIND

// Pack<Types...> is a list of argument types. PackIf<kHas, Type> is a list of one type, for an
// argument that only some kinds of norms have, or an empty list if this kind lacks the argument.
template <class... Types>
struct Pack {};
template <bool kHas, class Type>
using PackIf = std::conditional_t<kHas, Pack<Type>, Pack<>>;

// Returns the value of an argument, or `missing` if the kind lacks the argument.
template <class Value>
Value argument_or(Value missing) {
  return missing;
}
template <class Value>
Value argument_or(const Value&, const Value& argument) {
  return argument;
}

// Returns mean, if the kind has one, and rstd.
template <NormKind kKind>
auto statistics_of(const NormResult& result) {
  if constexpr (has_mean(kKind)) {
    return std::tuple(*result.mean, *result.rstd);
  } else {
    return std::tuple(*result.rstd);
  }
}

// Returns the gradients of weight and, if the kind has one, bias: each is empty if it is not
// wanted.
template <class... Bias>
auto parameter_gradients(
    const char* op, const NormGradResult& grad, const Tensor& input, const MaybeTensor& weight,
    const Bias&... bias) {
  return std::tuple(
      or_empty(op, grad.weight, input, norm_parameter_dtype(input, weight)),
      or_empty(op, grad.bias, input, norm_parameter_dtype(input, bias))...);
}

// Contains the functions that operators.def names for a kind of norm, which are registered for the
// device of `Launcher`. `Where` is as in NormOptions. Sizes are taken by value, because boxed calls
// pass them so. Spatial norms have no weight_offset, rounds_normalized or eps of a backward.
template <
    class Launcher, NormKind kKind, class Where, class = PackIf<has_mean(kKind), Tensor>,
    class = PackIf<has_mean(kKind), MaybeTensor>,
    class = PackIf<NormTraits<kKind, Where>::has_offset, double>,
    class = PackIf<NormTraits<kKind, Where>::has_offset, bool>,
    class = PackIf<NormTraits<kKind, Where>::has_eps, double>>
struct NormOps;
template <
    class Launcher, NormKind kKind, class Where, class... Mean, class... Bias, class... Offset,
    class... Rounds, class... Eps>
struct NormOps<
    Launcher, kKind, Where, Pack<Mean...>, Pack<Bias...>, Pack<Offset...>, Pack<Rounds...>,
    Pack<Eps...>> {
  using Traits = NormTraits<kKind, Where>;
  using MaybeDtype = std::optional<ScalarType>;

  static auto forward(
      const Tensor& input, Where where, MaybeTensor weight, Bias... bias, double eps,
      Offset... weight_offset, Rounds... rounds_normalized) {
    const NormResult result = norm_forward<Launcher>(
        options(Traits::op, where, weight, bias..., weight_offset...), input,
        /*added=*/{}, eps, /*wanted=*/{}, argument_or(/*missing=*/false, rounds_normalized...));
    return std::tuple_cat(std::tuple(result.output), statistics_of<kKind>(result));
  }

  static Tensor output(
      const Tensor& input, Where where, MaybeTensor weight, Bias... bias, double eps,
      Offset... weight_offset, Rounds... rounds_normalized) {
    return norm_forward<Launcher>(
               options(Traits::op, where, weight, bias..., weight_offset...), input,
               /*added=*/{}, eps, /*wanted=*/{/*sum=*/false, /*statistics=*/false},
               argument_or(/*missing=*/false, rounds_normalized...))
        .output;
  }

  static auto backward(
      const Tensor& grad_output, const Tensor& input, Where where, const Mean&... mean,
      const Tensor& rstd, MaybeTensor weight, Bias... bias, std::vector<bool> output_mask,
      Eps... eps, Offset... weight_offset) {
    const char* op = Traits::backward;
    const NormGradResult grad = norm_backward<Launcher>(
        options(op, where, weight, bias..., weight_offset...),
        {grad_output,
         {"input", input},
         argument_or<MaybeTensor>(/*missing=*/{}, mean...),
         rstd,
         /*grad_sum=*/std::nullopt,
         /*dropout=*/{},
         argument_or(/*missing=*/0.0, eps...)},
        wanted_of(op, output_mask, has_mean(kKind)));
    return std::tuple_cat(
        std::tuple(or_empty(op, grad.input, input, dtype_of(input))),
        parameter_gradients(op, grad, input, weight, bias...));
  }

  static auto added(
      const Tensor& input, const Tensor& residual, Where where, MaybeTensor weight, Bias... bias,
      double eps, Offset... weight_offset, Rounds... rounds_normalized, double p,
      MaybeTensor seed) {
    const char* op = Traits::added;
    const NormResult result = norm_forward<Launcher>(
        options(op, where, weight, bias..., weight_offset...), input,
        {residual, branch_dropout(op, p, seed, {"input", input})}, eps, /*wanted=*/{},
        argument_or(/*missing=*/false, rounds_normalized...));
    return std::tuple_cat(std::tuple(result.output, *result.sum), statistics_of<kKind>(result));
  }

  // Computes no statistics. The second result is the sum if `wants_sum` is set, and otherwise
  // empty.
  static std::tuple<Tensor, Tensor> added_inference(
      const Tensor& input, const Tensor& residual, Where where, MaybeTensor weight, Bias... bias,
      double eps, bool wants_sum, Offset... weight_offset, Rounds... rounds_normalized, double p,
      MaybeTensor seed) {
    const char* op = Traits::added;
    const NormResult result = norm_forward<Launcher>(
        options(op, where, weight, bias..., weight_offset...), input,
        {residual, branch_dropout(op, p, seed, {"input", input})}, eps,
        /*wanted=*/{wants_sum, /*statistics=*/false},
        argument_or(/*missing=*/false, rounds_normalized...));
    const Tensor& output = result.output;
    return {output, or_empty(op, result.sum, output, dtype_of(output))};
  }

  // Returns grad_input, grad_residual and the gradients of the parameters. grad_residual is empty
  // where grad_input is the gradient of both (operators.def).
  static auto added_backward(
      const Tensor& grad_output, MaybeTensor grad_sum, const Tensor& sum, Where where,
      const Mean&... mean, const Tensor& rstd, MaybeTensor weight, Bias... bias,
      std::vector<bool> output_mask, Offset... weight_offset, double p, MaybeTensor seed,
      MaybeDtype input_dtype, MaybeDtype residual_dtype) {
    const char* op = Traits::added_backward;
    check_output_mask(op, output_mask, has_mean(kKind) ? 4 : 3);
    const Dropout dropout = branch_dropout(op, p, seed, {"sum", sum});
    const TermDtypes dtypes = checked_terms(op, sum, input_dtype, residual_dtype, p > 0);
    const NormGradResult grad = norm_backward<Launcher>(
        options(op, where, weight, bias..., weight_offset...),
        {grad_output,
         {"sum", sum},
         argument_or<MaybeTensor>(/*missing=*/{}, mean...),
         rstd,
         grad_sum,
         dropout},
        wanted_of_added(output_mask, dtypes, has_mean(kKind)));
    return std::tuple_cat(
        gradients_of_terms(op, grad, dtypes, output_mask, sum),
        parameter_gradients(op, grad, sum, weight, bias...));
  }

 private:
  static NormOptions<Where> options(
      const char* op, const Where& where, const MaybeTensor& weight, const Bias&... bias,
      Offset... weight_offset) {
    return {
        op,
        kKind,
        where,
        weight,
        argument_or<MaybeTensor>(/*missing=*/{}, bias...),
        argument_or(/*missing=*/0.0, weight_offset...)};
  }

  // Returns the gradients of the input and of the residual, made from those that the kernel has
  // written (wanted_of_added()). A gradient that is not wanted is empty. If the two are the same
  // tensor, only the first is returned, and the second is empty.
  static std::tuple<Tensor, Tensor> gradients_of_terms(
      const char* op, const NormGradResult& grad, const TermDtypes& dtypes,
      const std::vector<bool>& mask, const Tensor& sum) {
    const auto as = [&](bool wanted, const MaybeTensor& grad, ScalarType dtype) {
      return wanted ? convert(op, *grad, dtype) : empty_contiguous(op, sum, Sizes{0}, dtype);
    };
    if (dtypes.share_gradient()) {
      const bool wanted = mask[0] || mask[1];
      return {as(wanted, grad.input, dtypes.sum), as(false, std::nullopt, dtypes.sum)};
    }
    const MaybeTensor& branch = dtypes.compute_one() ? grad.input : grad.branch;
    const bool trade = dtypes.trade_places();
    return {
        as(mask[0], trade ? grad.input : branch, dtypes.input),
        as(mask[1], trade ? branch : grad.input, dtypes.residual)};
  }
};

}  // namespace fusedops
