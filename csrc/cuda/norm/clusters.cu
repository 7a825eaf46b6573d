// Launches the norms of norm_kinds.def for rows that clusters hold. The emulator compiles this file
// too, as C++.
#include "cuda/launch/cluster.h"
#include "cuda/norm/kernels.h"

namespace fusedops::cuda {

Status launch_clusters(const NormForward& args, const RowPlan& plan, Stream stream) {
  const DType dtype = args.output.dtype;
  const auto kernel = args.residual.data == nullptr
      ? find_kernel<NormForwardCluster>(dtype, plan)
      : find_kernel<AddNormForwardCluster>(dtype, plan);
  return launch_row_clusters(kernel, plan, args, stream);
}

Status launch_clusters(const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  const DType dtype = args.input.dtype;
  const auto kernel = adds(args) ? find_kernel<AddNormBackwardCluster>(dtype, plan)
                                 : find_kernel<NormBackwardCluster>(dtype, plan);
  return device::launch_clusters(
      kernel, plan.partitions * plan.blocks, plan.blocks, dim3(plan.threads), stream, args);
}

}  // namespace fusedops::cuda
