// Host side of LayerNorm, StdNorm and RMSNorm: picks kernels for the arguments and launches them.
// The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/cluster.h"
#include "cuda/launch/dispatch.h"
#include "cuda/norm/backward.h"
#include "cuda/norm/forward.h"

namespace fusedops::cuda {

// Whether there are kernels for a weight or bias beside rows of that dtype: it has the same dtype,
// or is float beside 16 bits.
inline bool fits(const ConstColumns& parameter, DType dtype) {
  const bool is_wider = size_of(dtype) == 2 && parameter.dtype == DType::kFloat32;
  return parameter.data == nullptr || parameter.dtype == dtype || is_wider;
}

// The same for a branch, or its gradient, beside rows of that dtype: 16 bits beside float.
template <class AnyRows>
bool fits_branch(const AnyRows& branch, DType dtype) {
  const bool is_narrower = dtype == DType::kFloat32 && size_of(branch.dtype) == 2;
  return branch.data == nullptr || branch.dtype == dtype || is_narrower;
}

// f(width, whether it adds), as types. With a residual there are no kernels for narrow vectors.
template <class T, class F>
Status with_norm_width(bool adds, int32_t width, F f) {
  if (adds) {
    return with_wide_or_single<T>(width, [&](auto width) { return f(width, std::true_type{}); });
  }
  return with_width<T>(width, [&](auto width) { return f(width, std::false_type{}); });
}

inline int32_t width_of(const NormForward& args) {
  const auto pick = args.residual.data == nullptr ? pick_width : pick_wide_or_single;
  return pick(
      args.output.dtype, args.cols,
      {args.input, args.residual, args.output, args.sum, args.weight, args.bias});
}

// The plan without clusters.
inline RowPlan plan_of(const NormForward& args, int32_t width) {
  const bool adds = args.residual.data != nullptr;
  return plan_rows(norm_regimes(adds), args.cols, width, size_of(args.output.dtype));
}

inline RowPlan with_clusters(const NormForward& args, const RowPlan& plan) {
  const bool adds = args.residual.data != nullptr;
  const DType dtype = args.output.dtype;
  const Clusters& narrow = adds ? kNoClusters : kNarrowNormClusters;
  return with_clusters(plan, norm_clusters(size_of(dtype), adds), narrow, args.cols, dtype);
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_forward(const NormForward& args, const RowPlan& plan, Stream stream) {
  if (plan.blocks > 1) return launch_clusters(args, plan, stream);
  if (plan.elements > 0) {
    return with_regime<norm_regimes(kAdd), T, kWidth>(plan, [&](auto vectors, auto threads) {
      const auto kernel = &norm_forward_registers<
          T, kWidth, decltype(vectors)::value, kAdd, decltype(threads)::value>;
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
  const DType dtype = args.output.dtype;
  if (!fits_branch(args.input, dtype)) return device::kInvalidValue;
  if (!fits(args.weight, dtype) || !fits(args.bias, dtype)) return device::kInvalidValue;
  const RowPlan plan = plan_of(args, width_of(args));
  return launch_plan(with_clusters(args, plan), plan, [&](const RowPlan& plan) {
    return with_type(dtype, [&](auto type) {
      using T = TypeOf<decltype(type)>;
      return with_norm_width<T>(args.residual.data, plan.width, [&](auto width, auto add) {
        return launch_norm_forward<T, decltype(width)::value, decltype(add)::value>(
            args, plan, stream);
      });
    });
  });
}

int64_t workspace_bytes(const NormForward& args) {
  const RowPlan plan = plan_of(args, width_of(args));
  return segment_partials_bytes(plan, args.rows, args.cols, args.output.dtype, 3);
}

inline RowPlan plan_of(const NormStack& stack) {
  const auto each_width = [](const NormForward& args) { return width_of(args); };
  return plan_of(stack[0], narrowest(stack, each_width));
}

// One launch for all tensors, where each of them alone would have a block for a row.
Status launch(const NormStack& stack, Stream stream) {
  const NormForward first = stack[0];
  const DType dtype = first.input.dtype;
  if (!fits(first.weight, dtype) || !fits(first.bias, dtype)) return device::kInvalidValue;
  const RowPlan plan = plan_of(stack);
  const int64_t blocks = stack.count * ceil_div(first.rows, plan.rows);
  const bool is_one_launch = has_stack_kernel(dtype, plan.width) && plan.elements > 0 &&
      with_clusters(first, plan).blocks == 1 && blocks <= device::max_grid() &&
      !first.residual.data;
  if (!is_one_launch) return launch_each(stack, stream);
  return with_stack_kernel(dtype, plan.width, [&](auto type, auto width) {
    using T = TypeOf<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    return with_vectors<norm_regimes(false), T, kWidth>(plan, [&](auto vectors) {
      const auto kernel = &norm_stack_registers<T, kWidth, decltype(vectors)::value>;
      return device::launch(kernel, blocks, dim3(plan.threads, plan.rows), stream, stack);
    });
  });
}

int64_t workspace_bytes(const NormStack& stack) { return most_workspace_bytes(stack); }

inline int32_t width_of(const NormBackward& args) {
  const auto pick = adds(args) ? pick_wide_or_single : pick_width;
  return pick(
      args.input.dtype, args.cols,
      {args.grad_output, args.grad_sum, args.input, args.weight, args.grad_input,
       args.grad_branch});
}

inline NormBackwardPlan plan_of(const NormBackward& args, int32_t width, bool has_clusters) {
  const auto bytes = static_cast<int32_t>(size_of(args.input.dtype));
  return plan_norm_backward(adds(args), has_clusters, args.rows, args.cols, width, bytes);
}

inline bool wants_rows(const NormBackward& args) {
  return args.grad_input.data || args.grad_branch.data;
}

inline bool wants_columns(const NormBackward& args) {
  return args.grad_weight.data || args.grad_bias.data;
}

inline int64_t column_partials_bytes(const NormBackward& args, const NormBackwardPlan& plan) {
  if (!wants_columns(args)) return 0;
  return 2 * plan.partitions * args.cols * accumulator_bytes(args.input.dtype);
}

inline int64_t row_partials_bytes(const NormBackward& args, const NormBackwardPlan& plan) {
  if (!wants_rows(args) || plan.scope != NormScope::kSegments) return 0;
  return 2 * args.rows * plan_segments(args.cols).count * accumulator_bytes(args.input.dtype);
}

inline int64_t workspace_bytes(const NormBackward& args, const NormBackwardPlan& plan) {
  return column_partials_bytes(args, plan) + row_partials_bytes(args, plan);
}

// As much as the rows take with clusters or without, should those be refused.
int64_t workspace_bytes(const NormBackward& args) {
  const int32_t width = width_of(args);
  const int64_t without_clusters = workspace_bytes(args, plan_of(args, width, false));
  if (!device::has_clusters()) return without_clusters;
  return std::max(without_clusters, workspace_bytes(args, plan_of(args, width, true)));
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_registers(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  constexpr const Regimes& kRegimes = norm_backward_regimes(kAdd);
  return with_regime<kRegimes, T, kWidth>(plan.row, [&](auto vectors, auto row_threads) {
    const auto kernel = &norm_backward_registers<
        T, kWidth, decltype(vectors)::value, kAdd, decltype(row_threads)::value>;
    const dim3 threads(plan.row.threads, plan.row.rows);
    return device::launch(kernel, plan.partitions, threads, stream, args);
  });
}

// Leaves the sums along `rows` rows from first_row on at args.workspace.
template <class T, int kWidth>
Status launch_norm_backward_row_partials(
    const NormBackward& args, int64_t first_row, int64_t rows, Stream stream) {
  const Segments segments = plan_segments(args.cols);
  const int64_t most = device::max_grid() / segments.count;
  return for_each_launch(rows, most, [&](int64_t first, int64_t some_rows) {
    return device::launch(
        &norm_backward_row_partials<T, kWidth>, some_rows * segments.count, dim3(kSegmentThreads),
        stream, args, first_row + first, segments);
  });
}

// The second kernel of some rows reads from L2 what the first one has read. With sums of columns it
// has to be one launch for all rows: each launch would write partials as long as those rows.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_segments(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  NormBackward of_rows = args;
  of_rows.workspace = static_cast<char*>(args.workspace) + column_partials_bytes(args, plan);
  const RowPartials partials = {of_rows.workspace, plan_segments(args.cols).count};
  const int64_t row_bytes = 2 * args.cols * sizeof(T);
  const int64_t most = wants_columns(args) ? args.rows : segment_rows(row_bytes);
  return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
    Status status = device::kSuccess;
    if (wants_rows(args)) {
      status = launch_norm_backward_row_partials<T, kWidth>(of_rows, first, rows, stream);
    }
    if (status != device::kSuccess) return status;
    NormBackward until = args;
    until.rows = first + rows;
    constexpr const RegimeTable& kTable =
        norm_backward_regimes(kAdd).table(sizeof(T), kIsWide<T, kWidth>);
    constexpr int kVectors = longest_of(kTable).elements / kWidth;
    return device::launch(
        &norm_backward_segments<T, kWidth, kVectors, kAdd>,
        std::min(plan.partitions, rows) * plan.segments.count, dim3(plan.row.threads), stream,
        until, first, plan.segments, partials);
  });
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_backward(const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  switch (plan.scope) {
    case NormScope::kBlock:
      return launch_norm_backward_registers<T, kWidth, kAdd>(args, plan, stream);
    case NormScope::kCluster:
      return launch_clusters(args, plan, stream);
    case NormScope::kSegments:
      if constexpr (kIsLoopWidth<T, kWidth>) {
        return launch_norm_backward_segments<T, kWidth, kAdd>(args, plan, stream);
      }
  }
  return device::kInvalidValue;
}

template <class Acc>
Status launch_norm_backward_finish(const NormBackward& args, int64_t partitions, Stream stream) {
  const auto kernel = &norm_backward_finish<Acc>;
  const int32_t cols = finish_cols(args.cols);
  const dim3 threads(cols, device::kWarpLanes);
  return device::launch(kernel, ceil_div(args.cols, cols), threads, stream, args, partitions);
}

inline Status launch(const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  if (workspace_bytes(args, plan) > 0 && !args.workspace) return device::kInvalidValue;
  return with_type(args.input.dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    Status status = with_norm_width<T>(adds(args), plan.row.width, [&](auto width, auto add) {
      constexpr int kWidth = decltype(width)::value;
      constexpr bool kAdd = decltype(add)::value;
      return launch_norm_backward<T, kWidth, kAdd>(args, plan, stream);
    });
    if (wants_columns(args) && status == device::kSuccess) {
      status = launch_norm_backward_finish<AccumulatorOf<T>>(args, plan.partitions, stream);
    }
    return status;
  });
}

Status launch(const NormBackward& args, Stream stream) {
  if (!fits(args.weight, args.input.dtype)) return device::kInvalidValue;
  if (!fits_branch(args.grad_branch, args.input.dtype)) return device::kInvalidValue;
  const int32_t width = width_of(args);
  const NormBackwardPlan plan = plan_of(args, width, device::has_clusters());
  const NormBackwardPlan without_clusters = plan_of(args, width, false);
  return launch_plan(plan.row, without_clusters.row, [&](const RowPlan& row) {
    return launch(args, row.blocks > 1 ? plan : without_clusters, stream);
  });
}

// The plan of one launch for all tensors.
inline NormBackwardPlan plan_of(const NormStackBackward& stack) {
  const auto each_width = [](const NormBackward& args) { return width_of(args); };
  return plan_of(stack[0], narrowest(stack, each_width), false);
}

int64_t workspace_bytes(const NormStackBackward& stack) {
  return std::max(most_workspace_bytes(stack), workspace_bytes(stack[0], plan_of(stack)));
}

// One launch for all tensors, where fits_norm_stack_backward().
template <class T, int kWidth>
Status launch_norm_stack_backward_registers(
    const NormStackBackward& stack, const NormBackwardPlan& plan, Stream stream) {
  constexpr const Regimes& kRegimes = norm_backward_regimes(false);
  const Status status = with_vectors<kRegimes, T, kWidth>(plan.row, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    if constexpr (fits_norm_stack_backward(kVectors * kWidth, kWidth * sizeof(T))) {
      const auto kernel = &norm_stack_backward_registers<T, kWidth, kVectors>;
      const dim3 threads(plan.row.threads, plan.row.rows);
      return device::launch(kernel, stack.count * plan.partitions, threads, stream, stack);
    }
    return device::kInvalidValue;
  });
  if (!wants_columns(stack[0]) || status != device::kSuccess) return status;
  const auto kernel = &norm_stack_backward_finish<AccumulatorOf<T>>;
  const int32_t cols = finish_cols(stack.each.cols);
  const int64_t blocks = stack.count * ceil_div(stack.each.cols, cols);
  const dim3 threads(cols, device::kWarpLanes);
  return device::launch(kernel, blocks, threads, stream, stack, plan.partitions);
}

Status launch(const NormStackBackward& stack, Stream stream) {
  const NormBackward first = stack[0];
  if (!fits(first.weight, first.input.dtype)) return device::kInvalidValue;
  if (workspace_bytes(stack) > stack.workspace_bytes) return device::kInvalidValue;
  const NormBackwardPlan plan = plan_of(stack);
  const DType dtype = first.input.dtype;
  const auto bytes = plan.row.width * static_cast<int32_t>(size_of(dtype));
  const bool is_one_launch = has_stack_kernel(dtype, plan.row.width) &&
      plan.scope == NormScope::kBlock && !adds(first) &&
      fits_norm_stack_backward(plan.row.elements, bytes);
  if (!is_one_launch) return launch_each(stack, stream);
  return with_stack_kernel(dtype, plan.row.width, [&](auto type, auto width) {
    using T = TypeOf<decltype(type)>;
    return launch_norm_stack_backward_registers<T, decltype(width)::value>(stack, plan, stream);
  });
}

}  // namespace fusedops::cuda
