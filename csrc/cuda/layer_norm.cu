// Host side of layer_norm: picks kernels for the arguments and launches them. The emulator compiles
// this very file, as C++.
#include "fusedops/cuda/launch.h"

#include "fusedops/cuda/dispatch.h"
#include "fusedops/cuda/layer_norm.h"
#include "fusedops/cuda/layer_norm_backward.h"

namespace fusedops::cuda {

// The dtype that weight and bias share; where there is neither, the input's.
inline DType parameter_dtype(
    const ConstRows& input, const ConstColumns& weight, const ConstColumns& bias = {}) {
  return weight.data ? weight.dtype : bias.data ? bias.dtype : input.dtype;
}

template <class T, class W, int kWidth>
Status launch_layer_norm_forward(const LayerNormForward& args, const RowPlan& plan, Stream stream) {
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int kFewer = kIsWide<T, kWidth> ? 16 : 8;
    if (plan.elements == kFewer) {
      const auto kernel = &layer_norm_forward_registers<T, W, kWidth, kFewer / kWidth>;
      return launch_rows(kernel, plan, args, stream);
    }
    if constexpr (kIsWide<T, kWidth> && sizeof(T) == 2) {
      if (plan.elements == 32) {
        const auto kernel = &layer_norm_forward_registers<T, W, kWidth, 32 / kWidth>;
        return launch_rows(kernel, plan, args, stream);
      }
    }
  }
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    return launch_rows(&layer_norm_forward_looped<T, W, kWidth>, plan, args, stream);
  }
  return device::kInvalidValue;
}

Status launch(const LayerNormForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  const int32_t width =
      pick_width(dtype, args.cols, {args.input, args.output, args.weight, args.bias});
  const RowPlan plan = plan_rows(kNormRegimes, args.cols, width, size_of(dtype));
  const DType parameters = parameter_dtype(args.input, args.weight, args.bias);
  return with_types(dtype, parameters, [&](auto type, auto parameter) {
    using T = typename decltype(type)::type;
    using W = typename decltype(parameter)::type;
    return with_width<T>(plan.width, [&](auto width) {
      return launch_layer_norm_forward<T, W, decltype(width)::value>(args, plan, stream);
    });
  });
}

inline NormBackwardPlan plan_of(const LayerNormBackward& args) {
  const DType dtype = args.input.dtype;
  const int32_t width =
      pick_width(dtype, args.cols, {args.grad_output, args.input, args.weight, args.grad_input});
  return plan_norm_backward(args.rows, args.cols, width, size_of(dtype));
}

inline bool wants_columns(const LayerNormBackward& args) {
  return args.grad_weight.data || args.grad_bias.data;
}

int64_t workspace_bytes(const LayerNormBackward& args) {
  if (!wants_columns(args)) return 0;
  const int64_t accumulator_bytes = args.input.dtype == DType::kFloat64 ? 8 : 4;
  return 2 * plan_of(args).parts * args.cols * accumulator_bytes;
}

// grad_input, and the parts of the column sums.
template <class T, class W, int kWidth>
Status launch_layer_norm_backward(
    const LayerNormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int kElements = kIsWide<T, kWidth> ? 16 : 8;
    if (plan.row.elements == kElements) {
      const auto kernel = &layer_norm_backward_registers<T, W, kWidth, kElements / kWidth>;
      return device::launch(
          kernel, plan.parts, dim3(plan.row.threads, plan.row.rows), stream, args);
    }
  }
  Status status = device::kInvalidValue;
  if constexpr (kIsWide<T, kWidth> || kWidth == 1) {
    status = device::kSuccess;
    if (args.grad_input.data) {
      const auto kernel = &layer_norm_backward_rows_looped<T, W, kWidth>;
      status = launch_rows(kernel, plan.row, args, stream);
    }
    if (wants_columns(args) && status == device::kSuccess) {
      const auto kernel = &layer_norm_backward_column_parts<T, kWidth>;
      status = device::launch(
          kernel, plan.parts * plan.tiles, dim3(kColumnThreads), stream, args, plan.parts);
    }
  }
  return status;
}

Status launch(const LayerNormBackward& args, Stream stream) {
  const NormBackwardPlan plan = plan_of(args);
  const DType parameters = parameter_dtype(args.input, args.weight);
  return with_types(args.input.dtype, parameters, [&](auto type, auto parameter) {
    using T = typename decltype(type)::type;
    using W = typename decltype(parameter)::type;
    Status status = with_width<T>(plan.row.width, [&](auto width) {
      return launch_layer_norm_backward<T, W, decltype(width)::value>(args, plan, stream);
    });
    if (wants_columns(args) && status == device::kSuccess) {
      const auto kernel = &layer_norm_backward_finish<AccumulatorOf<T>>;
      status =
          device::launch(kernel, ceil_div(args.cols, 32), dim3(32, 32), stream, args, plan.parts);
    }
    return status;
  });
}

}  // namespace fusedops::cuda
