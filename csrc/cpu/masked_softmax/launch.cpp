// Launches masked_softmax, with and without dropout.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/masked_softmax/scratch.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {

void CpuLauncher::launch(const MaskedSoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      is_streaming(args.rows * args.cols, args.output, args.input, args.probabilities);
  const int64_t scratch_bytes = masked_softmax_scratch_bytes(args.cols, args.input.dtype);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.masked_softmax(args, range, scratch, streaming);
  });
}

void CpuLauncher::launch(const MaskedSoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      is_streaming(args.rows * args.cols, args.grad_input, args.grad_output, args.probabilities);
  const int64_t scratch_bytes = masked_softmax_backward_scratch_bytes(args);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.masked_softmax_backward(args, range, scratch, streaming);
  });
}

}  // namespace fusedops
