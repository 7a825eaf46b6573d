// The host side of masked_softmax picks a kernel for the arguments and launches it. The emulator
// compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include <utility>

#include "cuda/launch/cluster.h"
#include "cuda/masked_softmax/kernels.h"

namespace fusedops::cuda {

// Returns the terms of the kernel for these scores: none, one term alone, or all, with or without a
// soft cap. Doubles, and unaligned rows outside of unaligned.h, only have kernels for all terms.
int32_t terms_of(const Scores& scores, DType dtype, int32_t width) {
  if (scores.softcap != 0) return kCappedTerms;
  const bool is_wide = width * size_of(dtype) == kMaxVectorBytes;
  if (!is_wide || scores.has_bounds() || scores.sinks.data != nullptr) return kAllTerms;
  const bool has_mask = scores.mask.data != nullptr, has_bias = scores.bias.data != nullptr;
  if (!has_mask && !has_bias) return scores.causal.on ? kCausalTerm : kNoTerms;
  const Operand& operand = has_mask ? scores.mask : scores.bias;
  const bool is_alone = !scores.causal.on && has_mask != has_bias && operand.col_stride == 1;
  if (is_alone && operand.is_bool) return kBoolTerm;
  return is_alone && operand.dtype == dtype ? kNumbersTerm : kAllTerms;
}

// Returns whether the kernels of unaligned.h take these scores: no soft cap, no sinks, no bounds
// but causality; operands with a value for each column, bool or in the scores' dtype; a finite
// scale, positive also as a float; and a mask_value below +inf.
bool is_plain(const Scores& scores, DType dtype) {
  const auto allows = [&](const Operand& operand) {
    const bool is_own = operand.is_bool || operand.dtype == dtype;
    return operand.data == nullptr || (operand.col_stride == 1 && is_own);
  };
  return scores.softcap == 0 && scores.sinks.data == nullptr && !scores.has_bounds() &&
      allows(scores.bias) && allows(scores.mask) && float(scores.scale) > 0 &&
      scores.scale < INFINITY && scores.mask_value < INFINITY;
}

// Returns the plan of the kernels of unaligned.h. Its `elements` are 0 if those kernels do not take
// the rows.
RowPlan plan_unaligned(
    const Scores& scores, const Dropout& dropout, int64_t cols, int32_t width, DType dtype) {
  const bool is_taken = width == 1 && is_plain(scores, dtype) && dropout.seed == nullptr;
  return is_taken ? plan_rows(Pass::kPlainMasked, cols, width, size_of(dtype), /*cluster_limit=*/1)
                  : RowPlan{};
}

inline bool has_all(int32_t terms) { return (terms & kAllTerms) == kAllTerms; }

// --- forward ------------------------------------------------------------------------------------

inline int32_t width_of(const ForwardArgs& args) {
  return pick_wide_or_single(
      args.input.dtype, args.cols,
      {args.input, args.output, args.probabilities, args.scores.bias, args.scores.mask});
}

inline RowPlan plan_of(const ForwardArgs& args, int32_t width, int32_t cluster_limit) {
  const DType dtype = args.input.dtype;
  const bool any = has_all(terms_of(args.scores, dtype, width));
  const Pass pass = any ? Pass::kAnyMasked : Pass::kMaskedForward;
  return plan_rows(pass, args.cols, width, size_of(dtype), cluster_limit);
}

// Returns the kernel for these terms that holds a row in the registers of one block.
FunctionOf<MaskedForwardAll> forward_registers(int32_t terms, DType dtype, const RowPlan& plan) {
  return terms == kNoTerms    ? find_kernel<MaskedForwardNoTerms>(dtype, plan)
      : terms == kCausalTerm  ? find_kernel<MaskedForwardCausal>(dtype, plan)
      : terms == kBoolTerm    ? find_kernel<MaskedForwardBool>(dtype, plan)
      : terms == kNumbersTerm ? find_kernel<MaskedForwardNumbers>(dtype, plan)
      : terms == kCappedTerms ? find_kernel<MaskedForwardCapped>(dtype, plan)
                              : find_kernel<MaskedForwardAll>(dtype, plan);
}

Status launch_scope(const ForwardArgs& args, const RowPlan& plan, Stream stream) {
  if (plan.scope == Scope::kCluster) return launch_clusters(args, plan, stream);
  const DType dtype = args.input.dtype;
  const auto kernel = plan.scope == Scope::kLooped
      ? find_kernel<MaskedForwardLooped>(dtype, plan)
      : forward_registers(terms_of(args.scores, dtype, plan.width), dtype, plan);
  return launch_rows(kernel, plan, args, stream);
}

// Returns the arguments in the form that kernels take: diagonals are limited, and a mask of numbers
// takes the place of the bias if there is no bias.
ForwardArgs prepared(const MaskedSoftmaxForward& unprepared) {
  ForwardArgs args(unprepared);
  if (args.scores.mask.data == nullptr) args.scores.mask.is_bool = false;
  limit_diagonal(args.scores.causal, args.cols);
  // A mask of numbers is added as a bias is. Kernels for one such term (kNumbersTerm) read `bias`.
  const bool adds_mask = args.scores.mask.data != nullptr && !args.scores.mask.is_bool;
  if (adds_mask && args.scores.bias.data == nullptr) std::swap(args.scores.bias, args.scores.mask);
  return args;
}

// --- backward -----------------------------------------------------------------------------------

inline int32_t width_of(const BackwardArgs& args) {
  return pick_wide_or_single(
      args.probabilities.dtype, args.cols,
      {args.grad_output, args.probabilities, args.grad_input, args.scores.mask});
}

inline int32_t terms_of(const BackwardArgs& args, int32_t width) {
  if (args.grad_sinks != nullptr) return kAllTerms;
  return terms_of(args.scores, args.probabilities.dtype, width);
}

inline RowPlan plan_of(const BackwardArgs& args, int32_t width, int32_t cluster_limit) {
  const bool any = terms_of(args, width) == kAllTerms;
  const Pass pass = any ? Pass::kAnyMasked : Pass::kMaskedBackward;
  return plan_rows(pass, args.cols, width, size_of(args.probabilities.dtype), cluster_limit);
}

FunctionOf<MaskedBackwardAll> backward_registers(int32_t terms, DType dtype, const RowPlan& plan) {
  return terms == kNoTerms   ? find_kernel<MaskedBackwardNoTerms>(dtype, plan)
      : terms == kCausalTerm ? find_kernel<MaskedBackwardCausal>(dtype, plan)
      : terms == kBoolTerm   ? find_kernel<MaskedBackwardBool>(dtype, plan)
                             : find_kernel<MaskedBackwardAll>(dtype, plan);
}

Status launch_scope(const BackwardArgs& args, const RowPlan& plan, Stream stream) {
  if (plan.scope == Scope::kCluster) return launch_clusters(args, plan, stream);
  const DType dtype = args.probabilities.dtype;
  const auto kernel = plan.scope == Scope::kLooped
      ? find_kernel<MaskedBackwardLooped>(dtype, plan)
      : backward_registers(terms_of(args, plan.width), dtype, plan);
  return launch_rows(kernel, plan, args, stream);
}

// Returns the arguments with limited diagonals, and without what gradient kernels do not use: the
// terms that are added to the scores, and the soft cap.
BackwardArgs prepared(const MaskedSoftmaxBackward& unprepared) {
  BackwardArgs args(unprepared);
  args.scores.bias.data = nullptr;
  args.scores.softcap = 0;
  if (!args.scores.mask.is_bool) args.scores.mask.data = nullptr;
  if (args.scores.mask.data == nullptr) args.scores.mask.is_bool = false;
  limit_diagonal(args.scores.causal, args.cols);
  return args;
}

// --- both ---------------------------------------------------------------------------------------

// Launches prepared arguments: rows without gradients of sinks by a kernel of unaligned.h, if one
// takes them, whose threads have rows_of_thread() rows each, and other rows by their plan.
template <class Unaligned, class Args>
Status launch_prepared(const Args& args, DType dtype, bool wants_sinks, Stream stream) {
  const int32_t width = width_of(args);
  const RowPlan plan = plan_unaligned(args.scores, args.dropout, args.cols, width, dtype);
  if (wants_sinks || plan.elements == 0) {
    return launch_plan<RowPlan>(args, width, plan_of, stream);
  }
  const dim3 threads(plan.threads, plan.rows);
  const int32_t rows = plan.rows * rows_of_thread(plan.elements);
  return launch_items(find_kernel<Unaligned>(dtype, plan), args.rows, rows, threads, args, stream);
}

Status launch(const MaskedSoftmaxForward& unprepared, Stream stream) {
  const ForwardArgs args = prepared(unprepared);
  const DType dtype = args.input.dtype;
  if (!is_same_or_wider(args.output.dtype, dtype)) return device::kInvalidValue;
  return launch_prepared<MaskedForwardUnaligned>(args, dtype, /*wants_sinks=*/false, stream);
}

Status launch(const MaskedSoftmaxBackward& unprepared, Stream stream) {
  const BackwardArgs args = prepared(unprepared);
  const DType dtype = args.probabilities.dtype;
  if (!is_same_or_wider(dtype, args.grad_input.dtype)) return device::kInvalidValue;
  return launch_prepared<MaskedBackwardUnaligned>(args, dtype, args.grad_sinks != nullptr, stream);
}

}  // namespace fusedops::cuda
