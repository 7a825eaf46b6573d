// Launches the sums over rows.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {

void CpuLauncher::launch(const ColumnSums& args) const {
  const CpuKernels& kernels = cpu_kernels();
  for_columns(args.cols, args.rows, Scratch(0), [&](RowRange cols, void*) {
    kernels.column_sums(args, cols);
  });
}

}  // namespace fusedops
