// Launches cross_entropy and its backward.
#include "cpu/cross_entropy/scratch.h"
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {
namespace {

void launch_long(const CpuKernels& kernels, const CrossEntropyForward& args) {
  for_long_rows(
      args.rows, args.cols, logit_sums_bytes(args.cols), /*scratch_bytes=*/0,
      [&](int64_t row, RowRange cols, void* partials, void*) {
        kernels.long_cross_entropy(args, row, cols, static_cast<LogitSums*>(partials));
      },
      [&](int64_t row, RowRange cols, const void* partials, void*) {
        if (cols.begin != 0) return;  // only the call with column 0 writes the row's loss
        kernels.write_long_cross_entropy(args, row, static_cast<const LogitSums*>(partials));
      });
}

}  // namespace

void CpuLauncher::launch(const CrossEntropyForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  if (is_long_row(args.cols)) return launch_long(kernels, args);
  for_rows(args.rows, args.cols, /*scratch_bytes=*/0, [&](RowRange rows, void*) {
    kernels.cross_entropy(args, rows);
  });
}

void CpuLauncher::launch(const CrossEntropyBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  for_elements(args.rows, args.cols, [&](RowRange rows, RowRange cols) {
    kernels.cross_entropy_backward(args, rows, cols);
  });
}

}  // namespace fusedops
