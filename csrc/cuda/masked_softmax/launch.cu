// Host side of masked_softmax: picks a kernel for the arguments and launches it. The emulator
// compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include <utility>

#include "cuda/launch/cluster.h"
#include "cuda/launch/dispatch.h"
#include "cuda/masked_softmax/rows.h"
#include "cuda/masked_softmax/unaligned.h"

namespace fusedops::cuda {

// The parts of the scores that a kernel is compiled for: one of them alone, or all, with a soft cap
// or without.
int32_t parts_of(const Scores& scores, DType dtype) {
  if (scores.softcap != 0) return kCappedParts;
  if (scores.has_bounds() || scores.sinks.data != nullptr) return kAllParts;
  const bool has_mask = scores.mask.data != nullptr, has_bias = scores.bias.data != nullptr;
  if (!has_mask && !has_bias) return scores.causal.on ? kCausalPart : kNoParts;
  const Operand& operand = has_mask ? scores.mask : scores.bias;
  const bool is_alone = !scores.causal.on && has_mask != has_bias && operand.col_stride == 1;
  if (is_alone && operand.is_bool) return kBoolPart;
  return is_alone && operand.dtype == dtype ? kNumbersPart : kAllParts;
}

// Whether a row goes by the kernels of unaligned.h. Its scores are plain: they have
// neither a soft cap nor sinks nor bounds but causality, and each operand has a value for each
// column, a bool or one of the scores' dtype. The scale is positive, and no score but a visible one
// is +inf.
bool is_narrow(
    const Scores& scores, const Dropout& dropout, int64_t cols, int32_t width, DType dtype) {
  const auto allows = [&](const Operand& operand) {
    const bool is_own = operand.is_bool || operand.dtype == dtype;
    return operand.data == nullptr || (operand.col_stride == 1 && is_own);
  };
  const bool is_plain = scores.softcap == 0 && scores.sinks.data == nullptr &&
      !scores.has_bounds() && allows(scores.bias) && allows(scores.mask) && scores.scale > 0 &&
      scores.scale < INFINITY && scores.mask_value < INFINITY;
  const auto bytes = static_cast<int32_t>(size_of(dtype));
  const bool is_short = plan_rows(kPlainMaskedSoftmaxRegimes, cols, 1, bytes).elements > 0;
  return width == 1 && is_short && is_plain && dropout.seed == nullptr;
}

// f(parts, as a type). Rows of narrow vectors or doubles have kernels for all parts alone.
template <class T, int kWidth, class F>
Status with_parts(int32_t parts, F f) {
  if constexpr (kIsWide<T, kWidth>) {
    switch (parts) {
      case kNoParts:
        return f(Int<kNoParts>{});
      case kCausalPart:
        return f(Int<kCausalPart>{});
      case kBoolPart:
        return f(Int<kBoolPart>{});
      case kNumbersPart:
        return f(Int<kNumbersPart>{});
    }
  }
  return f(Int<kAllParts>{});
}

// The same for the forward pass, which alone has a soft cap.
template <class T, int kWidth, class F>
Status with_forward_parts(int32_t parts, F f) {
  if (parts == kCappedParts) return f(Int<kCappedParts>{});
  return with_parts<T, kWidth>(parts, f);
}

// launch(plan) for rows of `dtype`, whose plan of one block is given.
template <class F>
Status launch_with_clusters(const RowPlan& block, int64_t cols, DType dtype, F launch) {
  const Clusters& clusters = masked_clusters(size_of(dtype));
  return launch_plan(with_clusters(block, clusters, kNoClusters, cols, dtype), block, launch);
}

template <class In, class Out>
Status launch_narrow(const ForwardArgs& args, Stream stream) {
  const RowPlan plan = plan_rows(kPlainMaskedSoftmaxRegimes, args.cols, 1, sizeof(In));
  return with_regime<kPlainMaskedSoftmaxRegimes, In, 1>(plan, [&](auto vectors, auto threads) {
    constexpr int kVectors = decltype(vectors)::value;
    const auto kernel =
        &masked_softmax_forward_narrow<In, Out, 1, kVectors, decltype(threads)::value>;
    const dim3 block(plan.threads, plan.rows);
    return launch_items(kernel, args.rows, plan.rows * kNarrowRows<kVectors>, block, args, stream);
  });
}

template <class In, class Out, int kWidth, int kParts>
Status launch_masked_softmax_forward(const ForwardArgs& args, const RowPlan& plan, Stream stream) {
  constexpr const Regimes& kRegimes = masked_softmax_regimes(kHasAll<kParts>);
  if (plan.blocks > 1) return launch_clusters(args, plan, stream);
  if (plan.elements > 0) {
    return with_regime<kRegimes, In, kWidth>(plan, [&](auto vectors, auto threads) {
      constexpr int kVectors = decltype(vectors)::value, kThreads = decltype(threads)::value;
      const auto kernel =
          &masked_softmax_forward_registers<In, Out, kWidth, kVectors, kParts, kThreads>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  return launch_rows(&masked_softmax_forward_looped<In, Out, kWidth>, plan, args, stream);
}

Status launch(const MaskedSoftmaxForward& given, Stream stream) {
  ForwardArgs args(given);
  if (args.scores.mask.data == nullptr) args.scores.mask.is_bool = false;
  const DType dtype = args.input.dtype;
  limit_diagonal(args.scores.causal, args.cols);
  // Both operands are added: kernels look for the numbers of one in one place.
  const bool adds_mask = args.scores.mask.data != nullptr && !args.scores.mask.is_bool;
  if (adds_mask && args.scores.bias.data == nullptr) std::swap(args.scores.bias, args.scores.mask);
  const int32_t width = pick_wide_or_single(
      dtype, args.cols,
      {args.input, args.output, args.probabilities, args.scores.bias, args.scores.mask});
  const bool narrow = is_narrow(args.scores, args.dropout, args.cols, width, dtype);
  const int32_t parts = parts_of(args.scores, dtype);
  return with_types(dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    if constexpr (sizeof(In) < 8) {
      if (narrow) return launch_narrow<In, Out>(args, stream);
    }
    return with_wide_or_single<In>(width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      return with_forward_parts<In, kWidth>(parts, [&](auto parts) {
        constexpr int kParts = decltype(parts)::value;
        const Regimes& regimes = masked_softmax_regimes(kHasAll<kParts>);
        const RowPlan block = plan_rows(regimes, args.cols, kWidth, sizeof(In));
        return launch_with_clusters(block, args.cols, dtype, [&](const RowPlan& plan) {
          return launch_masked_softmax_forward<In, Out, kWidth, kParts>(args, plan, stream);
        });
      });
    });
  });
}

template <class T, class Out>
Status launch_narrow(const BackwardArgs& args, Stream stream) {
  const RowPlan plan = plan_rows(kPlainMaskedSoftmaxRegimes, args.cols, 1, sizeof(T));
  return with_regime<kPlainMaskedSoftmaxRegimes, T, 1>(plan, [&](auto vectors, auto threads) {
    constexpr int kVectors = decltype(vectors)::value;
    const auto kernel =
        &masked_softmax_backward_narrow<T, Out, 1, kVectors, decltype(threads)::value>;
    const dim3 block(plan.threads, plan.rows);
    return launch_items(kernel, args.rows, plan.rows * kNarrowRows<kVectors>, block, args, stream);
  });
}

template <class T, class Out, int kWidth, int kParts>
Status launch_masked_softmax_backward(
    const BackwardArgs& args, const RowPlan& plan, Stream stream) {
  constexpr const Regimes& kRegimes = masked_softmax_backward_regimes(kParts == kAllParts);
  if (plan.blocks > 1) return launch_clusters(args, plan, stream);
  if (plan.elements > 0) {
    return with_vectors<kRegimes, T, kWidth>(plan, [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      const auto kernel = &masked_softmax_backward_registers<T, Out, kWidth, kVectors, kParts>;
      return launch_rows(kernel, plan, args, stream);
    });
  }
  return launch_rows(&masked_softmax_backward_looped<T, Out, kWidth>, plan, args, stream);
}

Status launch(const MaskedSoftmaxBackward& given, Stream stream) {
  BackwardArgs args(given);
  // Neither what was added to the scores matters, nor a soft cap.
  args.scores.bias.data = nullptr;
  args.scores.softcap = 0;
  if (!args.scores.mask.is_bool) args.scores.mask.data = nullptr;
  if (args.scores.mask.data == nullptr) args.scores.mask.is_bool = false;
  limit_diagonal(args.scores.causal, args.cols);
  const DType dtype = args.probabilities.dtype;
  const int32_t parts = args.grad_sinks == nullptr ? parts_of(args.scores, dtype) : kAllParts;
  const int32_t width = pick_wide_or_single(
      dtype, args.cols, {args.grad_output, args.probabilities, args.grad_input, args.scores.mask});
  const bool narrow =
      args.grad_sinks == nullptr && is_narrow(args.scores, args.dropout, args.cols, width, dtype);
  return with_types(args.grad_input.dtype, dtype, [&](auto out, auto type) {
    using Out = TypeOf<decltype(out)>;
    using T = TypeOf<decltype(type)>;
    if constexpr (sizeof(T) < 8) {
      if (narrow) return launch_narrow<T, Out>(args, stream);
    }
    return with_wide_or_single<T>(width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      return with_parts<T, kWidth>(parts, [&](auto parts) {
        constexpr int kParts = decltype(parts)::value;
        // No part of numbers is left.
        if constexpr (kParts == kNumbersPart) {
          return device::kInvalidValue;
        } else {
          const Regimes& regimes = masked_softmax_backward_regimes(kParts == kAllParts);
          const RowPlan block = plan_rows(regimes, args.cols, kWidth, sizeof(T));
          return launch_with_clusters(block, args.cols, dtype, [&](const RowPlan& plan) {
            return launch_masked_softmax_backward<T, Out, kWidth, kParts>(args, plan, stream);
          });
        }
      });
    });
  });
}

}  // namespace fusedops::cuda
