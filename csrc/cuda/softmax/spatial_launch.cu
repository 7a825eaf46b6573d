// Launches the spatial softmax. The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/spatial.h"
#include "cuda/softmax/kernels.h"

namespace fusedops::cuda {

Status launch(const SpatialSoftmaxForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (!is_same_or_wider(args.output.dtype, dtype)) return device::kInvalidValue;
  const int32_t width = pick_wide_or_single(dtype, args.inner, {args.input, args.output});
  return launch_strips<SpatialSoftmaxForwardStrip>(dtype, width, /*tensors=*/1, args, stream);
}

Status launch(const SpatialSoftmaxBackward& args, Stream stream) {
  const DType dtype = args.output.dtype;
  if (!is_same_or_wider(dtype, args.grad_input.dtype)) return device::kInvalidValue;
  const int32_t width =
      pick_wide_or_single(dtype, args.inner, {args.grad_output, args.output, args.grad_input});
  return launch_strips<SpatialSoftmaxBackwardStrip>(dtype, width, /*tensors=*/2, args, stream);
}

}  // namespace fusedops::cuda
