// Host side of masked_softmax: picks a kernel for the arguments and launches it. The emulator
// compiles this file too, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/launch_dispatch.h"
#include "fusedops/cuda/masked_softmax.h"

namespace fusedops::cuda {

template <class In, class Out, int kWidth>
Status launch_masked_softmax_forward(
    const MaskedSoftmaxForward& args, const RowPlan& plan, Stream stream) {
  if (plan.elements > 0) {
    return with_vectors<kMaskedSoftmaxRegimes, In, kWidth>(plan, [&](auto vectors) {
      const auto kernel =
          &masked_softmax_forward_registers<In, Out, kWidth, decltype(vectors)::value>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  return launch_rows(&masked_softmax_forward_looped<In, Out, kWidth>, plan, args, stream);
}

Status launch(const MaskedSoftmaxForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  const int32_t width = pick_wide_or_single(
      dtype, args.cols,
      {args.input, args.output, args.probabilities, args.scores.bias, args.scores.mask});
  const RowPlan plan = plan_rows(kMaskedSoftmaxRegimes, args.cols, width, size_of(dtype));
  return with_types(dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    return with_wide_or_single<In>(plan.width, [&](auto width) {
      return launch_masked_softmax_forward<In, Out, decltype(width)::value>(args, plan, stream);
    });
  });
}

template <class T, class Out, int kWidth>
Status launch_masked_softmax_backward(
    const MaskedSoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  if (plan.elements > 0) {
    return with_vectors<kMaskedSoftmaxBackwardRegimes, T, kWidth>(plan, [&](auto vectors) {
      const auto kernel =
          &masked_softmax_backward_registers<T, Out, kWidth, decltype(vectors)::value>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  return launch_rows(&masked_softmax_backward_looped<T, Out, kWidth>, plan, args, stream);
}

Status launch(const MaskedSoftmaxBackward& args, Stream stream) {
  const DType dtype = args.probabilities.dtype;
  const int32_t width = pick_wide_or_single(
      dtype, args.cols, {args.grad_output, args.probabilities, args.grad_input, args.scores.mask});
  const RowPlan plan = plan_rows(kMaskedSoftmaxBackwardRegimes, args.cols, width, size_of(dtype));
  return with_types(args.grad_input.dtype, dtype, [&](auto out, auto type) {
    using Out = TypeOf<decltype(out)>;
    using T = TypeOf<decltype(type)>;
    return with_wide_or_single<T>(plan.width, [&](auto width) {
      return launch_masked_softmax_backward<T, Out, decltype(width)::value>(args, plan, stream);
    });
  });
}

}  // namespace fusedops::cuda
