// Launches by clusters. csrc/cuda/*/clusters.cu define launch_clusters(), and are compiled only for
// the architectures that have clusters.
#pragma once

#include "cuda/launch/dispatch.h"

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

// Launches `plan`; if the device refuses its clusters, launches `without_clusters`.
template <class Args, class Plan>
Status launch_plan(
    const Args& args, const Plan& plan, const Plan& without_clusters, Stream stream) {
  const Status status = launch_scope(args, plan, stream);
  const bool is_refused = status != device::kSuccess && status != device::kLaunchFailure;
  if (plan.scope != Scope::kCluster || !is_refused) return status;
  return launch_scope(args, without_clusters, stream);
}

}  // namespace fusedops::cuda
