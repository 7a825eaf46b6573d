// Host side of LayerNorm, StdNorm and RMSNorm: picks kernels for the arguments and launches them.
// The emulator compiles this file too, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/launch_dispatch.h"
#include "fusedops/cuda/norm_backward.h"
#include "fusedops/cuda/norm_forward.h"

namespace fusedops::cuda {

// Whether there are kernels for a weight or bias beside rows of that dtype: it has the same dtype,
// or is float beside 16 bits.
inline bool fits(const ConstColumns& parameter, DType dtype) {
  const bool is_wider = size_of(dtype) == 2 && parameter.dtype == DType::kFloat32;
  return parameter.data == nullptr || parameter.dtype == dtype || is_wider;
}

inline int32_t width_of(const NormForward& args) {
  return pick_width(
      args.input.dtype, args.cols,
      {args.input, args.residual, args.output, args.sum, args.weight, args.bias});
}

inline RowPlan plan_of(const NormForward& args, int32_t width) {
  const bool adds = args.residual.data != nullptr;
  const auto bytes = static_cast<int32_t>(size_of(args.input.dtype));
  const RowPlan plan = plan_rows(norm_regimes(adds), args.cols, width, bytes);
  if (!device::has_clusters()) return plan;
  return plan_clusters(plan, norm_clusters(bytes, adds), args.cols, bytes);
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_forward(const NormForward& args, const RowPlan& plan, Stream stream) {
  if constexpr (kFitsClusters<T, kWidth>) {
    if (plan.blocks > 1) {
      constexpr int kElements = norm_clusters(sizeof(T), kAdd).elements;
      const auto kernel = &norm_forward_cluster<T, kWidth, kElements / kWidth, kAdd>;
      return launch_row_clusters(kernel, plan, args, stream);
    }
  }
  if (plan.elements > 0) {
    return with_vectors<norm_regimes(kAdd), T, kWidth>(plan, [&](auto vectors) {
      const auto kernel = &norm_forward_registers<T, kWidth, decltype(vectors)::value, kAdd>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  if constexpr (kIsLoopWidth<T, kWidth>) {
    return launch_segments(
        &norm_forward_partials<T, kWidth, kAdd>, &norm_forward_apply<T, kWidth, kAdd>,
        (1 + kAdd) * args.cols * sizeof(T), args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const NormForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (!fits(args.weight, dtype) || !fits(args.bias, dtype)) return device::kInvalidValue;
  const RowPlan plan = plan_of(args, width_of(args));
  return with_type(dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    return with_width<T>(plan.width, [&](auto width) {
      return with_bool(args.residual.data, [&](auto add) {
        return launch_norm_forward<T, decltype(width)::value, decltype(add)::value>(
            args, plan, stream);
      });
    });
  });
}

int64_t workspace_bytes(const NormForward& args) {
  const RowPlan plan = plan_of(args, width_of(args));
  return segment_partials_bytes(plan, args.rows, args.cols, args.input.dtype, 3);
}

inline RowPlan plan_of(const NormStack& stack) {
  const auto each_width = [](const NormForward& args) { return width_of(args); };
  return plan_of(stack[0], narrowest(stack, each_width));
}

// One launch for all tensors, where a block holds a row of them.
Status launch(const NormStack& stack, Stream stream) {
  const NormForward first = stack[0];
  const DType dtype = first.input.dtype;
  if (!fits(first.weight, dtype) || !fits(first.bias, dtype)) return device::kInvalidValue;
  const RowPlan plan = plan_of(stack);
  const int64_t blocks = stack.count * ceil_div(first.rows, plan.rows);
  const bool is_one_launch =
      plan.elements > 0 && plan.blocks == 1 && blocks <= device::max_grid() && !first.residual.data;
  if (!is_one_launch) return launch_each(stack, stream);
  return with_type(dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    return with_width<T>(plan.width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      return with_vectors<norm_regimes(false), T, kWidth>(plan, [&](auto vectors) {
        const auto kernel = &norm_stack_registers<T, kWidth, decltype(vectors)::value>;
        return device::launch(kernel, blocks, dim3(plan.threads, plan.rows), stream, stack);
      });
    });
  });
}

int64_t workspace_bytes(const NormStack& stack) { return most_workspace_bytes(stack); }

inline bool adds(const NormBackward& args) { return args.grad_sum.data || args.grad_branch.data; }

inline int32_t width_of(const NormBackward& args) {
  return pick_width(
      args.input.dtype, args.cols,
      {args.grad_output, args.grad_sum, args.input, args.weight, args.grad_input,
       args.grad_branch});
}

inline NormBackwardPlan plan_of(const NormBackward& args, int32_t width) {
  const Regimes& regimes = norm_backward_regimes(adds(args));
  return plan_norm_backward(regimes, args.rows, args.cols, width, size_of(args.input.dtype));
}

inline bool wants_rows(const NormBackward& args) {
  return args.grad_input.data || args.grad_branch.data;
}

inline bool wants_columns(const NormBackward& args) {
  return args.grad_weight.data || args.grad_bias.data;
}

// The plan of a row for the kernel of long rows.
inline RowPlan long_rows(const NormBackward& args, const NormBackwardPlan& plan) {
  if (!device::has_clusters()) return plan.row;
  const auto bytes = static_cast<int32_t>(size_of(args.input.dtype));
  return plan_clusters(plan.row, kNormBackwardClusters, args.cols, bytes);
}

// The partials of columns overwrite those of rows.
inline int64_t workspace_bytes(const NormBackward& args, const NormBackwardPlan& plan) {
  const DType dtype = args.input.dtype;
  const int64_t of_rows =
      segment_partials_bytes(long_rows(args, plan), args.rows, args.cols, dtype, 2);
  const int64_t of_columns = 2 * plan.partitions * args.cols * accumulator_bytes(dtype);
  return std::max(wants_rows(args) ? of_rows : 0, wants_columns(args) ? of_columns : 0);
}

int64_t workspace_bytes(const NormBackward& args) {
  return workspace_bytes(args, plan_of(args, width_of(args)));
}

// One kernel for the gradients of rows and the partials of columns.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_registers(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  return with_vectors<norm_backward_regimes(kAdd), T, kWidth>(plan.row, [&](auto vectors) {
    const auto kernel = &norm_backward_registers<T, kWidth, decltype(vectors)::value, kAdd>;
    return device::launch(
        kernel, plan.partitions, dim3(plan.row.threads, plan.row.rows), stream, args);
  });
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_rows(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  if constexpr (kFitsClusters<T, kWidth>) {
    const RowPlan row = long_rows(args, plan);
    if (row.blocks > 1) {
      constexpr int kVectors = kNormBackwardClusters.elements / kWidth;
      const auto kernel = &norm_backward_rows_cluster<T, kWidth, kVectors, kAdd>;
      return launch_row_clusters(kernel, row, args, stream);
    }
  }
  return launch_segments(
      &norm_backward_row_partials<T, kWidth>, &norm_backward_rows<T, kWidth, kAdd>,
      2 * args.cols * sizeof(T), args, stream);
}

// Separate kernels for the two, for rows that no block holds.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_long(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  Status status = device::kInvalidValue;
  if constexpr (kIsLoopWidth<T, kWidth>) {
    status = device::kSuccess;
    if (wants_rows(args)) status = launch_norm_backward_rows<T, kWidth, kAdd>(args, plan, stream);
    if (wants_columns(args) && status == device::kSuccess) {
      const auto kernel = &norm_backward_column_partials<T, kWidth>;
      status = device::launch(
          kernel, plan.partitions * plan.column_blocks, dim3(kColumnThreads), stream, args,
          plan.partitions);
    }
  }
  return status;
}

template <class Acc>
Status launch_norm_backward_finish(const NormBackward& args, int64_t partitions, Stream stream) {
  const auto kernel = &norm_backward_finish<Acc>;
  return device::launch(kernel, ceil_div(args.cols, 32), dim3(32, 32), stream, args, partitions);
}

Status launch(const NormBackward& args, Stream stream) {
  if (!fits(args.weight, args.input.dtype)) return device::kInvalidValue;
  const NormBackwardPlan plan = plan_of(args, width_of(args));
  return with_type(args.input.dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    Status status = with_width<T>(plan.row.width, [&](auto width) {
      return with_bool(adds(args), [&](auto add) {
        constexpr int kWidth = decltype(width)::value;
        constexpr bool kAdd = decltype(add)::value;
        return plan.row.elements > 0
            ? launch_norm_backward_registers<T, kWidth, kAdd>(args, plan, stream)
            : launch_norm_backward_long<T, kWidth, kAdd>(args, plan, stream);
      });
    });
    if (wants_columns(args) && status == device::kSuccess) {
      status = launch_norm_backward_finish<AccumulatorOf<T>>(args, plan.partitions, stream);
    }
    return status;
  });
}

inline NormBackwardPlan plan_of(const NormStackBackward& stack) {
  const auto each_width = [](const NormBackward& args) { return width_of(args); };
  return plan_of(stack[0], narrowest(stack, each_width));
}

int64_t workspace_bytes(const NormStackBackward& stack) {
  return std::max(most_workspace_bytes(stack), workspace_bytes(stack[0], plan_of(stack)));
}

// One launch for all tensors, where rows stay in registers.
template <class T>
Status launch_norm_stack_backward(
    const NormStackBackward& stack, const NormBackwardPlan& plan, Stream stream) {
  const Status status = with_width<T>(plan.row.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    return with_vectors<norm_backward_regimes(false), T, kWidth>(plan.row, [&](auto vectors) {
      const auto kernel = &norm_stack_backward_registers<T, kWidth, decltype(vectors)::value>;
      const dim3 threads(plan.row.threads, plan.row.rows);
      return device::launch(kernel, stack.count * plan.partitions, threads, stream, stack);
    });
  });
  if (!wants_columns(stack[0]) || status != device::kSuccess) return status;
  const auto kernel = &norm_stack_backward_finish<AccumulatorOf<T>>;
  const int64_t blocks = stack.count * ceil_div(stack.each.cols, 32);
  return device::launch(kernel, blocks, dim3(32, 32), stream, stack, plan.partitions);
}

Status launch(const NormStackBackward& stack, Stream stream) {
  const NormBackward first = stack[0];
  if (!fits(first.weight, first.input.dtype)) return device::kInvalidValue;
  if (workspace_bytes(stack) > stack.workspace_bytes) return device::kInvalidValue;
  const NormBackwardPlan plan = plan_of(stack);
  if (plan.row.elements == 0 || adds(first)) return launch_each(stack, stream);
  return with_type(first.input.dtype, [&](auto type) {
    return launch_norm_stack_backward<TypeOf<decltype(type)>>(stack, plan, stream);
  });
}

}  // namespace fusedops::cuda
