// Host side of the sums over rows. The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/column_sums/rows.h"
#include "cuda/launch/kernels.h"

namespace fusedops::cuda {

inline RowKernel<ColumnSums> column_sums_of(DType dtype) {
#define DTYPE(T) \
  if (dtype == kDTypeOf<T>) return &column_sums<T>;
#include "cuda/launch/plans.def"
  return nullptr;
}

Status launch(const ColumnSums& args, Stream stream) {
  const dim3 threads(kColumnThreads);
  return launch_items(
      column_sums_of(args.input.dtype), args.cols, kColumnThreads * kColumnsEach, threads, args,
      stream);
}

}  // namespace fusedops::cuda
