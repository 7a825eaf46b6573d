// Launches of the kernels of clusters. csrc/cuda/*/clusters.cu defines them, and is compiled for
// the architectures that have clusters alone. A plan has clusters of more than one block.
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

}  // namespace fusedops::cuda
