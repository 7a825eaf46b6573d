// Host side of softmax: picks a kernel for the arguments and launches it. The emulator compiles
// this very file, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/dispatch.h"
#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

// Elements a thread of the kernels that hold fewer of a row.
template <class T>
inline constexpr int kFewElements = sizeof(T) == 8 ? 8 : 16;

inline int32_t width_of(const SoftmaxForward& args) {
  return pick_width(args.input.dtype, args.cols, {args.input, args.output});
}

inline int32_t width_of(const SoftmaxBackward& args) {
  return pick_width(args.output.dtype, args.cols, {args.grad_output, args.output, args.grad_input});
}

inline RowPlan plan_of(const SoftmaxForward& args) {
  return plan_rows(kSoftmaxRegimes, args.cols, width_of(args), size_of(args.input.dtype));
}

inline RowPlan plan_of(const SoftmaxBackward& args) {
  return plan_rows(kSoftmaxBackwardRegimes, args.cols, width_of(args), size_of(args.output.dtype));
}

template <class In, class Out, int kWidth>
Status launch_softmax_forward(const SoftmaxForward& args, const RowPlan& plan, Stream stream) {
  constexpr int kFew = kFewElements<In>;
  if (plan.elements == kFew) {
    const auto kernel = &softmax_forward_registers<In, Out, kWidth, kFew / kWidth>;
    return launch_rows(kernel, plan, args, stream);
  }
  if constexpr (kIsWide<In, kWidth> && sizeof(In) < 8) {
    if (plan.elements == 32) {
      const auto kernel = &softmax_forward_registers<In, Out, kWidth, 32 / kWidth>;
      return launch_rows(kernel, plan, args, stream);
    }
  }
  if constexpr (kIsWide<In, kWidth> || kWidth == 1) {
    return launch_segments(
        &softmax_forward_parts<In, Out, kWidth>, &softmax_forward_apply<In, Out, kWidth>,
        args.cols * sizeof(In), args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const SoftmaxForward& args, Stream stream) {
  const RowPlan plan = plan_of(args);
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
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

int64_t workspace_bytes(const SoftmaxForward& args) {
  return segment_parts_bytes(plan_of(args), args.rows, args.cols, args.input.dtype, 2);
}

template <class T, class Out, int kWidth>
Status launch_softmax_backward(const SoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  constexpr int kFew = kFewElements<T>;
  if (plan.elements == kFew) {
    const auto kernel = &softmax_backward_registers<T, Out, kWidth, kFew / kWidth>;
    return launch_rows(kernel, plan, args, stream);
  }
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    return launch_segments(
        &softmax_backward_parts<T, Out, kWidth>, &softmax_backward_apply<T, Out, kWidth>,
        2 * args.cols * sizeof(T), args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const SoftmaxBackward& args, Stream stream) {
  const RowPlan plan = plan_of(args);
  return with_types(args.grad_input.dtype, args.output.dtype, [&](auto out, auto type) {
    using Out = typename decltype(out)::type;
    using T = typename decltype(type)::type;
    return with_width<T>(plan.width, [&](auto width) {
      return launch_softmax_backward<T, Out, decltype(width)::value>(args, plan, stream);
    });
  });
}

int64_t workspace_bytes(const SoftmaxBackward& args) {
  return segment_parts_bytes(plan_of(args), args.rows, args.cols, args.output.dtype, 1);
}

}  // namespace fusedops::cuda
