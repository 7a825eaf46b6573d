// The host side of softmax picks a kernel for the arguments and launches it. The emulator compiles
// this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/cluster.h"
#include "cuda/softmax/kernels.h"

namespace fusedops::cuda {

inline int32_t width_of(const SoftmaxForward& args) {
  return pick_width(args.input.dtype, args.cols, {args.input, args.output});
}

inline int32_t width_of(const SoftmaxBackward& args) {
  return pick_width(args.output.dtype, args.cols, {args.grad_output, args.output, args.grad_input});
}

inline RowPlan plan_of(const SoftmaxForward& args, int32_t width, int32_t cluster_limit) {
  return plan_rows(
      Pass::kSoftmaxForward, args.cols, width, size_of(args.input.dtype), cluster_limit);
}

inline RowPlan plan_of(const SoftmaxBackward& args, int32_t width, int32_t cluster_limit) {
  return plan_rows(
      Pass::kSoftmaxBackward, args.cols, width, size_of(args.output.dtype), cluster_limit);
}

Status launch_scope(const SoftmaxForward& args, const RowPlan& plan, Stream stream) {
  const DType dtype = args.input.dtype;
  return launch_scope<SoftmaxForwardRegisters, SoftmaxForwardPartials, SoftmaxForwardApply>(
      args, plan, dtype, args.cols * size_of(dtype), stream, RowStatistics{});
}

Status launch(const SoftmaxForward& args, Stream stream) {
  if (!is_same_or_wider(args.output.dtype, args.input.dtype)) return device::kInvalidValue;
  return launch_plan<RowPlan>(args, width_of(args), plan_of, stream);
}

int64_t workspace_bytes(const SoftmaxForward& args) {
  const RowPlan plan = plan_of(args, width_of(args), /*cluster_limit=*/1);
  return segment_partials_bytes(plan, args.rows, args.cols, args.input.dtype, /*accumulators=*/2);
}

Status launch(const SoftmaxStack& stack, Stream stream) {
  const SoftmaxForward first = stack[0];
  const DType dtype = first.input.dtype;
  if (!is_same_or_wider(first.output.dtype, dtype)) return device::kInvalidValue;
  const RowPlan plan = plan_of(first, common_width(stack, width_of), cluster_limit());
  return launch_stack<SoftmaxStackRegisters>(stack, plan, dtype, stream);
}

int64_t workspace_bytes(const SoftmaxStack& stack) { return most_workspace_bytes(stack); }

Status launch_scope(const SoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  const DType dtype = args.output.dtype;
  return launch_scope<SoftmaxBackwardRegisters, SoftmaxBackwardPartials, SoftmaxBackwardApply>(
      args, plan, dtype, 2 * args.cols * size_of(dtype), stream);
}

Status launch(const SoftmaxBackward& args, Stream stream) {
  if (!is_same_or_wider(args.output.dtype, args.grad_input.dtype)) return device::kInvalidValue;
  return launch_plan<RowPlan>(args, width_of(args), plan_of, stream);
}

int64_t workspace_bytes(const SoftmaxBackward& args) {
  const RowPlan plan = plan_of(args, width_of(args), /*cluster_limit=*/1);
  return segment_partials_bytes(plan, args.rows, args.cols, args.output.dtype, /*accumulators=*/1);
}

// --- softmax in two steps -----------------------------------------------------------------------

// Returns the arguments of a kernel of SoftmaxForward that takes one of the two steps.
template <class Args>
SoftmaxForward as_forward(const Args& args, const Rows& output, void* workspace) {
  return {args.input, output, workspace, args.rows, args.cols, /*log=*/false};
}

Status launch(const SoftmaxStatistics& args, Stream stream) {
  if (args.rows > 0 && args.workspace == nullptr) return device::kInvalidValue;
  const DType dtype = args.input.dtype;
  const Segments segments = plan_segments(args.cols);
  const int32_t width = pick_wide_or_single(dtype, args.cols, {args.input});
  const auto partials = find_kernel<SoftmaxForwardPartials>(dtype, width);
  const auto merge = statistics_merge_of(dtype);
  // The kernel of partials writes to the workspace alone. The output's dtype is that of
  // accumulators, so that the statistics have their precision.
  Rows output{};
  output.dtype = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const SoftmaxForward forward = as_forward(args, output, args.workspace);
  const dim3 threads(kSegmentThreads);
  const Status status = launch_segment_blocks(partials, forward, 0, args.rows, segments, stream);
  if (status != device::kSuccess) return status;
  return for_each_launch(args.rows, device::max_grid(), [&](int64_t first, int64_t rows) {
    return device::launch(merge, rows, threads, stream, args, first, segments);
  });
}

int64_t workspace_bytes(const SoftmaxStatistics& args) {
  return args.rows * plan_segments(args.cols).count * 2 * accumulator_bytes(args.input.dtype);
}

Status launch(const SoftmaxApply& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (!is_same_or_wider(args.output.dtype, dtype)) return device::kInvalidValue;
  const Segments segments = plan_segments(args.cols);
  const int32_t width = pick_wide_or_single(dtype, args.cols, {args.input, args.output});
  const auto kernel = find_kernel<SoftmaxForwardApply>(dtype, width);
  const SoftmaxForward forward = as_forward(args, args.output, /*workspace=*/nullptr);
  const RowStatistics statistics = {args.max, args.sum};
  return launch_segment_blocks(kernel, forward, 0, args.rows, segments, stream, statistics);
}

}  // namespace fusedops::cuda
