// Launches dropout over rows.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {

void CpuLauncher::launch(const DropoutForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming = is_streaming(args.rows * args.cols, args.output, args.input);
  for_elements(args.rows, args.cols, [&](RowRange rows, RowRange cols) {
    kernels.dropout(args, rows, cols, streaming);
  });
}

}  // namespace fusedops
