// Host side of softmax: picks a kernel for the arguments and launches it. The emulator compiles
// this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/cluster.h"
#include "cuda/launch/dispatch.h"
#include "cuda/softmax/rows.h"
#include "cuda/softmax/statistics.h"

namespace fusedops::cuda {

// Floats from 16 bits have no kernels for narrow vectors.
inline int32_t width_of(const SoftmaxForward& args) {
  const auto pick = args.input.dtype == args.output.dtype ? pick_width : pick_wide_or_single;
  return pick(args.input.dtype, args.cols, {args.input, args.output});
}

inline int32_t width_of(const SoftmaxBackward& args) {
  return pick_width(args.output.dtype, args.cols, {args.grad_output, args.output, args.grad_input});
}

// Plans without clusters.
inline RowPlan plan_of(const SoftmaxForward& args, int32_t width) {
  return plan_rows(kSoftmaxRegimes, args.cols, width, size_of(args.input.dtype));
}

inline RowPlan plan_of(const SoftmaxBackward& args) {
  const auto bytes = static_cast<int32_t>(size_of(args.output.dtype));
  return plan_rows(kSoftmaxBackwardRegimes, args.cols, width_of(args), bytes);
}

inline RowPlan with_clusters(const SoftmaxForward& args, const RowPlan& plan) {
  const DType dtype = args.input.dtype;
  return with_clusters(plan, softmax_clusters(size_of(dtype)), kNarrowClusters, args.cols, dtype);
}

inline RowPlan with_clusters(const SoftmaxBackward& args, const RowPlan& plan) {
  return with_clusters(
      plan, kSoftmaxBackwardClusters, kNarrowClusters, args.cols, args.output.dtype);
}

// f(Type<In>{}, Type<Out>{}, width).
template <class F>
Status with_kernel(const SoftmaxForward& args, const RowPlan& plan, F f) {
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    const auto launch = [&](auto width) { return f(in, out, width); };
    if constexpr (std::is_same_v<decltype(in), decltype(out)>) {
      return with_width<In>(plan.width, launch);
    }
    return with_wide_or_single<In>(plan.width, launch);
  });
}

template <class In, class Out, int kWidth>
Status launch_softmax_forward(const SoftmaxForward& args, const RowPlan& plan, Stream stream) {
  if (plan.blocks > 1) return launch_clusters(args, plan, stream);
  if (plan.elements > 0) {
    return with_regime<kSoftmaxRegimes, In, kWidth>(plan, [&](auto vectors, auto threads) {
      const auto kernel = &softmax_forward_registers<
          In, Out, kWidth, decltype(vectors)::value, decltype(threads)::value>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  if constexpr (kIsLoopWidth<In, kWidth>) {
    return launch_segments(
        &softmax_forward_partials<In, Out, kWidth>, &softmax_forward_apply<In, Out, kWidth>,
        args.cols * sizeof(In), args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const SoftmaxForward& args, Stream stream) {
  const RowPlan plan = plan_of(args, width_of(args));
  return launch_plan(with_clusters(args, plan), plan, [&](const RowPlan& plan) {
    return with_kernel(args, plan, [&](auto in, auto out, auto width) {
      using In = TypeOf<decltype(in)>;
      using Out = TypeOf<decltype(out)>;
      return launch_softmax_forward<In, Out, decltype(width)::value>(args, plan, stream);
    });
  });
}

int64_t workspace_bytes(const SoftmaxForward& args) {
  const RowPlan plan = plan_of(args, width_of(args));
  return segment_partials_bytes(plan, args.rows, args.cols, args.input.dtype, 2);
}

inline RowPlan plan_of(const SoftmaxStack& stack) {
  const auto each_width = [](const SoftmaxForward& args) { return width_of(args); };
  return plan_of(stack[0], narrowest(stack, each_width));
}

// One launch for all tensors, where each of them alone would have a block for a row.
Status launch(const SoftmaxStack& stack, Stream stream) {
  const SoftmaxForward first = stack[0];
  const RowPlan plan = plan_of(stack);
  const int64_t blocks = stack.count * ceil_div(first.rows, plan.rows);
  const DType dtype = first.input.dtype;
  const bool is_one_launch = dtype == first.output.dtype && has_stack_kernel(dtype, plan.width) &&
      plan.elements > 0 && with_clusters(first, plan).blocks == 1 && blocks <= device::max_grid();
  if (!is_one_launch) return launch_each(stack, stream);
  return with_stack_kernel(dtype, plan.width, [&](auto type, auto width) {
    using T = TypeOf<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    return with_vectors<kSoftmaxRegimes, T, kWidth>(plan, [&](auto vectors) {
      const auto kernel = &softmax_stack_registers<T, kWidth, decltype(vectors)::value>;
      return device::launch(kernel, blocks, dim3(plan.threads, plan.rows), stream, stack);
    });
  });
}

int64_t workspace_bytes(const SoftmaxStack& stack) { return most_workspace_bytes(stack); }

template <class T, class Out, int kWidth>
Status launch_softmax_backward(const SoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  if (plan.blocks > 1) return launch_clusters(args, plan, stream);
  if (plan.elements > 0) {
    return with_regime<kSoftmaxBackwardRegimes, T, kWidth>(plan, [&](auto vectors, auto threads) {
      const auto kernel = &softmax_backward_registers<
          T, Out, kWidth, decltype(vectors)::value, decltype(threads)::value>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  if constexpr (kIsLoopWidth<T, kWidth>) {
    return launch_segments(
        &softmax_backward_partials<T, Out, kWidth>, &softmax_backward_apply<T, Out, kWidth>,
        2 * args.cols * sizeof(T), args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const SoftmaxBackward& args, Stream stream) {
  const RowPlan plan = plan_of(args);
  return launch_plan(with_clusters(args, plan), plan, [&](const RowPlan& plan) {
    return with_types(args.grad_input.dtype, args.output.dtype, [&](auto out, auto type) {
      using Out = TypeOf<decltype(out)>;
      using T = TypeOf<decltype(type)>;
      return with_width<T>(plan.width, [&](auto width) {
        return launch_softmax_backward<T, Out, decltype(width)::value>(args, plan, stream);
      });
    });
  });
}

int64_t workspace_bytes(const SoftmaxBackward& args) {
  return segment_partials_bytes(plan_of(args), args.rows, args.cols, args.output.dtype, 1);
}

// --- softmax in two steps -----------------------------------------------------------------------

// The arguments of softmax_forward_partials, which writes to the workspace alone.
SoftmaxForward as_forward(const SoftmaxStatistics& args) {
  SoftmaxForward forward{};
  forward.input = args.input;
  forward.workspace = args.workspace;
  forward.rows = args.rows;
  forward.cols = args.cols;
  return forward;
}

Status launch(const SoftmaxStatistics& args, Stream stream) {
  if (args.rows > 0 && args.workspace == nullptr) return device::kInvalidValue;
  const Segments segments = plan_segments(args.cols);
  const int64_t most = device::max_grid() / segments.count;
  const int32_t width = pick_wide_or_single(args.input.dtype, args.cols, {args.input});
  return with_type(args.input.dtype, [&](auto type) {
    using In = TypeOf<decltype(type)>;
    using Acc = AccumulatorOf<In>;
    return with_wide_or_single<In>(width, [&](auto width) {
      const auto partials = &softmax_forward_partials<In, Acc, decltype(width)::value>;
      const dim3 threads(kSegmentThreads);
      return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
        const Status status = device::launch(
            partials, rows * segments.count, threads, stream, as_forward(args), first, segments);
        if (status != device::kSuccess) return status;
        const auto merge = &softmax_statistics_merge<Acc>;
        return device::launch(merge, rows, threads, stream, args, first, segments);
      });
    });
  });
}

int64_t workspace_bytes(const SoftmaxStatistics& args) {
  return args.rows * plan_segments(args.cols).count * 2 * accumulator_bytes(args.input.dtype);
}

Status launch(const SoftmaxApply& args, Stream stream) {
  const Segments segments = plan_segments(args.cols);
  const int64_t most = device::max_grid() / segments.count;
  const int32_t width = pick_wide_or_single(args.input.dtype, args.cols, {args.input, args.output});
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    return with_wide_or_single<In>(width, [&](auto width) {
      const auto kernel = &softmax_statistics_apply<In, Out, decltype(width)::value>;
      return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
        const int64_t blocks = rows * segments.count;
        return device::launch(kernel, blocks, dim3(kSegmentThreads), stream, args, first, segments);
      });
    });
  });
}

}  // namespace fusedops::cuda
