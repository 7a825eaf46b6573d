// Launches softmax for rows that clusters hold. The emulator compiles this file too, as C++.
#include "cuda/launch/cluster.h"
#include "cuda/softmax/kernels.h"

namespace fusedops::cuda {

Status launch_clusters(const SoftmaxForward& args, const RowPlan& plan, Stream stream) {
  const auto kernel = find_kernel<SoftmaxForwardCluster>(args.input.dtype, plan);
  return launch_row_clusters(kernel, plan, args, stream);
}

Status launch_clusters(const SoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  const auto kernel = find_kernel<SoftmaxBackwardCluster>(args.output.dtype, plan);
  return launch_row_clusters(kernel, plan, args, stream);
}

}  // namespace fusedops::cuda
