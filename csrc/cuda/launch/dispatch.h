// Dispatch of a launch: dtypes and vector widths become types and constants, and rows become
// blocks. Host code, the same for a GPU and for the emulator.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "args.h"
#include "cuda/block/device.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/plan.h"

namespace fusedops::cuda {

using device::Status;
using device::Stream;

template <class T>
struct Type {
  using type = T;
};

// The type that a parameter of type Type<T> stands for.
template <class Tag>
using TypeOf = typename Tag::type;

template <int kValue>
using Int = std::integral_constant<int, kValue>;

// f(true or false, as a type).
template <class F>
Status with_bool(bool value, F f) {
  return value ? f(std::true_type{}) : f(std::false_type{});
}

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

// Vectors of 16 bytes, or single elements. Doubles, in which gradients are checked, go by single
// elements.
template <class T, class F>
Status with_wide_or_single(int32_t width, F f) {
  constexpr int kWidest = kMaxVectorBytes / sizeof(T);
  if constexpr (sizeof(T) < 8) {
    if (width == kWidest) return f(Int<kWidest>{});
  }
  return f(Int<1>{});
}

// Adds vectors of 4 bytes (two 16-bit elements). 8-byte vectors would save few instructions, as all
// loads of a row are in flight at once, and would cost a third more kernels.
template <class T, class F>
Status with_width(int32_t width, F f) {
  if constexpr (sizeof(T) == 2) {
    if (width == 2) return f(Int<2>{});
  }
  return with_wide_or_single<T>(width, f);
}

// f(Type<T>{}, width) for a stack, where has_stack_kernel().
template <class F>
Status with_stack_kernel(DType dtype, int32_t width, F f) {
  return with_type(dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    if constexpr (sizeof(T) < 8) {
      return with_wide_or_single<T>(width, [&](auto width) { return f(type, width); });
    }
    return device::kInvalidValue;
  });
}

// Other tensors of a stack are launched one by one, so that each has the bits that it has alone.
inline bool has_stack_kernel(DType dtype, int32_t width) {
  const int64_t bytes = width * size_of(dtype);
  return dtype != DType::kFloat64 && (width == 1 || bytes == kMaxVectorBytes);
}

// f(vectors a thread, threads a row that the regime fixes or 0), as types, for a row that stays in
// registers. f is instantiated for the regimes of the table that the plan was made from, and for
// nothing else.
template <const Regimes& kRegimes, class T, int kWidth, int kIndex = 0, class F>
Status with_regime(const RowPlan& plan, F f) {
  if constexpr (kIndex < kMaxRegimes) {
    constexpr const RegimeTable& kTable = kRegimes.table(sizeof(T), kIsWide<T, kWidth>);
    constexpr Regime kRegime = kTable[kIndex];
    if constexpr (kRegime.elements > 0) {
      static_assert(kRegime.elements % kWidth == 0, "a thread holds whole vectors");
      static_assert(max_threads(kRegime, kWidth * sizeof(T)) <= kMaxThreads, "a block holds a row");
      const int32_t fixed = is_fixed(kTable, plan.elements, plan.threads) ? plan.threads : 0;
      if (plan.elements == kRegime.elements && fixed == kRegime.threads) {
        return f(Int<kRegime.elements / kWidth>{}, Int<kRegime.threads>{});
      }
    }
    return with_regime<kRegimes, T, kWidth, kIndex + 1>(plan, f);
  } else {
    return device::kInvalidValue;
  }
}

// f(vectors a thread, as a type), for kernels that take their threads from the launch.
template <const Regimes& kRegimes, class T, int kWidth, class F>
Status with_vectors(const RowPlan& plan, F f) {
  return with_regime<kRegimes, T, kWidth>(plan, [&](auto vectors, auto) { return f(vectors); });
}

// An array that a kernel reads or writes; null where it does neither.
struct Access {
  const void* data;
  int64_t strides;  // or-ed together, so as aligned as the least aligned of them
  int64_t item;     // bytes

  Access(const ConstRows& rows)
      : data(rows.data), strides(rows.spacing.stride), item(size_of(rows.dtype)) {}
  Access(const Rows& rows)
      : data(rows.data), strides(rows.spacing.stride), item(size_of(rows.dtype)) {}
  Access(const ConstColumns& columns)
      : data(columns.data), strides(0), item(size_of(columns.dtype)) {}
  Access(const ConstSlices& slices)
      : data(slices.data),
        strides(slices.outer_stride | slices.dim_stride),
        item(size_of(slices.dtype)) {}
  Access(const Slices& slices)
      : data(slices.data),
        strides(slices.outer_stride | slices.dim_stride),
        item(size_of(slices.dtype)) {}
  // An operand with one value for all columns is not read in vectors.
  Access(const Operand& operand)
      : data(operand.col_stride == 0 ? nullptr : operand.data),
        strides(0),
        item(element_bytes(operand)) {
    for (const int64_t stride : operand.strides) strides |= stride;
  }

  bool allows(int32_t width) const {
    const int64_t bytes = std::min<int64_t>(width * item, kMaxVectorBytes);
    const bool aligned = reinterpret_cast<uintptr_t>(data) % bytes == 0;
    return data == nullptr || (aligned && strides * item % bytes == 0);
  }
};

// The widest vector that divides cols and that every access is aligned for, in elements of `dtype`.
inline int32_t pick_width(DType dtype, int64_t cols, std::initializer_list<Access> accesses) {
  if (dtype == DType::kFloat64) return 1;
  for (const int32_t bytes : {kMaxVectorBytes, 4}) {
    const int32_t width = bytes / static_cast<int32_t>(size_of(dtype));
    const auto allows = [&](const Access& access) { return access.allows(width); };
    if (width > 1 && cols % width == 0 && std::all_of(accesses.begin(), accesses.end(), allows)) {
      return width;
    }
  }
  return 1;
}

// As pick_width(), but with single elements in place of narrow vectors.
inline int32_t pick_wide_or_single(
    DType dtype, int64_t cols, std::initializer_list<Access> accesses) {
  const int32_t width = pick_width(dtype, cols, accesses);
  return width * size_of(dtype) == kMaxVectorBytes ? width : 1;
}

// Calls body(first, items), which launches a kernel for that many of `count` items, until all are
// launched or a launch fails. One launch takes at most `most` items.
template <class Body>
Status for_each_launch(int64_t count, int64_t most, Body body) {
  for (int64_t first = 0; first < count; first += most) {
    const Status status = body(first, std::min(count - first, most));
    if (status != device::kSuccess) return status;
  }
  return device::kSuccess;
}

// Launches kernel(args, first) for `count` items, `items_per_block` a block.
template <class Args>
Status launch_items(
    void (*kernel)(Args, int64_t), int64_t count, int32_t items_per_block, dim3 threads,
    const Args& args, Stream stream) {
  const int64_t most = device::max_grid() * items_per_block;
  return for_each_launch(count, most, [&](int64_t first, int64_t items) {
    const int64_t blocks = ceil_div(items, items_per_block);
    return device::launch(kernel, blocks, threads, stream, args, first);
  });
}

// Launches kernel(args, first_row) with a cluster of plan.blocks blocks for each row.
template <class Args>
Status launch_row_clusters(
    void (*kernel)(Args, int64_t), const RowPlan& plan, const Args& args, Stream stream) {
  const int64_t most = device::max_grid() / plan.blocks;
  return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
    return device::launch_clusters(
        kernel, rows * plan.blocks, plan.blocks, dim3(plan.threads), stream, args, first);
  });
}

// The plan of clusters where the device has them and they hold rows better than one block does;
// `plan` elsewhere.
inline RowPlan with_clusters(
    const RowPlan& plan, const Clusters& wide, const Clusters& narrow, int64_t cols, DType dtype) {
  const auto bytes = static_cast<int32_t>(size_of(dtype));
  return device::has_clusters() ? plan_clusters(plan, wide, narrow, cols, bytes) : plan;
}

// launch(plan) or, where that is one of clusters and they are refused, launch(without_clusters).
template <class F>
Status launch_plan(const RowPlan& plan, const RowPlan& without_clusters, F launch) {
  const Status status = launch(plan);
  const bool is_refused = status != device::kSuccess && status != device::kLaunchFailure;
  return plan.blocks > 1 && is_refused ? launch(without_clusters) : status;
}

// Launches kernel(args, first_row) with plan.rows rows a block.
template <class Args>
Status launch_rows(
    void (*kernel)(Args, int64_t), const RowPlan& plan, const Args& args, Stream stream) {
  const dim3 threads(plan.threads, plan.rows);
  return launch_items(kernel, args.rows, plan.rows, threads, args, stream);
}

// The widest vectors that all tensors of a stack are aligned for; width_of(stack[i]) is one
// tensor's.
template <class Stack, class F>
int32_t narrowest(const Stack& stack, F width_of) {
  int32_t width = width_of(stack[0]);
  for (int32_t i = 1; i < stack.count; ++i) width = std::min(width, width_of(stack[i]));
  return width;
}

// Launches each tensor of a stack by itself.
template <class Stack>
Status launch_each(const Stack& stack, Stream stream) {
  Status status = device::kSuccess;
  for (int32_t i = 0; i < stack.count && status == device::kSuccess; ++i) {
    status = launch(stack[i], stream);
  }
  return status;
}

// The workspace of the tensor that needs most: the tensors of a stack take turns with it.
template <class Stack>
int64_t most_workspace_bytes(const Stack& stack) {
  int64_t most = 0;
  for (int32_t i = 0; i < stack.count; ++i) most = std::max(most, workspace_bytes(stack[i]));
  return most;
}

constexpr int64_t accumulator_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// The workspace of rows in segments, whose partials have that many accumulators each. `plan` is
// the one without clusters, because they may be refused.
inline int64_t segment_partials_bytes(
    const RowPlan& plan, int64_t rows, int64_t cols, DType dtype, int32_t accumulators) {
  if (plan.elements > 0) return 0;
  return rows * plan_segments(cols).count * accumulators * accumulator_bytes(dtype);
}

// Launches partials(args, first_row, segments) and then apply(...), a block a segment. `row_bytes`
// is what each of them reads of a row.
template <class Args>
Status launch_segments(
    void (*partials)(Args, int64_t, Segments), void (*apply)(Args, int64_t, Segments),
    int64_t row_bytes, const Args& args, Stream stream) {
  if (args.rows > 0 && args.workspace == nullptr) return device::kInvalidValue;
  const Segments segments = plan_segments(args.cols);
  const int64_t most = std::min(segment_rows(row_bytes), device::max_grid() / segments.count);
  return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
    const int64_t blocks = rows * segments.count;
    const dim3 threads(kSegmentThreads);
    const Status status = device::launch(partials, blocks, threads, stream, args, first, segments);
    if (status != device::kSuccess) return status;
    return device::launch(apply, blocks, threads, stream, args, first, segments);
  });
}

}  // namespace fusedops::cuda
