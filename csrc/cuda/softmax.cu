// Host side of softmax: picks a kernel for the arguments and launches it. The emulator compiles
// this very file, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/dispatch.h"
#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

template <class In, class Out, int kWidth>
Status launch_softmax_forward(const SoftmaxForward& args, const RowPlan& plan, Stream stream) {
  if constexpr (!std::is_same_v<In, double>) {
    if (plan.elements == 16) {
      const auto kernel = &softmax_forward_registers<In, Out, kWidth, 16 / kWidth>;
      return launch_rows(kernel, plan, args, stream);
    }
    if constexpr (kIsWide<In, kWidth>) {
      if (plan.elements == 32) {
        const auto kernel = &softmax_forward_registers<In, Out, kWidth, 32 / kWidth>;
        return launch_rows(kernel, plan, args, stream);
      }
    }
  }
  if constexpr (kIsWide<In, kWidth> || kWidth == 1) {
    return launch_rows(&softmax_forward_looped<In, Out, kWidth>, plan, args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const SoftmaxForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  const int32_t width = pick_width(dtype, args.cols, {args.input, args.output});
  const RowPlan plan = plan_rows(kSoftmaxRegimes, args.cols, width, size_of(dtype));
  return with_types(dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return with_width<In>(plan.width, [&](auto width) {
      return launch_softmax_forward<In, Out, decltype(width)::value>(args, plan, stream);
    });
  });
}

Status launch(const SoftmaxStack& stack, Stream stream) {
  Status status = device::kSuccess;
  for (int32_t i = 0; i < stack.count && status == device::kSuccess; ++i) {
    status = launch(stack[i], stream);
  }
  return status;
}

int64_t workspace_bytes(const SoftmaxForward&) { return 0; }
int64_t workspace_bytes(const SoftmaxBackward&) { return 0; }

template <class T, class Out, int kWidth>
Status launch_softmax_backward(const SoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  if constexpr (!std::is_same_v<T, double>) {
    if (plan.elements == 16) {
      const auto kernel = &softmax_backward_registers<T, Out, kWidth, 16 / kWidth>;
      return launch_rows(kernel, plan, args, stream);
    }
  }
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    return launch_rows(&softmax_backward_looped<T, Out, kWidth>, plan, args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const SoftmaxBackward& args, Stream stream) {
  const DType dtype = args.output.dtype;
  const int32_t width =
      pick_width(dtype, args.cols, {args.grad_output, args.output, args.grad_input});
  const RowPlan plan = plan_rows(kSoftmaxBackwardRegimes, args.cols, width, size_of(dtype));
  return with_types(args.grad_input.dtype, dtype, [&](auto out, auto type) {
    using Out = typename decltype(out)::type;
    using T = typename decltype(type)::type;
    return with_width<T>(plan.width, [&](auto width) {
      return launch_softmax_backward<T, Out, decltype(width)::value>(args, plan, stream);
    });
  });
}

}  // namespace fusedops::cuda
