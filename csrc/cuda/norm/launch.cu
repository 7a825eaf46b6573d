// The host side of the norms of norm_kinds.def picks kernels for the arguments and launches them.
// The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/cluster.h"
#include "cuda/norm/kernels.h"

namespace fusedops::cuda {

// Returns whether kernels can read or write `branch`, which is a norm's input or its gradient,
// beside rows of `dtype`.
template <class AnyRows>
bool fits_branch(const AnyRows& branch, DType dtype) {
  return branch.data == nullptr || is_same_or_wider(dtype, branch.dtype);
}

inline int32_t width_of(const NormForward& args) {
  const auto pick = args.residual.data == nullptr ? pick_width : pick_wide_or_single;
  return pick(
      args.output.dtype, args.cols,
      {args.input, args.residual, args.output, args.sum, args.weight, args.bias});
}

inline RowPlan plan_of(const NormForward& args, int32_t width, int32_t cluster_limit) {
  const Pass pass = args.residual.data ? Pass::kAddNormForward : Pass::kNormForward;
  return plan_rows(pass, args.cols, width, size_of(args.output.dtype), cluster_limit);
}

Status launch_scope(const NormForward& args, const RowPlan& plan, Stream stream) {
  const DType dtype = args.output.dtype;
  const int64_t row_bytes = args.cols * size_of(dtype);
  if (args.residual.data == nullptr) {
    return launch_scope<NormForwardRegisters, NormForwardPartials, NormForwardApply>(
        args, plan, dtype, row_bytes, stream);
  }
  return launch_scope<AddNormForwardRegisters, NormForwardPartials, NormForwardApply>(
      args, plan, dtype, 2 * row_bytes, stream);
}

Status launch(const NormForward& args, Stream stream) {
  const DType dtype = args.output.dtype;
  if (!fits_branch(args.input, dtype)) return device::kInvalidValue;
  if (!fits(args.weight, dtype) || !fits(args.bias, dtype)) return device::kInvalidValue;
  return launch_plan<RowPlan>(args, width_of(args), plan_of, stream);
}

int64_t workspace_bytes(const NormForward& args) {
  const RowPlan plan = plan_of(args, width_of(args), /*cluster_limit=*/1);
  return segment_partials_bytes(plan, args.rows, args.cols, args.output.dtype, /*accumulators=*/3);
}

// No kernel for the stack adds residuals.
Status launch(const NormStack& stack, Stream stream) {
  const NormForward first = stack[0];
  const DType dtype = first.input.dtype;
  if (!fits(first.weight, dtype) || !fits(first.bias, dtype)) return device::kInvalidValue;
  if (first.residual.data) return launch_each(stack, stream);
  const RowPlan plan = plan_of(first, common_width(stack, width_of), cluster_limit());
  return launch_stack<NormStackRegisters>(stack, plan, dtype, stream);
}

int64_t workspace_bytes(const NormStack& stack) { return most_workspace_bytes(stack); }

inline int32_t width_of(const NormBackward& args) {
  const auto pick = adds(args) ? pick_wide_or_single : pick_width;
  return pick(
      args.input.dtype, args.cols,
      {args.grad_output, args.grad_sum, args.input, args.weight, args.grad_input,
       args.grad_branch});
}

inline NormBackwardPlan plan_of(const NormBackward& args, int32_t width, int32_t cluster_limit) {
  return plan_norm_backward(
      adds(args), cluster_limit, args.rows, args.cols, width, size_of(args.input.dtype),
      device::multiprocessors());
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

inline int64_t workspace_bytes(const NormBackward& args, const NormBackwardPlan& plan) {
  const int64_t columns = column_partials_bytes(args, plan);
  if (!wants_rows(args)) return columns;
  return columns +
      segment_partials_bytes(plan, args.rows, args.cols, args.input.dtype, /*accumulators=*/2);
}

// Returns the largest workspace that the launch may need, for any size of clusters: launch_plan()
// asks the device for its clusters again, and may get another answer. If the launch cannot read the
// number of multiprocessors, its plan has fewer partitions, and needs less. If the number cannot be
// read here, the result is 0, so that the launch is refused.
int64_t workspace_bytes(const NormBackward& args) {
  if (device::multiprocessors() == 0) return 0;
  const int32_t width = width_of(args);
  int64_t most = 0;
  for (const int32_t limit : {kMaxClusterBlocks, kPortableClusterBlocks, 1}) {
    most = std::max(most, workspace_bytes(args, plan_of(args, width, limit)));
  }
  return most;
}

// Launches the kernel of the sums along rows, and then that of the gradients, for some rows at a
// time, so that the second reads from L2 what the first has read. If column sums are wanted, one
// launch takes all rows, because each of several launches would write partials as large as its
// rows.
Status launch_backward_segments(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  const DType dtype = args.input.dtype;
  const auto kernel = adds(args) ? find_kernel<AddNormBackwardSegments>(dtype, plan)
                                 : find_kernel<NormBackwardSegments>(dtype, plan);
  const auto along_rows = find_kernel<NormBackwardRowPartials>(dtype, plan.width);
  const Segments segments = plan_segments(args.cols);
  NormBackward of_rows = args;
  of_rows.workspace = static_cast<char*>(args.workspace) + column_partials_bytes(args, plan);
  const RowPartials partials = {of_rows.workspace, segments.count};
  const int64_t row_bytes = 2 * args.cols * size_of(dtype);
  const int64_t most = wants_columns(args) ? args.rows : segment_rows(row_bytes);
  return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
    Status status = device::kSuccess;
    if (wants_rows(args)) {
      status = launch_segment_blocks(along_rows, of_rows, first, rows, segments, stream);
    }
    if (status != device::kSuccess) return status;
    NormBackward until = args;
    until.rows = first + rows;
    return device::launch(
        kernel, std::min(plan.partitions, rows) * plan.segments.count, dim3(plan.threads), stream,
        until, first, plan.segments, partials);
  });
}

// Launches the kernels in which blocks walk over the rows of their partitions.
Status launch_walk(const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  if (plan.scope == Scope::kCluster) return launch_clusters(args, plan, stream);
  if (plan.scope == Scope::kSegments) return launch_backward_segments(args, plan, stream);
  const DType dtype = args.input.dtype;
  const auto kernel = adds(args) ? find_kernel<AddNormBackwardRegisters>(dtype, plan)
                                 : find_kernel<NormBackwardRegisters>(dtype, plan);
  return device::launch(kernel, plan.partitions, dim3(plan.threads, plan.rows), stream, args);
}

Status launch_scope(const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  if (workspace_bytes(args, plan) > 0 && !args.workspace) return device::kInvalidValue;
  const Status status = launch_walk(args, plan, stream);
  if (!wants_columns(args) || status != device::kSuccess) return status;
  return launch_finish(
      norm_backward_finish_of(args.input.dtype), args, /*tensors=*/1, args.cols, plan.partitions,
      stream);
}

Status launch(const NormBackward& args, Stream stream) {
  if (!fits(args.weight, args.input.dtype)) return device::kInvalidValue;
  if (!fits_branch(args.grad_branch, args.input.dtype)) return device::kInvalidValue;
  return launch_plan<NormBackwardPlan>(args, width_of(args), plan_of, stream);
}

inline NormBackwardPlan plan_of(const NormStackBackward& stack) {
  return plan_of(stack[0], common_width(stack, width_of), /*cluster_limit=*/1);
}

int64_t workspace_bytes(const NormStackBackward& stack) {
  return std::max(most_workspace_bytes(stack), workspace_bytes(stack[0], plan_of(stack)));
}

// Launches all tensors at once if there is a kernel for the stack, which is so if a block holds
// whole rows in wide vectors, without a residual; else one after the other.
Status launch(const NormStackBackward& stack, Stream stream) {
  const NormBackward first = stack[0];
  const DType dtype = first.input.dtype;
  if (!fits(first.weight, dtype)) return device::kInvalidValue;
  if (workspace_bytes(stack) > stack.workspace_bytes) return device::kInvalidValue;
  const NormBackwardPlan plan = plan_of(stack);
  const auto kernel = find_kernel<NormStackBackwardRegisters>(dtype, plan);
  const bool is_one_launch = plan.scope == Scope::kRegisters && kernel != nullptr && !adds(first);
  if (!is_one_launch) return launch_each(stack, stream);
  const dim3 row_threads(plan.threads, plan.rows);
  const Status status =
      device::launch(kernel, stack.count * plan.partitions, row_threads, stream, stack);
  if (!wants_columns(first) || status != device::kSuccess) return status;
  return launch_finish(
      norm_stack_backward_finish_of(), stack, stack.count, first.cols, plan.partitions, stream);
}

}  // namespace fusedops::cuda
