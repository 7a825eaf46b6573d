// Implements softmax and log_softmax, forward and backward: checks tensors, passes rows or slices
// to the launcher, and returns tensors.
#pragma once

#include "ops/tensor.h"

namespace fusedops {

// Describes the dimension of a softmax: `dim`, with `cols` elements, which are `inner` elements
// apart in a contiguous tensor.
struct SoftmaxDim {
  int64_t dim;
  int64_t cols, inner;
};

// Checks `dim`, which counts from the end if it is negative, and describes it. A tensor without
// dimensions has one of size 1.
inline SoftmaxDim resolve_dim(const char* op, SizesView sizes, int64_t dim) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t bound = rank > 0 ? rank : 1;
  FUSEDOPS_CHECK(
      dim >= -bound && dim < bound, op, ": dim is ", dim, ", wanted a value in [", -bound, ", ",
      bound - 1, "] for an input of shape ", list_text(sizes));
  if (rank == 0) return {/*dim=*/0, /*cols=*/1, /*inner=*/1};
  const int64_t wrapped = dim < 0 ? dim + rank : dim;
  const SoftmaxDim at{wrapped, sizes[wrapped], product(sizes, wrapped + 1, rank)};
  check_cols(op, at.cols);
  return at;
}

// Whether kernels read an input of dtype `from`, unconverted, for an output of dtype `to` (args.h).
inline bool kernels_convert(ScalarType from, ScalarType to) {
  return from == to || (is_16_bit(from) && to == ScalarType::Float);
}

// Converts an input to the dtype of the output, unless kernels convert it.
inline Tensor converted(const char* op, const Tensor& input, ScalarType output) {
  return kernels_convert(dtype_of(input), output) ? input : convert(op, input, output);
}

// Returns the dtype of the result, `dtype` or by default the input's. With a `dtype` the input may
// have any dtype, because it is converted.
inline ScalarType softmax_dtype(
    const char* op, const Tensor& input, std::optional<ScalarType> dtype) {
  check_given(op, "input", input);
  const char* fix = "convert it, or pass dtype=";
  if (dtype) {
    check_dtype(op, "dtype", *dtype, fix);
  } else {
    check_dtype_of(op, "input", input, fix);
  }
  return dtype.value_or(dtype_of(input));
}

// Writes the softmax of `tensor`, or with `log` its logarithm, to `output`, which must be a tensor
// that as_rows() or, where elements along dim are not adjacent (inner > 1), as_slices() can view
// without a copy.
template <class Launcher>
void softmax_into(
    const char* op, const Tensor& tensor, const Tensor& output, const SoftmaxDim& at, bool log) {
  if (tensor.numel() == 0) return;
  const Tensor input = converted(op, tensor, dtype_of(output));
  const int64_t count = input.numel() / at.cols;
  if (at.inner == 1) {
    const RowView source = as_rows<Launcher>(op, input, at.dim),
                  to = as_rows<Launcher>(op, output, at.dim);
    launch_with_workspace(
        op, Launcher(input), input,
        SoftmaxForward{source.read(), to.write(), /*workspace=*/nullptr, count, at.cols, log});
    return;
  }
  const SliceView source = as_slices(op, input, at.dim), to = as_slices(op, output, at.dim);
  Launcher(input).launch(
      SpatialSoftmaxForward{source.read(), to.write(), count / at.inner, at.cols, at.inner, log});
}

template <class Launcher>
Tensor softmax_forward(
    const char* op, const Tensor& input, int64_t dim, std::optional<ScalarType> dtype, bool log) {
  const ScalarType output_dtype = softmax_dtype(op, input, dtype);
  const SizesView sizes = input.sizes();
  const SoftmaxDim at = resolve_dim(op, sizes, dim);
  const Tensor output = empty_contiguous(op, input, sizes, output_dtype);
  softmax_into<Launcher>(op, input, output, at, log);
  return output;
}

// Whether softmax_into() can write directly to `output` while it reads `input`.
template <class Launcher>
bool is_writable_in_place(const Tensor& input, const Tensor& output, const SoftmaxDim& at) {
  const bool fits_kernel = at.inner == 1 ? row_spacing<Launcher>(output, at.dim).has_value()
                                         : slice_view(output, at.dim).has_value();
  return fits_kernel && (is_same_memory(input, output) || !may_overlap(input, output));
}

// Writes the result to `output`, by way of a copy if kernels cannot write it there.
template <class Launcher>
void softmax_out(const char* op, const Tensor& input, int64_t dim, Tensor output, bool log) {
  check_given(op, "input", input);
  check_out(op, output, input);
  const SoftmaxDim at = resolve_dim(op, input.sizes(), dim);
  if (is_writable_in_place<Launcher>(input, output, at)) {
    return softmax_into<Launcher>(op, input, output, at, log);
  }
  const Tensor result = softmax_forward<Launcher>(op, input, dim, dtype_of(output), log);
  torch::stable::copy_(output, result);
}

inline SoftmaxDim checked_softmax_backward(
    const char* op, const Tensor& grad_output, const Tensor& output, int64_t dim) {
  check_dtype_of(op, "output", output);
  check_like(op, "grad_output", grad_output, {"output", output});
  return resolve_dim(op, output.sizes(), dim);
}

template <class Launcher>
void softmax_backward_into(
    const char* op, const Tensor& grad_output, const Tensor& output, const Tensor& grad_input,
    const SoftmaxDim& at, bool log) {
  if (output.numel() == 0) return;
  const int64_t count = output.numel() / at.cols;
  if (at.inner == 1) {
    const RowView grad = as_rows<Launcher>(op, grad_output, at.dim),
                  result = as_rows<Launcher>(op, output, at.dim);
    const RowView to = as_rows<Launcher>(op, grad_input, at.dim);
    launch_with_workspace(
        op, Launcher(output), output,
        SoftmaxBackward{
            grad.read(), result.read(), to.write(), /*workspace=*/nullptr, count, at.cols, log});
    return;
  }
  const SliceView grad = as_slices(op, grad_output, at.dim), result = as_slices(op, output, at.dim);
  const SliceView to = as_slices(op, grad_input, at.dim);
  Launcher(output).launch(
      SpatialSoftmaxBackward{
          grad.read(), result.read(), to.write(), count / at.inner, at.cols, at.inner, log});
}

// Allocates the gradient of a softmax's input, in the dtype of the input if kernels convert to it,
// and otherwise in that of the output.
inline Tensor empty_gradient(const char* op, const Tensor& output, ScalarType input) {
  const ScalarType dtype = dtype_of(output);
  return empty_contiguous(
      op, output, output.sizes(), kernels_convert(input, dtype) ? input : dtype);
}

template <class Launcher>
Tensor softmax_backward(
    const char* op, const Tensor& grad_output, const Tensor& output, int64_t dim,
    ScalarType input_dtype, bool log) {
  const SoftmaxDim at = checked_softmax_backward(op, grad_output, output, dim);
  check_dtype(op, "input_dtype", input_dtype);
  const Tensor grad_input = empty_gradient(op, output, input_dtype);
  softmax_backward_into<Launcher>(op, grad_output, output, grad_input, at, log);
  return convert(op, grad_input, input_dtype);
}

// --- statistics ---------------------------------------------------------------------------------

// Swaps dim and the last dimension; returns a view.
inline Tensor with_dim_last(const Tensor& tensor, const SoftmaxDim& at) {
  const int64_t last = tensor.dim() - 1;
  return tensor.dim() == 0 || at.dim == last ? tensor
                                             : torch::stable::transpose(tensor, at.dim, last);
}
// Undoes with_dim_last() by the same swap, and makes the result contiguous, which may copy it.
inline Tensor with_dim_back(const char* op, const Tensor& rows, const SoftmaxDim& at) {
  return as_contiguous(op, with_dim_last(rows, at));
}

// Returns the shape of max and sum: input's, with a size of 1 in `dim`.
inline Sizes softmax_statistics_sizes(const Tensor& input, int64_t dim) {
  Sizes sizes = input.sizes().vec();
  if (!sizes.empty()) sizes[dim] = 1;
  return sizes;
}

template <class Launcher>
std::tuple<Tensor, Tensor> softmax_stats(const Tensor& input, int64_t dim) {
  const char* op = "softmax_stats";
  check_dtype_of(op, "input", input);
  const SoftmaxDim at = resolve_dim(op, input.sizes(), dim);
  FUSEDOPS_CHECK(
      at.cols > 0, op, ": dim ", dim, " of an input of shape ", list_text(input.sizes()),
      " is empty, wanted at least one element to take the maximum of");
  const ScalarType dtype = statistics_dtype(dtype_of(input));
  const Tensor rows = with_dim_last(input, at);
  const Sizes sizes = softmax_statistics_sizes(rows, rows.dim() - 1);
  const Tensor max = empty_contiguous(op, input, sizes, dtype);
  const Tensor sum = empty_contiguous(op, input, sizes, dtype);
  if (input.numel() > 0) {
    const RowView source = rows_of_last_dim<Launcher>(op, rows);
    SoftmaxStatistics args{};
    args.input = source.read();
    args.max = max.mutable_data_ptr();
    args.sum = sum.mutable_data_ptr();
    args.rows = input.numel() / at.cols;
    args.cols = at.cols;
    launch_with_workspace(op, Launcher(input), input, args);
  }
  return {with_dim_back(op, max, at), with_dim_back(op, sum, at)};
}

template <class Launcher>
Tensor softmax_apply(
    const Tensor& input, const Tensor& max, const Tensor& sum, int64_t dim,
    std::optional<ScalarType> dtype) {
  const char* op = "softmax_apply";
  check_dtype_of(op, "input", input);
  const ScalarType wanted = softmax_dtype(op, input, dtype);
  const SoftmaxDim at = resolve_dim(op, input.sizes(), dim);
  const Sizes sizes = softmax_statistics_sizes(input, at.dim);
  check_statistic(op, "max", max, {"input", input}, sizes, "softmax_stats");
  check_statistic(op, "sum", sum, {"input", input}, sizes, "softmax_stats");
  // If kernels cannot write `wanted`, they write the input's dtype, and the result is converted
  // afterwards.
  const bool converts = kernels_convert(dtype_of(input), wanted);
  const Tensor rows = with_dim_last(input, at);
  const Tensor output =
      empty_contiguous(op, input, rows.sizes(), converts ? wanted : dtype_of(input));
  if (input.numel() > 0) {
    const RowView source = rows_of_last_dim<Launcher>(op, rows);
    const Tensor row_max = with_dim_back(op, max, at), row_sum = with_dim_back(op, sum, at);
    SoftmaxApply args{};
    args.input = source.read();
    args.output = rows_of_last_dim<Launcher>(op, output).write();
    args.max = row_max.const_data_ptr();
    args.sum = row_sum.const_data_ptr();
    args.rows = input.numel() / at.cols;
    args.cols = at.cols;
    Launcher(input).launch(args);
  }
  return convert(op, with_dim_back(op, output, at), wanted);
}

// Contains the functions that operators.def names for softmax, or with kLog for log_softmax. They
// are registered for the device of `Launcher`.
template <class Launcher, bool kLog>
struct SoftmaxOps {
  // Error messages name the ops by these names.
  static constexpr const char* kOp = kLog ? "log_softmax" : "softmax";
  static constexpr const char* kInPlace = kLog ? "log_softmax_" : "softmax_";
  static constexpr const char* kBackward = kLog ? "log_softmax_backward" : "softmax_backward";
  static constexpr const char* kBackwardInPlace =
      kLog ? "log_softmax_backward_" : "softmax_backward_";

  static Tensor forward(const Tensor& input, int64_t dim, std::optional<ScalarType> dtype) {
    return softmax_forward<Launcher>(kOp, input, dim, dtype, kLog);
  }
  static void out(const Tensor& input, int64_t dim, Tensor out) {
    softmax_out<Launcher>(kOp, input, dim, out, kLog);
  }
  static void in_place(Tensor input, int64_t dim) {
    check_dtype_of(kInPlace, "input", input);
    check_distinct(kInPlace, "input", input);
    softmax_out<Launcher>(kInPlace, input, dim, input, kLog);
  }
  static Tensor backward(
      const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype) {
    return softmax_backward<Launcher>(kBackward, grad_output, output, dim, input_dtype, kLog);
  }
  static void backward_in_place(Tensor grad_output, const Tensor& output, int64_t dim) {
    const char* op = kBackwardInPlace;
    const SoftmaxDim at = checked_softmax_backward(op, grad_output, output, dim);
    check_distinct(op, "grad_output", grad_output);
    if (is_writable_in_place<Launcher>(output, grad_output, at)) {
      return softmax_backward_into<Launcher>(op, grad_output, output, grad_output, at, kLog);
    }
    const ScalarType dtype = dtype_of(output);
    torch::stable::copy_(
        grad_output, softmax_backward<Launcher>(op, grad_output, output, dim, dtype, kLog));
  }
};

}  // namespace fusedops
