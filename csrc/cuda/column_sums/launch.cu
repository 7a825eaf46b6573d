// Launches the sums over rows. The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/column_sums/kernels.h"

namespace fusedops::cuda {

Status launch(const ColumnSums& args, Stream stream) {
  const auto kernel = find_kernel<ColumnSumsOfRows>(args.input.dtype, /*width=*/1);
  const dim3 threads(kColumnThreads);
  return launch_items(kernel, args.cols, kColumnThreads, threads, args, stream);
}

}  // namespace fusedops::cuda
