// softmax and log_softmax, forward and backward: tensors in, rows to the backend, tensors out.
#pragma once

#include "ops/tensor.h"

namespace fusedops {

// Where the softmax runs: dimension `dim` of `sizes`, `inner` elements apart.
struct SoftmaxDim {
  int64_t dim;
  int64_t cols, inner;
};

inline SoftmaxDim resolve_dim(const char* op, const Sizes& sizes, int64_t dim) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t bound = rank > 0 ? rank : 1;
  check(
      dim >= -bound && dim < bound, op, ": dim is ", dim, ", wanted a value in [", -bound, ", ",
      bound - 1, "] for an input of shape ", list_text(sizes));
  if (rank == 0) return {0, 1, 1};
  const int64_t wrapped = dim < 0 ? dim + rank : dim;
  return {wrapped, sizes[wrapped], product(sizes, wrapped + 1, rank)};
}

inline bool converts_inside(ScalarType from, ScalarType to) {
  return from == to || (is_16_bit(from) && to == ScalarType::Float);
}

// Dimension `at.dim` moved last and made contiguous. A strided kernel will make this copy
// unnecessary.
inline Tensor moved_last(const Tensor& tensor, const SoftmaxDim& at) {
  return torch::stable::contiguous(torch::stable::transpose(tensor, at.dim, -1));
}

template <class Backend>
Tensor softmax_forward(
    const char* op, const Tensor& given, int64_t dim, std::optional<ScalarType> dtype, bool log) {
  const ScalarType output_dtype = dtype.value_or(given.scalar_type());
  check_dtype(op, dtype ? "dtype" : "input", output_dtype, "convert it, or pass dtype=");
  const Sizes sizes = sizes_of(given);
  const SoftmaxDim at = resolve_dim(op, sizes, dim);
  if (at.inner > 1 && given.numel() > 0) {
    const Tensor last = softmax_forward<Backend>(op, moved_last(given, at), -1, dtype, log);
    return moved_last(last, at);
  }
  check_cols(op, at.cols);
  const Tensor input =
      converts_inside(given.scalar_type(), output_dtype) ? given : convert(given, output_dtype);
  const Tensor output = empty_contiguous(input, sizes, output_dtype);
  if (input.numel() == 0) return output;
  const RowView source = as_rows(input, at.dim);
  Backend(input).launch(
      SoftmaxForward{
          source.read(), RowView{output, at.cols}.write(), input.numel() / at.cols, at.cols, log});
  return output;
}

template <class Backend>
Tensor softmax_backward(
    const char* op, const Tensor& grad_output, const Tensor& output, int64_t dim,
    ScalarType input_dtype, bool log) {
  check_dtype(op, "output", output.scalar_type());
  check_like(op, "grad_output", grad_output, "output", output);
  const Sizes sizes = sizes_of(output);
  const SoftmaxDim at = resolve_dim(op, sizes, dim);
  if (at.inner > 1 && output.numel() > 0) {
    const Tensor last = softmax_backward<Backend>(
        op, moved_last(grad_output, at), moved_last(output, at), -1, input_dtype, log);
    return moved_last(last, at);
  }
  check_cols(op, at.cols);
  const bool inside = converts_inside(input_dtype, output.scalar_type());
  const Tensor grad_input =
      empty_contiguous(output, sizes, inside ? input_dtype : output.scalar_type());
  if (output.numel() > 0) {
    const RowView grad = as_rows(grad_output, at.dim);
    const RowView result = as_rows(output, at.dim);
    Backend(output).launch(
        SoftmaxBackward{
            grad.read(), result.read(), RowView{grad_input, at.cols}.write(),
            output.numel() / at.cols, at.cols, log});
  }
  return convert(grad_input, input_dtype);
}

// The entry points that a backend registers.
template <class Backend>
struct SoftmaxOps {
  static Tensor softmax(const Tensor& input, int64_t dim, std::optional<ScalarType> dtype) {
    return softmax_forward<Backend>("softmax", input, dim, dtype, false);
  }
  static Tensor log_softmax(const Tensor& input, int64_t dim, std::optional<ScalarType> dtype) {
    return softmax_forward<Backend>("log_softmax", input, dim, dtype, true);
  }
  static Tensor softmax_backward(
      const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype) {
    return fusedops::softmax_backward<Backend>(
        "softmax_backward", grad_output, output, dim, input_dtype, false);
  }
  static Tensor log_softmax_backward(
      const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype) {
    return fusedops::softmax_backward<Backend>(
        "log_softmax_backward", grad_output, output, dim, input_dtype, true);
  }
};

}  // namespace fusedops
