// Launches masked_softmax, with and without dropout.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/masked_softmax/scratch.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {

void CpuLauncher::launch(const MaskedSoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t outputs = args.probabilities.data == nullptr ? 1 : 2;
  const int64_t bytes = size_of(args.input.dtype) + outputs * size_of(args.output.dtype);
  const bool streaming = is_streaming(args.rows * args.cols, bytes);
  const int64_t scratch_bytes = masked_softmax_scratch_bytes(args.cols, args.input.dtype);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.masked_softmax(args, range, scratch, streaming);
  });
}

void CpuLauncher::launch(const MaskedSoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = 2 * size_of(args.probabilities.dtype) + size_of(args.grad_input.dtype);
  const bool streaming = is_streaming(args.rows * args.cols, bytes);
  const int64_t scratch_bytes = masked_softmax_backward_scratch_bytes(args);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.masked_softmax_backward(args, range, scratch, streaming);
  });
}

}  // namespace fusedops
