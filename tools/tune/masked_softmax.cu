// Measures masked softmax: with a bool mask that all rows share, causality, or causality and a cap.
#include "cuda/masked_softmax/launch.cu"

#include "tune/family.h"

namespace tune {
namespace {

using namespace fusedops;
using namespace fusedops::cuda;

bool is_capped(const Question& q) { return q.op == Op::kCappedSoftmax; }

// Causal scores have as many queries as columns, as in attention.
Scores scores_of(const Question& q, const void* mask) {
  Scores scores{};
  scores.dims = {1, {q.rows}};
  scores.scale = 0.125;
  scores.mask_value = -10000.0;
  scores.causal = {/*on=*/q.op != Op::kPaddedSoftmax, /*queries=*/q.cols, /*diagonal=*/0};
  if (is_capped(q)) scores.softcap = 50;  // as in Gemma 2
  if (q.op == Op::kPaddedSoftmax)
    scores.mask = {mask, /*strides=*/{}, /*col_stride=*/1, /*is_bool=*/true, q.dtype};
  return scores;
}

MaskedSoftmaxForward forward_of(const Question& q, const Memory& memory) {
  const Rows none{/*data=*/nullptr, /*spacing=*/{0}, q.dtype};
  return {
      const_rows_at(memory[0], q),
      rows_at(memory[1], q),
      none,
      scores_of(q, memory[2]),
      /*dropout=*/{},
      q.rows,
      q.cols,
      /*zero_masked_rows=*/false};
}

MaskedSoftmaxBackward backward_of(const Question& q, const Memory& memory) {
  const ConstRows grad = const_rows_at(memory[0], q);
  const ConstRows probabilities = const_rows_at(memory[1], q);
  return {grad,   probabilities, rows_at(memory[2], q), scores_of(q, memory[3]), /*dropout=*/{},
          q.rows, q.cols};
}

// Launches the kernel of clusters or, for a plan of single blocks, one of three: All if vectors are
// shorter than 16 bytes, else Causal or Bool, by what hides columns.
template <class All, class Causal, class Bool, class Args>
Status launch_masked(const Args& args, DType dtype, const RowPlan& row) {
  if (row.scope == Scope::kCluster) return launch_clusters(args, row, nullptr);
  auto kernel = find_kernel<All, CandidatePlans>(dtype, row);
  if (is_wide(row.width, dtype)) {
    kernel = args.scores.causal.on ? find_kernel<Causal, CandidatePlans>(dtype, row)
                                   : find_kernel<Bool, CandidatePlans>(dtype, row);
  }
  return launch_rows(kernel, row, args, nullptr);
}

class MaskedSoftmax final : public Family {
 public:
  // Forward: input, output, mask. Backward: grad_output, probabilities (zeros behind the diagonal
  // if causal), grad_input, mask.
  std::vector<Array> arrays(const Question& q) const override {
    const Array input{tensor_bytes(q), Role::kInput},
        output{tensor_bytes(q), Role::kOutput, q.dtype};
    const Array mask{q.cols, Role::kBools};
    const Role role = q.op == Op::kPaddedSoftmax ? Role::kInput : Role::kCausal;
    const Array probabilities{tensor_bytes(q), role};
    if (q.backward) return {input, probabilities, output, mask};
    return {input, output, mask};
  }

  // Causal rows read half of their inputs on average.
  int64_t bytes(const Question& q) const override {
    const int64_t inputs = (1 + q.backward) * tensor_bytes(q);
    return (q.op == Op::kPaddedSoftmax ? inputs : inputs / 2) + tensor_bytes(q);
  }

  // Returns the plan of the package. A row that is too long for the registers of a block or cluster
  // has the plan of one block that walks along it.
  Plan incumbent(const Question& q) const override {
    const int32_t width = width_of(q);
    const RowPlan plain =
        plan_unaligned(scores_of(q, any_address()), /*dropout=*/{}, q.cols, width, q.dtype);
    if (plain.elements > 0) return as_plan(plain, q);
    const Pass pass = is_capped(q) ? Pass::kAnyMasked : pass_of(q, width);
    return as_plan(plan_rows(pass, q.cols, width, size_of(q.dtype), cluster_limit()), q);
  }

  // Scores with a soft cap share the plans of Pass::kAnyMasked with scores of many other forms.
  // Their times alone cannot decide these plans, so they have no candidates.
  std::vector<Plan> candidates(const Question& q) const override {
    if (is_capped(q)) return {};
    const int32_t width = width_of(q);
    std::vector<Plan> plans = register_plans(q, pass_of(q, width), width);
    append(plans, cluster_plans(q, Pass::kAnyMasked, width, kMaskedClusterThreads));
    return plans;
  }

  Status launch_incumbent(const Question& q, const Memory& memory) const override {
    return q.backward ? cuda::launch(backward_of(q, memory), nullptr)
                      : cuda::launch(forward_of(q, memory), nullptr);
  }

  Status launch(const Question& q, const Plan& plan, const Memory& memory) const override {
    const RowPlan row = as_row_plan(plan);
    if (q.backward) {
      return launch_masked<MaskedBackwardAll, MaskedBackwardCausal, MaskedBackwardBool>(
          prepared(backward_of(q, memory)), q.dtype, row);
    }
    return launch_masked<MaskedForwardAll, MaskedForwardCausal, MaskedForwardBool>(
        prepared(forward_of(q, memory)), q.dtype, row);
  }

 private:
  static Pass pass_of(const Question& q, int32_t width) {
    if (!is_wide(width, q.dtype)) return Pass::kAnyMasked;
    return q.backward ? Pass::kMaskedBackward : Pass::kMaskedForward;
  }

  static int32_t width_of(const Question& q) {
    return pick_wide_or_single(q.dtype, q.cols, {Access(rows_at(any_address(), q))});
  }
};

}  // namespace

const Family& masked_softmax_family() {
  static const MaskedSoftmax family;
  return family;
}

}  // namespace tune
