// Launches masked softmax for rows that clusters hold. The emulator compiles this file too, as C++.
#include "cuda/launch/cluster.h"
#include "cuda/masked_softmax/kernels.h"

namespace fusedops::cuda {

Status launch_clusters(const ForwardArgs& args, const RowPlan& plan, Stream stream) {
  const auto kernel = find_kernel<MaskedForwardCluster>(args.input.dtype, plan);
  return launch_row_clusters(kernel, plan, args, stream);
}

Status launch_clusters(const BackwardArgs& args, const RowPlan& plan, Stream stream) {
  const auto kernel = find_kernel<MaskedBackwardCluster>(args.probabilities.dtype, plan);
  return launch_row_clusters(kernel, plan, args, stream);
}

}  // namespace fusedops::cuda
