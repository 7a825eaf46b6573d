// Host side of the spatial softmax. The emulator compiles this file too, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/launch_dispatch.h"
#include "fusedops/cuda/spatial_softmax.h"

namespace fusedops::cuda {

template <class Args>
Status launch_inner_segments(
    void (*kernel)(Args, int64_t), const SpatialPlan& plan, const Args& args, Stream stream) {
  const dim3 threads(plan.inner_threads, plan.dim_threads);
  return launch_items(kernel, args.outer * plan.segments, 1, threads, args, stream);
}

Status launch(const SpatialSoftmaxForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  const int32_t width = pick_wide_or_single(dtype, args.inner, {args.input, args.output});
  const SpatialPlan plan = plan_spatial(args.dim_size, args.inner, width, size_of(dtype));
  return with_types(dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    return with_wide_or_single<In>(plan.width, [&](auto width) {
      const auto kernel = &spatial_softmax_forward<In, Out, decltype(width)::value>;
      return launch_inner_segments(kernel, plan, args, stream);
    });
  });
}

Status launch(const SpatialSoftmaxBackward& args, Stream stream) {
  const DType dtype = args.output.dtype;
  const int32_t width =
      pick_wide_or_single(dtype, args.inner, {args.grad_output, args.output, args.grad_input});
  const SpatialPlan plan = plan_spatial(args.dim_size, args.inner, width, size_of(dtype));
  return with_types(args.grad_input.dtype, dtype, [&](auto out, auto type) {
    using Out = TypeOf<decltype(out)>;
    using T = TypeOf<decltype(type)>;
    return with_wide_or_single<T>(plan.width, [&](auto width) {
      const auto kernel = &spatial_softmax_backward<T, Out, decltype(width)::value>;
      return launch_inner_segments(kernel, plan, args, stream);
    });
  });
}

}  // namespace fusedops::cuda
