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

inline int32_t width_of(const NormForward& args) {
  return pick_width(
      args.input.dtype, args.cols,
      {args.input, args.residual, args.output, args.sum, args.weight, args.bias});
}

inline RowPlan plan_of(const NormForward& args) {
  const Regimes& regimes = args.residual.data ? kNormAddRegimes : kNormRegimes;
  return plan_rows(regimes, args.cols, width_of(args), size_of(args.input.dtype));
}

// Elements a thread, as the tables of policy.h have them.
template <class T, int kWidth, bool kAdd>
constexpr int norm_elements() {
  if (kIsWide<T, kWidth> && sizeof(T) < 8) return 16;
  return kAdd ? 4 : 8;
}

template <class T, int kWidth, bool kAdd>
Status launch_norm_forward(const NormForward& args, const RowPlan& plan, Stream stream) {
  constexpr int kFew = norm_elements<T, kWidth, kAdd>();
  if (plan.elements == kFew) {
    const auto kernel = &norm_forward_registers<T, kWidth, kFew / kWidth, kAdd>;
    return launch_rows(kernel, plan, args, stream);
  }
  if constexpr (kIsWide<T, kWidth> && sizeof(T) == 2 && !kAdd) {
    if (plan.elements == 32) {
      const auto kernel = &norm_forward_registers<T, kWidth, 32 / kWidth, kAdd>;
      return launch_rows(kernel, plan, args, stream);
    }
  }
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    return launch_segments(
        &norm_forward_parts<T, kWidth, kAdd>, &norm_forward_apply<T, kWidth, kAdd>,
        (1 + kAdd) * args.cols * sizeof(T), args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const NormForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (!fits(args.weight, dtype) || !fits(args.bias, dtype)) return device::kInvalidValue;
  const RowPlan plan = plan_of(args);
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

int64_t workspace_bytes(const NormForward& args) {
  return segment_parts_bytes(plan_of(args), args.rows, args.cols, args.input.dtype, 3);
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

// The parts of the rows make room for those of the columns.
int64_t workspace_bytes(const NormBackward& args) {
  const DType dtype = args.input.dtype;
  const NormBackwardPlan plan = plan_of(args);
  const int64_t of_rows = segment_parts_bytes(plan.row, args.rows, args.cols, dtype, 2);
  const int64_t of_columns = 2 * plan.parts * args.cols * accumulator_bytes(dtype);
  return std::max(wants_rows(args) ? of_rows : 0, wants_columns(args) ? of_columns : 0);
}

template <class T, int kWidth, bool kAdd>
constexpr int norm_backward_elements() {
  if (sizeof(T) == 8) return 4;
  if (!kIsWide<T, kWidth>) return kAdd ? 4 : 8;
  return kAdd && sizeof(T) == 4 ? 8 : 16;
}

// Gradients of rows, and the parts of the column sums, by one kernel.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_registers(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  constexpr int kElements = norm_backward_elements<T, kWidth, kAdd>();
  if (plan.row.elements == kElements) {
    const auto kernel = &norm_backward_registers<T, kWidth, kElements / kWidth, kAdd>;
    return device::launch(kernel, plan.parts, dim3(plan.row.threads, plan.row.rows), stream, args);
  }
  return device::kInvalidValue;
}

// The same by kernels of their own, for rows by segments.
template <class T, int kWidth, bool kAdd>
Status launch_norm_backward_segments(
    const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  Status status = device::kInvalidValue;
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    status = device::kSuccess;
    if (wants_rows(args)) {
      status = launch_segments(
          &norm_backward_row_parts<T, kWidth>, &norm_backward_rows<T, kWidth, kAdd>,
          2 * args.cols * sizeof(T), args, stream);
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
            : launch_norm_backward_segments<T, kWidth, kAdd>(args, plan, stream);
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

}  // namespace fusedops::cuda
