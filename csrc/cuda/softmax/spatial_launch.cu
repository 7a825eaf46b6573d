// Host side of the spatial softmax. The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/spatial.h"
#include "cuda/softmax/spatial.h"

namespace fusedops::cuda {

Status launch(const SpatialSoftmaxForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  const int32_t width = pick_wide_or_single(dtype, args.inner, {args.input, args.output});
  const SpatialPlan plan =
      plan_spatial(args.dim_size, args.inner, width, size_of(dtype), 1, device::max_shared_bytes());
  return with_types(dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    return with_wide_or_single<In>(plan.width, [&](auto width) {
      return with_keep<In>(plan.keep, [&](auto keep) {
        const auto kernel =
            &spatial_softmax_forward<In, Out, decltype(width)::value, decltype(keep)::value>;
        return launch_inner_segments(kernel, plan, args, stream);
      });
    });
  });
}

Status launch(const SpatialSoftmaxBackward& args, Stream stream) {
  const DType dtype = args.output.dtype;
  const int32_t width =
      pick_wide_or_single(dtype, args.inner, {args.grad_output, args.output, args.grad_input});
  const SpatialPlan plan =
      plan_spatial(args.dim_size, args.inner, width, size_of(dtype), 2, device::max_shared_bytes());
  return with_types(args.grad_input.dtype, dtype, [&](auto out, auto type) {
    using Out = TypeOf<decltype(out)>;
    using T = TypeOf<decltype(type)>;
    return with_wide_or_single<T>(plan.width, [&](auto width) {
      return with_keep<T>(plan.keep, [&](auto keep) {
        const auto kernel =
            &spatial_softmax_backward<T, Out, decltype(width)::value, decltype(keep)::value>;
        return launch_inner_segments(kernel, plan, args, stream);
      });
    });
  });
}

}  // namespace fusedops::cuda
