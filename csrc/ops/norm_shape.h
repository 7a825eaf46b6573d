// Says which elements of its tensors a norm normalizes together, and how kernels see the tensors.
#pragma once

#include "ops/softmax.h"

namespace fusedops {

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

// Describes an input as [outer, cols, inner]. The `cols` elements of each outer and inner index are
// normalized together: those of the dimensions from `dim` on (inner is 1), or, in a spatial norm,
// those of `dim` alone.
struct NormShape {
  int64_t dim, outer, cols, inner;
  Sizes statistics;           // the input's shape, with normalized dimensions set to 1
  bool is_innermost = false;  // whether is_innermost_dim() holds for the tensors of a spatial norm

  int64_t rows() const { return outer * inner; }

  // Whether kernels see the tensors as rows, because elements are adjacent along `dim`. Otherwise
  // they see them as slices around it.
  bool has_rows() const { return is_innermost || inner == 1; }

  Tensor empty_like(const char* op, const Tensor& input, ScalarType dtype) const {
    const SizesView sizes = input.sizes();
    if (!is_innermost) return empty_contiguous(op, input, sizes, dtype);
    return empty_strided(op, input, sizes, strides_with_innermost(sizes, dim).data(), dtype);
  }

  template <class Launcher>
  RowView rows_of(const char* op, const Tensor& tensor) const {
    if (is_innermost) return {tensor, {cols}};
    return as_rows<Launcher>(op, tensor, dim);
  }
  // Returns the rows of a tensor, or nullopt if there is no tensor.
  template <class Launcher>
  std::optional<RowView> rows_of(const char* op, const std::optional<Tensor>& tensor) const {
    if (!tensor) return std::nullopt;
    return rows_of<Launcher>(op, *tensor);
  }
};

// Checks normalized_shape, and returns how it divides the input.
inline NormShape resolve_norm_shape(
    const char* op, const Like& input, const Sizes& normalized_shape) {
  const SizesView sizes = input.tensor.sizes();
  const size_t rank = sizes.size(), normalized = normalized_shape.size();
  FUSEDOPS_CHECK(normalized > 0, op, ": normalized_shape is empty, wanted at least one dimension");
  const bool matches = normalized <= rank &&
      std::equal(normalized_shape.begin(), normalized_shape.end(), sizes.end() - normalized);
  FUSEDOPS_CHECK(
      matches, op, ": normalized_shape is ", list_text(normalized_shape),
      ", wanted the last dimensions of ", input.name, ", whose shape is ", list_text(sizes));
  const size_t first = rank - normalized;
  NormShape shape{
      static_cast<int64_t>(first), product(sizes, 0, first), product(sizes, first, rank),
      /*inner=*/1, sizes.vec()};
  std::fill(shape.statistics.begin() + first, shape.statistics.end(), 1);
  check_cols(op, shape.cols);
  return shape;
}
// Checks the dimension of a spatial norm, and returns how it divides the input.
inline NormShape resolve_norm_shape(const char* op, const Like& input, int64_t dim) {
  const SizesView sizes = input.tensor.sizes();
  const SoftmaxDim at = resolve_dim(op, sizes, dim);
  return {
      at.dim, product(sizes, 0, at.dim), at.cols, at.inner,
      softmax_statistics_sizes(input.tensor, at.dim)};
}

// Checks that a parameter, if there is one, has the shape `wanted`, input's device and a supported
// dtype. `dim` is the dimension of a spatial norm, or nullopt.
inline void check_norm_parameter(
    const char* op, const char* name, const std::optional<Tensor>& parameter, const Like& input,
    SizesView wanted, std::optional<int64_t> dim = std::nullopt) {
  if (!parameter) return;
  FUSEDOPS_CHECK(
      are_same_sizes(parameter->sizes(), wanted), op, ": ", name, " has shape ",
      list_text(parameter->sizes()), ", wanted ", dim ? "" : "normalized_shape, ",
      list_text(wanted), dim ? ", the size of dim " + std::to_string(*dim) : std::string());
  check_device(op, name, *parameter, input);
  check_dtype_of(op, name, *parameter);
}

}  // namespace fusedops
