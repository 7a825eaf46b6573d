// Launches softmax and log_softmax over a dimension that is not the last.
#include "cpu/isa.h"
#include "cpu/launcher.h"
#include "cpu/work_sharing.h"

namespace fusedops {
namespace {

// body(strips, scratch) over the strips of all planes.
template <class Args, class Body>
void for_strips(const Args& args, Body body) {
  const PlaneStrips strips = plane_strips(args);
  const int64_t elements = args.rows * std::min(strips.lanes_each, args.lanes);
  for_rows(args.planes * strips.count, elements, planes_scratch_bytes(args.rows, strips), body);
}

}  // namespace

void CpuLauncher::launch(const SpatialSoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = size_of(args.input.dtype) + size_of(args.output.dtype);
  const bool streaming = is_streaming(args.planes * args.rows * args.lanes, bytes);
  for_strips(args, [&](RowRange strips, void* scratch) {
    kernels.spatial_softmax(args, strips, scratch, streaming);
  });
}

void CpuLauncher::launch(const SpatialSoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = 2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype);
  const bool streaming = is_streaming(args.planes * args.rows * args.lanes, bytes);
  for_strips(args, [&](RowRange strips, void* scratch) {
    kernels.spatial_softmax_backward(args, strips, scratch, streaming);
  });
}

}  // namespace fusedops
