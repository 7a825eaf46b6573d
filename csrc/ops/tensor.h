// The few things every op does with tensors: check, allocate, see as rows. LibTorch stable ABI
// only.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fusedops/args.h"

namespace fusedops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Sizes = std::vector<int64_t>;

// Raises a plain RuntimeError in Python. The stable ABI's own check would put this file's name and
// line in front of the message.
template <class... Parts>
void check(bool ok, const Parts&... message) {
  if (ok) return;
  std::ostringstream text;
  (text << ... << message);
  throw std::runtime_error(text.str());
}

template <class List>
std::string list_text(const List& values) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < values.size(); ++i) text << (i ? ", " : "") << values[i];
  text << ']';
  return text.str();
}

// As Python prints it, for messages.
inline std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return "torch.float32";
    case ScalarType::Double:
      return "torch.float64";
    case ScalarType::Half:
      return "torch.float16";
    case ScalarType::BFloat16:
      return "torch.bfloat16";
    case ScalarType::Byte:
      return "torch.uint8";
    case ScalarType::Char:
      return "torch.int8";
    case ScalarType::Short:
      return "torch.int16";
    case ScalarType::Int:
      return "torch.int32";
    case ScalarType::Long:
      return "torch.int64";
    case ScalarType::Bool:
      return "torch.bool";
    default:
      return torch::headeronly::toString(dtype);
  }
}

inline std::string device_name(const Tensor& tensor) {
  if (!tensor.is_cuda()) return "cpu";
  return "cuda:" + std::to_string(tensor.get_device_index());
}

inline bool is_supported(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half ||
      dtype == ScalarType::Double;
}

inline bool is_16_bit(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
}

inline DType kernel_dtype(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double:
      return DType::kFloat64;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

inline Sizes sizes_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return Sizes(sizes.begin(), sizes.end());
}

inline int64_t product(const Sizes& sizes, size_t begin, size_t end) {
  int64_t count = 1;
  for (size_t i = begin; i < end; ++i) count *= sizes[i];
  return count;
}

// A new contiguous tensor beside `like`. The C shim saves the microsecond that a call through the
// dispatcher costs.
inline Tensor empty_contiguous(const Tensor& like, const Sizes& sizes, ScalarType dtype) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i] > 1 ? sizes[i] : 1) strides[i] = stride;
  const auto dtype_code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  int32_t device_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype_code, device_type,
      like.get_device_index(), &handle));
  return Tensor(handle);
}

inline Tensor convert(const Tensor& tensor, ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : torch::stable::to(tensor, dtype);
}

// A tensor seen as rows; `tensor` owns the memory.
struct RowView {
  Tensor tensor;
  int64_t stride;

  ConstRows read() const {
    return {tensor.const_data_ptr(), stride, kernel_dtype(tensor.scalar_type())};
  }
  Rows write() const {
    return {tensor.mutable_data_ptr(), stride, kernel_dtype(tensor.scalar_type())};
  }
};

// The stride between rows of dimensions [first, end), or nothing where the rows are not evenly
// spaced or the elements of a row are not adjacent.
inline std::optional<int64_t> row_stride(const Tensor& tensor, int64_t first) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  int64_t cols = 1;
  for (int64_t d = tensor.dim() - 1; d >= first; --d) {
    if (sizes[d] == 1) continue;
    if (strides[d] != cols) return std::nullopt;
    cols *= sizes[d];
  }
  std::optional<int64_t> stride;
  int64_t next = 0;
  for (int64_t d = first - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    if (stride && strides[d] != next) return std::nullopt;
    if (!stride) stride = strides[d];
    next = strides[d] * sizes[d];
  }
  return stride ? stride : cols;
}

// Rows of dimensions [first, end) of `tensor`; copied only where row_stride() finds none.
inline RowView as_rows(const Tensor& tensor, int64_t first) {
  if (const auto stride = row_stride(tensor, first)) return {tensor, *stride};
  Tensor copy = torch::stable::contiguous(tensor);
  const auto stride = row_stride(copy, first);
  return {copy, *stride};
}

inline void check_dtype(
    const char* op, const char* argument, ScalarType dtype, const char* fix = "convert it") {
  check(
      is_supported(dtype), op, ": ", argument, " is ", dtype_name(dtype),
      ", wanted torch.float32, torch.bfloat16, torch.float16 or torch.float64; ", fix);
}

// `given` has the dtype and the shape of `like`.
inline void check_like(
    const char* op, const char* name, const Tensor& given, const char* like_name,
    const Tensor& like) {
  check(
      given.scalar_type() == like.scalar_type() && sizes_of(given) == sizes_of(like), op, ": ",
      name, " is ", dtype_name(given.scalar_type()), " of shape ", list_text(sizes_of(given)),
      ", wanted ", dtype_name(like.scalar_type()), " of shape ", list_text(sizes_of(like)), " as ",
      like_name, " is");
}

inline void check_cols(const char* op, int64_t cols) {
  check(
      cols <= std::numeric_limits<int32_t>::max(), op, ": a row has ", cols,
      " elements; at most 2^31 - 1 are supported");
}

}  // namespace fusedops
