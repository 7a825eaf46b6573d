// From run-time facts to a kernel: dtypes and vector width to types and constants, rows to blocks.
// Host code, the same for a GPU and for the emulator.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "fusedops/args.h"
#include "fusedops/cuda/policy.h"
#include "fusedops/device.h"

namespace fusedops::cuda {

using device::Status;
using device::Stream;

template <class T>
struct Type {
  using type = T;
};

template <int kValue>
using Int = std::integral_constant<int, kValue>;

// f(Type<T>{}) for the C++ type of `dtype`.
template <class F>
Status with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(Type<double>{});
    case DType::kFloat32:
      return f(Type<float>{});
    case DType::kFloat16:
      return f(Type<Half>{});
    case DType::kBFloat16:
      return f(Type<BFloat16>{});
  }
  return device::kInvalidValue;
}

// f(Type<First>{}, Type<Second>{}) where both are the same, or first is 16-bit and second float.
template <class F>
Status with_types(DType first, DType second, F f) {
  if (first == second) return with_type(first, [&](auto type) { return f(type, type); });
  if (second != DType::kFloat32) return device::kInvalidValue;
  if (first == DType::kFloat16) return f(Type<Half>{}, Type<float>{});
  if (first == DType::kBFloat16) return f(Type<BFloat16>{}, Type<float>{});
  return device::kInvalidValue;
}

// Vectors of 16 bytes, of 4 bytes (two 16-bit elements), or single elements. With all loads of a
// row in flight at once, 8-byte vectors save too few instructions to be worth a third more kernels.
template <class T, class F>
Status with_width(int32_t width, F f) {
  constexpr int kWidest = kMaxVectorBytes / sizeof(T);
  if (width == kWidest) return f(Int<kWidest>{});
  if constexpr (sizeof(T) == 2) {
    if (width == 2) return f(Int<2>{});
  }
  return f(Int<1>{});
}

// What a kernel reads or writes; a null pointer is no access.
struct Access {
  const void* data;
  int64_t stride;
  DType dtype;

  Access(const ConstRows& rows) : data(rows.data), stride(rows.stride), dtype(rows.dtype) {}
  Access(const Rows& rows) : data(rows.data), stride(rows.stride), dtype(rows.dtype) {}
  Access(const ConstColumns& columns) : data(columns.data), stride(0), dtype(columns.dtype) {}

  bool allows(int32_t width) const {
    const int64_t bytes = std::min<int64_t>(width * size_of(dtype), kMaxVectorBytes);
    const bool aligned = reinterpret_cast<uintptr_t>(data) % bytes == 0;
    return data == nullptr || (aligned && stride * size_of(dtype) % bytes == 0);
  }
};

// The widest vector that divides cols and that every access is aligned for, in elements of `dtype`.
inline int32_t pick_width(DType dtype, int64_t cols, std::initializer_list<Access> accesses) {
  for (const int32_t bytes : {kMaxVectorBytes, 4}) {
    const int32_t width = bytes / static_cast<int32_t>(size_of(dtype));
    const auto allows = [&](const Access& access) { return access.allows(width); };
    if (width > 1 && cols % width == 0 && std::all_of(accesses.begin(), accesses.end(), allows)) {
      return width;
    }
  }
  return 1;
}

// Launches a kernel(args, first_row) that takes plan.rows rows a block, more than once where the
// rows exceed the grid's limit.
template <class Args>
Status launch_rows(
    void (*kernel)(Args, int64_t), const RowPlan& plan, const Args& args, Stream stream) {
  const int64_t most = device::max_grid() * plan.rows;
  Status status = device::kSuccess;
  for (int64_t row = 0; row < args.rows && status == device::kSuccess; row += most) {
    const int64_t blocks = ceil_div(std::min(args.rows - row, most), plan.rows);
    status = device::launch(kernel, blocks, dim3(plan.threads, plan.rows), stream, args, row);
  }
  return status;
}

}  // namespace fusedops::cuda
