// Chooses the width of vectors and the blocks of a grid, for all families of kernels (softmax, norm
// and so on). This is host code, the same for a GPU and for the emulator.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "args.h"
#include "cuda/block/device.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/plan.h"

namespace fusedops::cuda {

using device::Status;
using device::Stream;

// Says how an array that a kernel reads or writes is aligned. `data` is null for an array that the
// kernel does not use.
struct Access {
  const void* data;
  int64_t strides;  // all strides or-ed, which is as aligned as the least aligned of them
  int64_t item;     // bytes of an element

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
  // An operand with one value for all columns is not read in vectors, and need not be aligned.
  Access(const Operand& operand)
      : data(operand.col_stride == 0 ? nullptr : operand.data),
        strides(0),
        item(element_bytes(operand)) {
    for (const int64_t stride : operand.strides) strides |= stride;
  }

  // Returns whether the array is aligned for vectors of `width` elements, or for the 16-byte words
  // of wider vectors. An array that is not used allows every width.
  bool allows(int32_t width) const {
    const int64_t bytes = std::min<int64_t>(width * item, kMaxVectorBytes);
    const bool aligned = reinterpret_cast<uintptr_t>(data) % bytes == 0;
    return data == nullptr || (aligned && strides * item % bytes == 0);
  }
};

// Returns whether `other` is a dtype that kernels with rows of `dtype` read beside their rows, or
// write: `dtype` itself or, beside 16 bits, float. A kernel chooses between the two at run time
// (with_wider and with_narrower in vec.h).
constexpr bool is_same_or_wider(DType other, DType dtype) {
  return other == dtype || (size_of(dtype) == 2 && other == DType::kFloat32);
}

// Returns the number of elements of the widest vector, of 16 or 4 bytes or one element, whose width
// divides cols and for which every access is aligned. For doubles it is always one element.
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

// Returns pick_width(), but 1 in place of the width of 4-byte vectors.
inline int32_t pick_wide_or_single(
    DType dtype, int64_t cols, std::initializer_list<Access> accesses) {
  const int32_t width = pick_width(dtype, cols, accesses);
  return width * size_of(dtype) == kMaxVectorBytes ? width : 1;
}

// Calls body(first, items) until all of `count` items are launched or a launch fails. body()
// launches a kernel for `items` items, at most `most`, from item `first` on. Returns the status of
// the last launch.
template <class Body>
Status for_each_launch(int64_t count, int64_t most, Body body) {
  for (int64_t first = 0; first < count; first += most) {
    const Status status = body(first, std::min(count - first, most));
    if (status != device::kSuccess) return status;
  }
  return device::kSuccess;
}

// Launches kernel(args, first) for `count` items, `items_per_block` a block. Refuses a null kernel,
// which find_kernel() returns if there is none; in other launches CUDA does so.
template <class Args>
Status launch_items(
    void (*kernel)(Args, int64_t), int64_t count, int32_t items_per_block, dim3 threads,
    const Args& args, Stream stream) {
  if (kernel == nullptr) return device::kInvalidValue;
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

// Launches kernel(args, first_row) with plan.rows rows a block.
template <class Args>
Status launch_rows(
    void (*kernel)(Args, int64_t), const RowPlan& plan, const Args& args, Stream stream) {
  const dim3 threads(plan.threads, plan.rows);
  return launch_items(kernel, args.rows, plan.rows, threads, args, stream);
}

// Returns the width of the widest vectors that all tensors of a stack are aligned for;
// width_of(args) returns that width for one tensor.
template <class Stack, class Args = std::decay_t<decltype(std::declval<const Stack&>()[0])>>
int32_t common_width(const Stack& stack, int32_t (&width_of)(const Args&)) {
  int32_t width = width_of(stack[0]);
  for (int32_t i = 1; i < stack.count; ++i) width = std::min(width, width_of(stack[i]));
  return width;
}

// Launches the tensors of a stack one after the other, until a launch fails.
template <class Stack>
Status launch_each(const Stack& stack, Stream stream) {
  Status status = device::kSuccess;
  for (int32_t i = 0; i < stack.count && status == device::kSuccess; ++i) {
    status = launch(stack[i], stream);
  }
  return status;
}

// Returns the bytes of the workspace of a stack, whose tensors take turns with it: the most that
// one of them needs.
template <class Stack>
int64_t most_workspace_bytes(const Stack& stack) {
  int64_t most = 0;
  for (int32_t i = 0; i < stack.count; ++i) most = std::max(most, workspace_bytes(stack[i]));
  return most;
}

constexpr int64_t accumulator_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// Returns the bytes of the workspace that a plan needs: for each segment of each row one partial
// result of `accumulators` numbers, or 0 if rows are not cut into segments. `plan` is the plan
// without clusters, because rows are cut into segments where a device refuses clusters.
inline int64_t segment_partials_bytes(
    const RowPlan& plan, int64_t rows, int64_t cols, DType dtype, int32_t accumulators) {
  if (plan.scope != Scope::kSegments) return 0;
  return rows * plan_segments(cols).count * accumulators * accumulator_bytes(dtype);
}

// Launches kernel(args, first_row, segments, more...) for `rows` rows from `first_row` on, with a
// block for each segment.
template <class Args, class... More>
Status launch_segment_blocks(
    void (*kernel)(Args, int64_t, Segments, More...), const Args& args, int64_t first_row,
    int64_t rows, Segments segments, Stream stream, More... more) {
  const int64_t most = device::max_grid() / segments.count;
  return for_each_launch(rows, most, [&](int64_t first, int64_t some_rows) {
    return device::launch(
        kernel, some_rows * segments.count, dim3(kSegmentThreads), stream, args, first_row + first,
        segments, more...);
  });
}

// Launches partials(args, first_row, segments) and then apply(args, first_row, segments, more...),
// for some rows at a time. `row_bytes` is what the first kernel reads of a row; from it
// segment_rows() computes how many rows a launch takes. Refuses a null workspace.
template <class Args, class... More>
Status launch_segments(
    void (*partials)(Args, int64_t, Segments), void (*apply)(Args, int64_t, Segments, More...),
    int64_t row_bytes, const Args& args, Segments segments, Stream stream, More... more) {
  if (args.rows > 0 && args.workspace == nullptr) return device::kInvalidValue;
  return for_each_launch(args.rows, segment_rows(row_bytes), [&](int64_t first, int64_t rows) {
    const Status status = launch_segment_blocks(partials, args, first, rows, segments, stream);
    if (status != device::kSuccess) return status;
    return launch_segment_blocks(apply, args, first, rows, segments, stream, more...);
  });
}

}  // namespace fusedops::cuda
