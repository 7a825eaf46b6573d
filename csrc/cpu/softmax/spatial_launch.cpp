// Launches softmax and log_softmax over a dimension that is not the last.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/softmax/scratch.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {
namespace {

// Calls body(segments, scratch) for the inner segments of every outer index.
template <class Args, class Body>
void for_inner_segments(const Args& args, Body body) {
  const InnerSegments segments = inner_segments(args);
  const int64_t elements = args.dim_size * std::min(segments.cols_each, args.inner);
  for_rows(
      args.outer * segments.count, elements, spatial_scratch_bytes(args.dim_size, segments), body);
}

}  // namespace

void CpuLauncher::launch(const SpatialSoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      is_streaming(args.outer * args.dim_size * args.inner, args.output, args.input);
  for_inner_segments(args, [&](RowRange segments, void* scratch) {
    kernels.spatial_softmax(args, segments, scratch, streaming);
  });
}

void CpuLauncher::launch(const SpatialSoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming = is_streaming(
      args.outer * args.dim_size * args.inner, args.grad_input, args.grad_output, args.output);
  for_inner_segments(args, [&](RowRange segments, void* scratch) {
    kernels.spatial_softmax_backward(args, segments, scratch, streaming);
  });
}

}  // namespace fusedops
