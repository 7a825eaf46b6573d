// Does what every op does with tensors: checks them, allocates them, and views them as rows. Uses
// only LibTorch's stable ABI.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "args.h"

namespace fusedops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Sizes = std::vector<int64_t>;
// Views the sizes of a tensor or a Sizes, which must outlive the view. To copy them would take an
// allocation.
using SizesView = torch::headeronly::IntHeaderOnlyArrayRef;

// Raises a plain RuntimeError in Python. The stable ABI's own check would prefix the message with
// this file's name and line.
template <class... Parts>
[[noreturn]] void fail(const Parts&... message) {
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

// Returns the name that Python prints, for messages.
inline std::string dtype_name(ScalarType dtype) {
  static constexpr std::pair<ScalarType, const char*> kNames[] = {
      {ScalarType::Float, "float32"},
      {ScalarType::Double, "float64"},
      {ScalarType::Half, "float16"},
      {ScalarType::BFloat16, "bfloat16"},
      {ScalarType::Byte, "uint8"},
      {ScalarType::Char, "int8"},
      {ScalarType::Short, "int16"},
      {ScalarType::Int, "int32"},
      {ScalarType::Long, "int64"},
      {ScalarType::Bool, "bool"},
      {ScalarType::ComplexHalf, "complex32"},
      {ScalarType::ComplexFloat, "complex64"},
      {ScalarType::ComplexDouble, "complex128"}};
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return std::string("torch.") + name;
  }
  std::string name = torch::headeronly::toString(dtype);
  std::transform(
      name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return "torch." + name;
}

// Returns a tensor's dtype, or Undefined if there is no tensor or if the dtype is newer than the
// stable ABI of this build.
inline ScalarType dtype_of(const Tensor& tensor) {
  if (!tensor.defined()) return ScalarType::Undefined;
  // The stable ABI asks torch for the code of one dtype after the other, and an op asks for its
  // tensors' dtypes several times. The two most frequent dtypes are therefore compared first.
  static const int32_t float32 = aoti_torch_dtype_float32(), bfloat16 = aoti_torch_dtype_bfloat16();
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  if (code == float32) return ScalarType::Float;
  if (code == bfloat16) return ScalarType::BFloat16;
  try {
    return tensor.scalar_type();
  } catch (const std::exception&) {
    return ScalarType::Undefined;
  }
}

inline std::string dtype_text(const Tensor& tensor) {
  if (!tensor.defined()) return "None";
  const ScalarType dtype = dtype_of(tensor);
  return dtype == ScalarType::Undefined ? "of an unknown dtype" : dtype_name(dtype);
}

inline std::string device_name(const Tensor& tensor) {
  if (!tensor.is_cuda()) return "cpu";
  return "cuda:" + std::to_string(tensor.get_device_index());
}

// Fails with a message if `ok` is false. A macro builds the message only then, which matters
// because the text of a shape takes a microsecond.
#define FUSEDOPS_CHECK(ok, ...)   \
  do {                            \
    if (!(ok)) fail(__VA_ARGS__); \
  } while (false)

inline bool is_supported(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half ||
      dtype == ScalarType::Double;
}

inline bool is_16_bit(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
}

// Returns the dtype to which torch promotes two floating-point dtypes.
inline ScalarType promoted(ScalarType a, ScalarType b) {
  if (a == b) return a;
  const bool is_double = a == ScalarType::Double || b == ScalarType::Double;
  return is_double ? ScalarType::Double : ScalarType::Float;
}

// Converts a dtype that is_supported(), or bool, the dtype of a mask. For bool the result has no
// meaning, and kernels do not read it (Operand::is_bool).
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

// Returns the dtype of statistics, such as the mean, for an input of this dtype.
inline ScalarType statistics_dtype(ScalarType input) {
  return input == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// Returns the product of the sizes from index `begin` to before `end`. It can overflow, which is
// defined for unsigned numbers, only if a size outside of this range is 0: for all other tensors
// torch has checked that their elements fit into memory.
inline int64_t product(SizesView sizes, size_t begin, size_t end) {
  uint64_t count = 1;
  for (size_t i = begin; i < end; ++i) count *= static_cast<uint64_t>(sizes[i]);
  return static_cast<int64_t>(count);
}

[[noreturn]] inline void fail_for_memory(
    const char* op, const Tensor& like, SizesView sizes, ScalarType dtype) {
  const auto dtype_code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  auto bytes = static_cast<double>(aoti_torch_dtype_element_size(dtype_code));
  for (const int64_t size : sizes) bytes *= static_cast<double>(size);
  fail(
      op, ": no memory is left on ", device_name(like), " for a ", dtype_name(dtype), " of shape ",
      list_text(sizes), ", ", bytes, " bytes");
}

// Whether int64 can hold the number of bytes of a tensor whose elements have at most 8 bytes.
inline bool is_addressable(SizesView sizes) {
  int64_t bytes = sizeof(double);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  return std::none_of(sizes.begin(), sizes.end(), [&](int64_t size) {
    return __builtin_mul_overflow(bytes, size, &bytes);
  });
}

// Allocates a tensor on the device of `like`. The C shim saves the microsecond of a call through
// the dispatcher.
inline Tensor empty_strided(
    const char* op, const Tensor& like, SizesView sizes, const int64_t* strides, ScalarType dtype) {
  const auto dtype_code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  int32_t device_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle handle;
  const bool made = is_addressable(sizes) &&
      aoti_torch_empty_strided(
          static_cast<int64_t>(sizes.size()), sizes.data(), strides, dtype_code, device_type,
          like.get_device_index(), &handle) == TORCH_SUCCESS;
  if (!made) fail_for_memory(op, like, sizes, dtype);
  return Tensor(handle);
}

inline Tensor empty_contiguous(
    const char* op, const Tensor& like, SizesView sizes, ScalarType dtype) {
  std::array<int64_t, 8> few;  // spares tensors of up to 8 dimensions an allocation
  Sizes many(sizes.size() > few.size() ? sizes.size() : 0);
  int64_t* const strides = many.empty() ? few.data() : many.data();
  uint64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i] > 1 ? sizes[i] : 1) strides[i] = stride;
  return empty_strided(op, like, sizes, strides, dtype);
}

// Returns `make()`, a copy of `tensor` as `dtype`. If it throws, that is reported as a lack of
// memory, the only reason for which such a copy fails.
template <class Make>
Tensor copied(const char* op, const Tensor& tensor, ScalarType dtype, Make make) {
  try {
    return make();
  } catch (const std::exception&) {
    fail_for_memory(op, tensor, tensor.sizes(), dtype);
  }
}

inline Tensor convert(const char* op, const Tensor& tensor, ScalarType dtype) {
  if (dtype_of(tensor) == dtype) return tensor;
  return copied(op, tensor, dtype, [&] { return torch::stable::to(tensor, dtype); });
}

// Returns a contiguous copy, or, if the tensor is contiguous, the tensor itself: without the
// microsecond that a call through the dispatcher takes.
inline Tensor as_contiguous(const char* op, const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  return copied(op, tensor, dtype_of(tensor), [&] { return torch::stable::contiguous(tensor); });
}

inline bool are_same_sizes(SizesView a, SizesView b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
inline bool have_same_sizes(const Tensor& a, const Tensor& b) {
  return are_same_sizes(a.sizes(), b.sizes());
}

// Calls an operator of torch that returns one tensor, and returns this tensor, which the operator
// puts at the start of the stack.
template <class... Args>
Tensor call_aten(const char* name, const char* overload, const Args&... args) {
  StableIValue stack[] = {torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Returns a view of the tensor with `sizes`, in which dimensions of size 1 are repeated.
inline Tensor expand(const Tensor& tensor, SizesView sizes) {
  return call_aten("aten::expand", "", tensor, sizes, /*implicit=*/false);  // vmap alone sets it
}

// Returns the sizes of a tensor without its last dimension, whose elements form a row.
inline SizesView row_sizes(const Tensor& input) {
  const SizesView sizes = input.sizes();
  return {sizes.data(), sizes.size() - 1};
}

// Holds the addresses of the bytes from a tensor's first element to its last.
struct Extent {
  uintptr_t begin, end;

  explicit Extent(const Tensor& tensor) {
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d)
      last += (tensor.sizes()[d] - 1) * tensor.strides()[d];
    begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    end = begin + (tensor.numel() > 0 ? (last + 1) * tensor.element_size() : 0);
  }
};

inline bool may_overlap(const Tensor& a, const Tensor& b) {
  const Extent first(a), second(b);
  return first.begin < second.end && second.begin < first.end;
}

// Whether two tensors of one shape have all their elements at the same addresses.
inline bool is_same_memory(const Tensor& a, const Tensor& b) {
  if (a.const_data_ptr() != b.const_data_ptr() || dtype_of(a) != dtype_of(b)) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.sizes()[d] > 1 && a.strides()[d] != b.strides()[d]) return false;
  }
  return true;
}

// Whether it is certain that no two elements share memory: ordered by stride, each dimension steps
// past all elements of those before it. The answer is false also for a tensor whose dimensions
// interleave without sharing memory.
inline bool is_distinct(const Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // pairs of a stride and a size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.sizes()[d] > 1) dims.emplace_back(tensor.strides()[d], tensor.sizes()[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t next = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < next) return false;
    next = stride * (size - 1) + next;
  }
  return true;
}

// Describes a tensor as rows. `tensor` owns the memory.
struct RowView {
  Tensor tensor;
  RowSpacing spacing;

  ConstRows read() const {
    return {tensor.const_data_ptr(), spacing, kernel_dtype(dtype_of(tensor))};
  }
  Rows write() const {
    return {tensor.mutable_data_ptr(), spacing, kernel_dtype(dtype_of(tensor))};
  }
};

// Holds a tensor's sizes and strides, read once because each access is several calls into torch.
struct Layout {
  SizesView sizes, strides;

  explicit Layout(const Tensor& tensor) : sizes(tensor.sizes()), strides(tensor.strides()) {}
};

// Finds as many dimensions before `end` as are evenly spaced together: dimensions `first` to before
// `end`, whose indices stand for `count` places in memory at distance `stride`.
struct EvenRun {
  int64_t first, count = 1, stride = 0;

  EvenRun(const Layout& layout, int64_t end) : first(end) {
    for (; first > 0; --first) {
      const int64_t size = layout.sizes[first - 1], step = layout.strides[first - 1];
      if (size == 1) continue;
      if (count > 1 && step != stride * count) return;
      if (count == 1) stride = step;
      count *= size;
    }
  }
};

// Whether the elements of the dimensions from `first` on are adjacent and in order.
inline bool is_adjacent(const Layout& layout, int64_t first) {
  int64_t count = 1;
  for (int64_t d = static_cast<int64_t>(layout.sizes.size()) - 1; d >= first; --d) {
    if (layout.sizes[d] == 1) continue;
    if (layout.strides[d] != count) return false;
    count *= layout.sizes[d];
  }
  return true;
}

// Returns the spacing of the rows that the dimensions from `first` on form. Returns nullopt if
// their elements are not adjacent, or if the rows are neither evenly spaced nor in runs that the
// launcher reads.
template <class Launcher>
std::optional<RowSpacing> row_spacing(const Tensor& tensor, int64_t first) {
  const Layout layout(tensor);
  if (!is_adjacent(layout, first)) return std::nullopt;
  const EvenRun rows(layout, first);
  if (rows.first == 0) return RowSpacing{rows.stride};
  if (!Launcher::kReadsRuns) return std::nullopt;
  const EvenRun runs(layout, rows.first);
  if (runs.first > 0 || rows.count * runs.count >= RowSpacing::kMaxRowsInRuns) {
    return std::nullopt;
  }
  return RowSpacing::with_runs(rows.stride, rows.count, runs.stride);
}

// Views `tensor` as rows of the dimensions from `first` on. It is copied only if row_spacing()
// returns nullopt.
template <class Launcher>
RowView as_rows(const char* op, const Tensor& tensor, int64_t first) {
  if (const auto spacing = row_spacing<Launcher>(tensor, first)) return {tensor, *spacing};
  const Tensor copy = as_contiguous(op, tensor);
  return {copy, *row_spacing<Launcher>(copy, first)};
}

// Views `tensor` as rows of the last dimension; a scalar is a row of one element.
template <class Launcher>
RowView rows_of_last_dim(const char* op, const Tensor& tensor) {
  return as_rows<Launcher>(op, tensor, tensor.dim() > 0 ? tensor.dim() - 1 : 0);
}

// Describes a tensor as [outer, dim_size, inner], where dim_size is the size of a dimension.
struct SliceView {
  Tensor tensor;
  int64_t outer_stride, dim_stride;

  ConstSlices read() const {
    return {tensor.const_data_ptr(), outer_stride, dim_stride, kernel_dtype(dtype_of(tensor))};
  }
  Slices write() const {
    return {tensor.mutable_data_ptr(), outer_stride, dim_stride, kernel_dtype(dtype_of(tensor))};
  }
};

// Views a tensor as slices around `dim`. Returns nullopt if its inner elements are not adjacent, or
// its outer indices not evenly spaced.
inline std::optional<SliceView> slice_view(const Tensor& tensor, int64_t dim) {
  const Layout layout(tensor);
  const EvenRun outer(layout, dim);
  if (outer.first > 0 || !is_adjacent(layout, dim + 1)) return std::nullopt;
  return SliceView{tensor, outer.stride, layout.strides[dim]};
}

inline SliceView as_slices(const char* op, const Tensor& tensor, int64_t dim) {
  if (const auto view = slice_view(tensor, dim)) return *view;
  return *slice_view(as_contiguous(op, tensor), dim);
}

// Launches with a workspace of the size that the launcher asks for.
template <class Args, class Launcher>
void launch_with_workspace(
    const char* op, const Launcher& launcher, const Tensor& like, Args args) {
  const int64_t bytes = launcher.workspace_bytes(args);
  // An allocation would take half a microsecond even if it is of no bytes.
  if (bytes == 0) return launcher.launch(args);
  const Tensor workspace = empty_contiguous(op, like, {bytes}, ScalarType::Byte);
  args.workspace = workspace.mutable_data_ptr();
  launcher.launch(args);
}

// --- checks -------------------------------------------------------------------------------------
//
// Every argument is checked against the others before memory is allocated or touched. The messages,
// and the order of the checks, are those of fusedops/ops/checks.py.

[[noreturn]] inline void fail_for_dtype(
    const char* op, const char* argument, const std::string& value, const char* fix) {
  fail(
      op, ": ", argument, " is ", value,
      ", wanted torch.float32, torch.bfloat16, torch.float16 or torch.float64; ", fix);
}

inline void check_dtype(
    const char* op, const char* argument, ScalarType dtype, const char* fix = "convert it") {
  if (!is_supported(dtype)) fail_for_dtype(op, argument, dtype_name(dtype), fix);
}

// Refuses a tensor whose storage has been freed, as FSDP and .untyped_storage().resize_(0) do. Its
// address is null, which kernels take for a tensor that is absent.
inline void check_memory(const char* op, const char* argument, const Tensor& tensor) {
  int64_t bytes = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &bytes));
  FUSEDOPS_CHECK(
      bytes > 0 || tensor.numel() == 0, op, ": the storage of ", argument,
      " has been freed: it has 0 bytes, wanted those of ", tensor.numel(),
      " elements; restore it before the call");
}

inline void check_dtype_of(
    const char* op, const char* argument, const Tensor& tensor, const char* fix = "convert it") {
  if (!is_supported(dtype_of(tensor))) fail_for_dtype(op, argument, dtype_text(tensor), fix);
  check_memory(op, argument, tensor);
}

// Refuses None, which the dispatcher accepts for a tensor if another argument is a tensor, and a
// tensor without memory.
inline void check_given(const char* op, const char* argument, const Tensor& tensor) {
  FUSEDOPS_CHECK(tensor.defined(), op, ": ", argument, " is None, wanted a tensor");
  check_memory(op, argument, tensor);
}

// Refuses rows that are longer than kernels support.
inline void check_cols(const char* op, int64_t cols) {
  FUSEDOPS_CHECK(
      cols <= std::numeric_limits<int32_t>::max(), op, ": a row has ", cols,
      " elements; at most 2^31 - 1 are supported");
}

// Refuses a negative eps, and NaN.
inline void check_eps(const char* op, double eps) {
  FUSEDOPS_CHECK(eps >= 0, op, ": eps is ", eps, ", wanted a value >= 0");
}

// Refuses a number that is infinite or NaN in `dtype`, float32 or float64.
inline void check_finite(const char* op, const char* name, double value, ScalarType dtype) {
  const double most = dtype == ScalarType::Double ? std::numeric_limits<double>::max()
                                                  : std::numeric_limits<float>::max();
  FUSEDOPS_CHECK(
      std::abs(value) <= most, op, ": ", name, " is ", value, ", wanted a finite number of ",
      dtype_name(dtype));
}

// Refuses a cap that is not a normal number of the compute type. Its reciprocal, by which scores
// are multiplied, must be one too.
inline void check_softcap(const char* op, std::optional<double> softcap, ScalarType computed) {
  if (!softcap) return;
  const double least = computed == ScalarType::Double ? std::numeric_limits<double>::min()
                                                      : std::numeric_limits<float>::min();
  FUSEDOPS_CHECK(
      *softcap >= least && *softcap <= 1 / least, op, ": softcap is ", *softcap,
      ", wanted a finite number above 0, for ", dtype_name(computed), " from ", least, " to ",
      1 / least, "; leave it out for no cap");
}

inline void check_output_mask(const char* op, const std::vector<bool>& mask, size_t gradients) {
  FUSEDOPS_CHECK(
      mask.size() == gradients, op, ": output_mask has ", mask.size(), " entries, wanted ",
      gradients, ", one for each gradient");
}

// Whether two tensors are on the same device. Compares the devices' types as the C shim numbers
// them, and their indices: Tensor::device() would ask torch for the number of one type after the
// other.
inline bool is_on_one_device(const Tensor& tensor, const Tensor& like) {
  int32_t type = 0, type_of_like = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &type_of_like));
  return type == type_of_like && tensor.get_device_index() == like.get_device_index();
}

// Names the argument with which others are compared.
struct Like {
  const char* name;
  const Tensor& tensor;
};

// Checks that `tensor` is on the device of `like`.
inline void check_device(const char* op, const char* name, const Tensor& tensor, const Like& like) {
  FUSEDOPS_CHECK(
      is_on_one_device(tensor, like.tensor), op, ": ", name, " is on ", device_name(tensor),
      ", wanted ", device_name(like.tensor), " as ", like.name, " is; move it with .to(", like.name,
      ".device)");
}

// Checks that `tensor` has this dtype and shape, on the device of `like`. The message ends with
// `because`, the reason for the dtype and shape.
template <class... Because>
void check_tensor(
    const char* op, const char* name, const Tensor& tensor, ScalarType dtype, SizesView sizes,
    const Like& like, const Because&... because) {
  check_given(op, name, tensor);
  FUSEDOPS_CHECK(
      dtype_of(tensor) == dtype && are_same_sizes(tensor.sizes(), sizes), op, ": ", name, " is ",
      dtype_text(tensor), " of shape ", list_text(tensor.sizes()), ", wanted ", dtype_name(dtype),
      " of shape ", list_text(sizes), because...);
  check_device(op, name, tensor, like);
}

// Checks that `tensor` has the dtype, shape and device of `like`.
inline void check_like(const char* op, const char* name, const Tensor& tensor, const Like& like) {
  check_tensor(
      op, name, tensor, dtype_of(like.tensor), like.tensor.sizes(), like, " as ", like.name, " is");
}

// Checks that `tensor` has the shape and device of `like`, and any dtype that kernels read.
inline void check_term(const char* op, const char* name, const Tensor& tensor, const Like& like) {
  check_dtype_of(op, name, tensor);
  FUSEDOPS_CHECK(
      have_same_sizes(tensor, like.tensor), op, ": ", name, " has shape ",
      list_text(tensor.sizes()), ", wanted ", like.name, "'s, ", list_text(like.tensor.sizes()),
      "; expand one of them with .expand()");
  check_device(op, name, tensor, like);
}

// Checks that `tensor` has `sizes`, the dtype of the statistics of `like`, and its device. `source`
// names the op that returns such a tensor.
inline void check_statistic(
    const char* op, const char* name, const Tensor& tensor, const Like& like, SizesView sizes,
    const char* source = "the forward op") {
  check_tensor(
      op, name, tensor, statistics_dtype(dtype_of(like.tensor)), sizes, like, " as ", source,
      " returns it");
}

// Refuses a tensor that is written if two of its elements share memory (is_distinct()).
inline void check_distinct(const char* op, const char* name, const Tensor& written) {
  FUSEDOPS_CHECK(
      written.numel() == 0 || is_distinct(written), op, ": elements of ", name,
      " share memory (it is expanded or overlaps itself); wanted one place for each element, as "
      ".clone() makes it");
}

// Checks that `out` can hold a result of input's shape, in out's own dtype.
inline void check_out(const char* op, const Tensor& out, const Tensor& input) {
  check_dtype_of(op, "out", out);
  FUSEDOPS_CHECK(
      have_same_sizes(out, input), op, ": out has shape ", list_text(out.sizes()),
      ", wanted input's, ", list_text(input.sizes()), "; make it with torch.empty_like(input)");
  check_device(op, "out", out, {"input", input});
  check_distinct(op, "out", out);
}

}  // namespace fusedops
