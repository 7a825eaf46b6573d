// Host side of softmax over the rows of planes. The emulator compiles this very file, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/launch_dispatch.h"
#include "fusedops/cuda/spatial_softmax.h"

namespace fusedops::cuda {

template <class Args>
Status launch_strips(
    void (*kernel)(Args, int64_t), const PlanePlan& plan, const Args& args, Stream stream) {
  const dim3 threads(plan.threads, plan.sharers);
  return launch_shares(kernel, args.planes * plan.strips, 1, threads, args, stream);
}

Status launch(const SpatialSoftmaxForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  const int32_t width = pick_wide_or_single(dtype, args.lanes, {args.input, args.output});
  const PlanePlan plan = plan_planes(args.rows, args.lanes, width, size_of(dtype));
  return with_types(dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return with_wide_or_single<In>(plan.width, [&](auto width) {
      const auto kernel = &spatial_softmax_forward<In, Out, decltype(width)::value>;
      return launch_strips(kernel, plan, args, stream);
    });
  });
}

Status launch(const SpatialSoftmaxBackward& args, Stream stream) {
  const DType dtype = args.output.dtype;
  const int32_t width =
      pick_wide_or_single(dtype, args.lanes, {args.grad_output, args.output, args.grad_input});
  const PlanePlan plan = plan_planes(args.rows, args.lanes, width, size_of(dtype));
  return with_types(args.grad_input.dtype, dtype, [&](auto out, auto type) {
    using Out = typename decltype(out)::type;
    using T = typename decltype(type)::type;
    return with_wide_or_single<T>(plan.width, [&](auto width) {
      const auto kernel = &spatial_softmax_backward<T, Out, decltype(width)::value>;
      return launch_strips(kernel, plan, args, stream);
    });
  });
}

}  // namespace fusedops::cuda
