// Host side of LayerNorm, StdNorm and RMSNorm: picks kernels for the arguments and launches them.
// The emulator compiles this very file, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/dispatch.h"
#include "fusedops/cuda/norm.h"
#include "fusedops/cuda/norm_backward.h"

namespace fusedops::cuda {

// Whether kernels of these rows take that weight or bias: of their dtype, or floats beside 16 bits.
inline bool fits(const ConstColumns& parameter, DType dtype) {
  const bool is_wider = size_of(dtype) == 2 && parameter.dtype == DType::kFloat32;
  return parameter.data == nullptr || parameter.dtype == dtype || is_wider;
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_forward(const NormForward& args, const RowPlan& plan, Stream stream) {
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int kFewer = kIsWide<T, kWidth> ? 16 : kAdd ? 4 : 8;
    if (plan.elements == kFewer) {
      const auto kernel = &norm_forward_registers<T, kWidth, kFewer / kWidth, kAdd>;
      return launch_rows(kernel, plan, args, stream);
    }
    if constexpr (kIsWide<T, kWidth> && sizeof(T) == 2 && !kAdd) {
      if (plan.elements == 32) {
        const auto kernel = &norm_forward_registers<T, kWidth, 32 / kWidth, kAdd>;
        return launch_rows(kernel, plan, args, stream);
      }
    }
  }
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    return launch_rows(&norm_forward_looped<T, kWidth, kAdd>, plan, args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const NormForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (!fits(args.weight, dtype) || !fits(args.bias, dtype)) return device::kInvalidValue;
  const int32_t width = pick_width(
      dtype, args.cols, {args.input, args.residual, args.output, args.sum, args.weight, args.bias});
  const Regimes& regimes = args.residual.data ? kNormAddRegimes : kNormRegimes;
  const RowPlan plan = plan_rows(regimes, args.cols, width, size_of(dtype));
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_width<T>(plan.width, [&](auto width) {
      return with_bool(args.residual.data, [&](auto add) {
        return launch_norm_forward<T, decltype(width)::value, decltype(add)::value>(
            args, plan, stream);
      });
    });
  });
}

inline bool adds(const NormBackward& args) { return args.grad_sum.data || args.grad_branch.data; }

inline NormBackwardPlan plan_of(const NormBackward& args) {
  const DType dtype = args.input.dtype;
  const int32_t width = pick_width(
      dtype, args.cols,
      {args.grad_output, args.grad_sum, args.input, args.weight, args.grad_input,
       args.grad_branch});
  const Regimes& regimes = adds(args) ? kNormAddBackwardRegimes : kNormBackwardRegimes;
  return plan_norm_backward(regimes, args.rows, args.cols, width, size_of(dtype));
}

inline bool wants_rows(const NormBackward& args) {
  return args.grad_input.data || args.grad_branch.data;
}

inline bool wants_columns(const NormBackward& args) {
  return args.grad_weight.data || args.grad_bias.data;
}

int64_t workspace_bytes(const NormBackward& args) {
  if (!wants_columns(args)) return 0;
  const int64_t accumulator_bytes = args.input.dtype == DType::kFloat64 ? 8 : 4;
  return 2 * plan_of(args).parts * args.cols * accumulator_bytes;
}

// Gradients of rows, and the parts of the column sums, by one kernel.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_registers(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  constexpr int kMost = kIsWide<T, kWidth> ? 16 : 8;
  constexpr int kElements = kAdd && !(kIsWide<T, kWidth> && sizeof(T) == 2) ? kMost / 2 : kMost;
  if constexpr (!std::is_same_v<T, double>) {
    if (plan.row.elements == kElements) {
      const auto kernel = &norm_backward_registers<T, kWidth, kElements / kWidth, kAdd>;
      return device::launch(
          kernel, plan.parts, dim3(plan.row.threads, plan.row.rows), stream, args);
    }
  }
  return device::kInvalidValue;
}

// The same by two kernels.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_looped(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  Status status = device::kInvalidValue;
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    status = device::kSuccess;
    if (wants_rows(args)) {
      const auto kernel = &norm_backward_rows_looped<T, kWidth, kAdd>;
      status = launch_rows(kernel, plan.row, args, stream);
    }
    if (wants_columns(args) && status == device::kSuccess) {
      const auto kernel = &norm_backward_column_parts<T, kWidth>;
      status = device::launch(
          kernel, plan.parts * plan.tiles, dim3(kColumnThreads), stream, args, plan.parts);
    }
  }
  return status;
}

template <class Acc>
Status launch_norm_backward_finish(const NormBackward& args, int64_t parts, Stream stream) {
  const auto kernel = &norm_backward_finish<Acc>;
  return device::launch(kernel, ceil_div(args.cols, 32), dim3(32, 32), stream, args, parts);
}

Status launch(const NormBackward& args, Stream stream) {
  if (!fits(args.weight, args.input.dtype)) return device::kInvalidValue;
  const NormBackwardPlan plan = plan_of(args);
  return with_type(args.input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    Status status = with_width<T>(plan.row.width, [&](auto width) {
      return with_bool(adds(args), [&](auto add) {
        constexpr int kWidth = decltype(width)::value;
        constexpr bool kAdd = decltype(add)::value;
        return plan.row.elements > 0
            ? launch_norm_backward_registers<T, kWidth, kAdd>(args, plan, stream)
            : launch_norm_backward_looped<T, kWidth, kAdd>(args, plan, stream);
      });
    });
    if (wants_columns(args) && status == device::kSuccess) {
      status = launch_norm_backward_finish<AccumulatorOf<T>>(args, plan.parts, stream);
    }
    return status;
  });
}

Status launch(const NormStack& stack, Stream stream) {
  Status status = device::kSuccess;
  for (int32_t i = 0; i < stack.count && status == device::kSuccess; ++i) {
    status = launch(stack[i], stream);
  }
  return status;
}

Status launch(const NormStackBackward& stack, Stream stream) {
  Status status = device::kSuccess;
  for (int32_t i = 0; i < stack.count && status == device::kSuccess; ++i) {
    status = launch(stack[i], stream);
  }
  return status;
}

int64_t workspace_bytes(const NormForward&) { return 0; }

}  // namespace fusedops::cuda
