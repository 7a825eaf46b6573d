// Launches cross_entropy and its backward.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {

void CpuLauncher::launch(const CrossEntropyForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  for_rows(args.rows, args.cols, 0, [&](RowRange range, void*) {
    kernels.cross_entropy(args, range);
  });
}

void CpuLauncher::launch(const CrossEntropyBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  for_rows(args.rows, args.cols, 0, [&](RowRange range, void*) {
    kernels.cross_entropy_backward(args, range);
  });
}

}  // namespace fusedops
