// Launches clusters. csrc/cuda/*/clusters.cu define launch_clusters(), and are compiled only for
// the architectures that have clusters.
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/launch/refusals.h"

namespace fusedops::cuda {

#if defined(FUSEDOPS_NO_CLUSTERS)

// No architecture of the build has clusters: launches are refused, as a device may refuse them.
template <class Args, class Plan>
Status launch_clusters(const Args&, const Plan&, Stream) {
  return device::kInvalidDeviceFunction;
}

#else

template <class Args>
struct WithDivisors;

Status launch_clusters(const SoftmaxForward& args, const RowPlan& plan, Stream stream);
Status launch_clusters(const SoftmaxBackward& args, const RowPlan& plan, Stream stream);
Status launch_clusters(
    const WithDivisors<MaskedSoftmaxForward>& args, const RowPlan& plan, Stream stream);
Status launch_clusters(
    const WithDivisors<MaskedSoftmaxBackward>& args, const RowPlan& plan, Stream stream);
Status launch_clusters(const NormForward& args, const RowPlan& plan, Stream stream);
Status launch_clusters(const NormBackward& args, const NormBackwardPlan& plan, Stream stream);

#endif

// Launches the kernels for a plan of softmax or of a norm's forward pass. `row_bytes` is what they
// read of a row.
template <class Registers, class Partials, class Apply, class Args, class... More>
Status launch_scope(
    const Args& args, const RowPlan& plan, DType dtype, int64_t row_bytes, Stream stream,
    More... more) {
  switch (plan.scope) {
    case Scope::kRegisters:
      return launch_rows(find_kernel<Registers>(dtype, plan), plan, args, stream);
    case Scope::kCluster:
      return launch_clusters(args, plan, stream);
    case Scope::kSegments:
      return launch_segments(
          find_kernel<Partials>(dtype, plan), find_kernel<Apply>(dtype, plan), row_bytes, args,
          plan_segments(args.cols), stream, more...);
    default:
      return device::kInvalidValue;
  }
}

// Launches all tensors of a stack at once if there is a kernel for the stack, which is so if a
// block holds whole rows in wide vectors; else one after the other.
template <class StackKernel, class Stack>
Status launch_stack(const Stack& stack, const RowPlan& plan, DType dtype, Stream stream) {
  const auto kernel = find_kernel<StackKernel>(dtype, plan);
  const int64_t blocks = stack.count * ceil_div(stack.each.rows, plan.rows);
  const bool is_one_launch =
      plan.scope == Scope::kRegisters && kernel != nullptr && blocks <= device::max_grid();
  if (!is_one_launch) return launch_each(stack, stream);
  return device::launch(kernel, blocks, dim3(plan.threads, plan.rows), stream, stack);
}

// Returns how many blocks the clusters of a plan may have on the current device.
inline int32_t cluster_limit() { return device::has_clusters() ? kMaxClusterBlocks : 1; }

// Returns the name of a launch.
#define LAUNCH(Args) \
  inline const char* name_of(const Args&) { return #Args; }
#include "launches.def"
#undef LAUNCH

// Launches the plan with the largest clusters that the device runs, or without any: a device, or a
// part of one, may refuse clusters of more than kPortableClusterBlocks, or all clusters.
// plan_of(args, width, limit) returns the plan with clusters of at most `limit` blocks. Each family
// of kernels has a launch_scope(), which launches the kernels for the plan's scope (Scope).
template <class Plan, class Args>
Status launch_plan(
    const Args& args, int32_t width, Plan (&plan_of)(const Args&, int32_t, int32_t),
    Stream stream) {
  for (const int32_t limit : {cluster_limit(), kPortableClusterBlocks}) {
    const Plan plan = plan_of(args, width, limit);
    if (plan.scope != Scope::kCluster || cluster_limit() == 1) break;
    const Status status = launch_scope(args, plan, stream);
    if (status == device::kSuccess || status == device::kLaunchFailure) return status;
    count_refusal(name_of(args), plan.blocks, status);
  }
  return launch_scope(args, plan_of(args, width, /*limit=*/1), stream);
}

}  // namespace fusedops::cuda
