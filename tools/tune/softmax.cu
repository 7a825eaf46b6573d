// Measures softmax and its logarithm over the last dimension, and softmax in two steps.
#include "cuda/softmax/launch.cu"

#include "tune/family.h"

namespace tune {
namespace {

using namespace fusedops;
using namespace fusedops::cuda;

bool is_log(const Question& q) { return q.op == Op::kLogSoftmax; }

SoftmaxForward forward_of(const Question& q, const Memory& memory) {
  return {const_rows_at(memory[0], q), rows_at(memory[1], q), memory[2], q.rows, q.cols, is_log(q)};
}

SoftmaxBackward backward_of(const Question& q, const Memory& memory) {
  const ConstRows grad = const_rows_at(memory[0], q), output = const_rows_at(memory[1], q);
  return {grad, output, rows_at(memory[2], q), memory[3], q.rows, q.cols, is_log(q)};
}

SoftmaxStatistics statistics_of(const Question& q, const Memory& memory) {
  return {const_rows_at(memory[0], q), memory[1], memory[2], memory[3], q.rows, q.cols};
}

SoftmaxApply apply_of(const Question& q, const Memory& memory) {
  return {const_rows_at(memory[0], q), rows_at(memory[1], q), memory[2], memory[3], q.rows, q.cols};
}

class Softmax final : public Family {
 public:
  std::vector<Array> arrays(const Question& q) const override {
    const Array input{tensor_bytes(q), Role::kInput},
        output{tensor_bytes(q), Role::kOutput, q.dtype};
    const Array scratch{segments_workspace(q) + 4 * q.rows, Role::kScratch};
    const Array row_results{4 * q.rows, Role::kOutput}, row_inputs{4 * q.rows, Role::kInput};
    if (q.op == Op::kSoftmaxStatistics) return {input, row_results, row_results, scratch};
    if (q.op == Op::kSoftmaxApply) return {input, output, row_inputs, row_inputs};
    if (q.backward) return {input, input, output, scratch};
    return {input, output, scratch};
  }

  int64_t bytes(const Question& q) const override {
    return (q.op == Op::kSoftmaxStatistics ? 1 : q.backward ? 3 : 2) * tensor_bytes(q);
  }

  Plan incumbent(const Question& q) const override {
    const Memory memory = any_memory(arrays(q));
    if (!is_planned(q)) {
      const int32_t width =
          pick_wide_or_single(q.dtype, q.cols, {Access(rows_at(any_address(), q))});
      return {width,        /*elements=*/0,   kSegmentThreads,           /*rows=*/1,
              /*blocks=*/1, /*partitions=*/0, plan_segments(q.cols).cols};
    }
    if (q.backward) {
      const SoftmaxBackward args = backward_of(q, memory);
      return as_plan(plan_of(args, cuda::width_of(args), cluster_limit()), q);
    }
    const SoftmaxForward args = forward_of(q, memory);
    return as_plan(plan_of(args, cuda::width_of(args), cluster_limit()), q);
  }

  std::vector<Plan> candidates(const Question& q) const override {
    if (!is_planned(q)) return {};
    const Pass pass = q.backward ? Pass::kSoftmaxBackward : Pass::kSoftmaxForward;
    const int32_t width = pick_width(q.dtype, q.cols, {Access(rows_at(any_address(), q))});
    std::vector<Plan> plans = register_plans(q, pass, width);
    append(plans, cluster_plans(q, pass, width, kMaxThreads));
    append(plans, segment_plans(q, width));
    return plans;
  }

  Status launch_incumbent(const Question& q, const Memory& memory) const override {
    if (q.op == Op::kSoftmaxStatistics) return cuda::launch(statistics_of(q, memory), nullptr);
    if (q.op == Op::kSoftmaxApply) return cuda::launch(apply_of(q, memory), nullptr);
    if (q.backward) return cuda::launch(backward_of(q, memory), nullptr);
    return cuda::launch(forward_of(q, memory), nullptr);
  }

  Status launch(const Question& q, const Plan& plan, const Memory& memory) const override {
    const int64_t row_bytes = q.cols * size_of(q.dtype);
    if (q.backward) {
      return launch_candidate<
          SoftmaxBackwardRegisters, SoftmaxBackwardPartials, SoftmaxBackwardApply>(
          backward_of(q, memory), q.dtype, 2 * row_bytes, plan);
    }
    return launch_candidate<SoftmaxForwardRegisters, SoftmaxForwardPartials, SoftmaxForwardApply>(
        forward_of(q, memory), q.dtype, row_bytes, plan, RowStatistics{});
  }

 private:
  // Whether plans.def has plans of the operator. Each step of softmax in two steps has one plan for
  // all rows.
  static bool is_planned(const Question& q) {
    return q.op != Op::kSoftmaxStatistics && q.op != Op::kSoftmaxApply;
  }
};

}  // namespace

const Family& softmax_family() {
  static const Softmax family;
  return family;
}

}  // namespace tune
