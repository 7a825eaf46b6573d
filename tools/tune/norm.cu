// Measures LayerNorm, RMSNorm and StdNorm, with and without a residual.
#include "cuda/norm/launch.cu"

#include "tune/family.h"

namespace tune {
namespace {

using namespace fusedops;
using namespace fusedops::cuda;

bool has_residual(const Question& q) {
  return q.op == Op::kAddLayerNorm || q.op == Op::kAddRmsNorm;
}

NormKind kind_of(const Question& q) {
  if (q.op == Op::kStdNorm) return NormKind::kStd;
  return q.op == Op::kRmsNorm || q.op == Op::kAddRmsNorm ? NormKind::kRms : NormKind::kLayer;
}

// The place of each array in Memory; the optional arrays come last.
enum Forward { kInput, kOutput, kWeight, kBias, kMean, kRstd, kScratch, kResidual, kSum };
enum Backward {
  kGrad,
  kNormed,
  kGradInput,
  kGradWeight,
  kGradBias,
  kBackwardWeight,
  kBackwardMean,
  kBackwardRstd,
  kBackwardScratch,
  kGradSum
};

NormForward forward_of(const Question& q, const Memory& memory) {
  NormForward args{};
  args.kind = kind_of(q);
  args.input = const_rows_at(memory[kInput], q);
  args.output = rows_at(memory[kOutput], q);
  args.residual.dtype = args.sum.dtype = q.dtype;
  if (has_residual(q)) {
    args.residual = const_rows_at(memory[kResidual], q);
    args.sum = rows_at(memory[kSum], q);
  }
  args.weight = {memory[kWeight], q.dtype};
  args.bias = {args.kind == NormKind::kRms ? nullptr : memory[kBias], q.dtype};
  args.mean = has_mean(args.kind) ? memory[kMean] : nullptr;
  args.rstd = memory[kRstd];
  args.workspace = memory[kScratch];
  args.rows = q.rows;
  args.cols = q.cols;
  args.eps = 1e-5;
  return args;
}

NormBackward backward_of(const Question& q, const Memory& memory) {
  NormBackward args{};
  args.kind = kind_of(q);
  args.grad_output = const_rows_at(memory[kGrad], q);
  args.input = const_rows_at(memory[kNormed], q);
  args.grad_input = rows_at(memory[kGradInput], q);
  args.grad_sum.dtype = args.grad_branch.dtype = q.dtype;
  if (has_residual(q)) args.grad_sum = const_rows_at(memory[kGradSum], q);
  args.mean = has_mean(args.kind) ? memory[kBackwardMean] : nullptr;
  args.rstd = memory[kBackwardRstd];
  args.weight = {memory[kBackwardWeight], q.dtype};
  args.grad_weight = {memory[kGradWeight], q.dtype};
  args.grad_bias = {args.kind == NormKind::kRms ? nullptr : memory[kGradBias], q.dtype};
  args.workspace = memory[kBackwardScratch];
  args.rows = q.rows;
  args.cols = q.cols;
  args.eps = 1e-5;
  return args;
}

Status launch_forward(const NormForward& args, const Plan& plan) {
  const DType dtype = args.output.dtype;
  const int64_t row_bytes = args.cols * size_of(dtype);
  if (args.residual.data == nullptr) {
    return launch_candidate<NormForwardRegisters, NormForwardPartials, NormForwardApply>(
        args, dtype, row_bytes, plan);
  }
  return launch_candidate<AddNormForwardRegisters, NormForwardPartials, NormForwardApply>(
      args, dtype, 2 * row_bytes, plan);
}

// --- the plans of the backward pass -------------------------------------------------------------

// One to four partitions for each multiprocessor are measured, and half of the incumbent's number:
// for few rows, fewer partials may be faster.
constexpr int64_t kMostWaves = 4;

// Returns the incumbent, the plan that the package has for the backward pass.
Plan backward_plan(const Question& q) {
  const NormBackward args = backward_of(q, any_memory(std::vector<Array>(kGradSum + 1)));
  const NormBackwardPlan plan = plan_of(args, width_of(args), cluster_limit());
  Plan result{plan.width, plan.elements, plan.threads, plan.rows, plan.blocks};
  result.segment = plan.segments.cols;
  result.partitions = plan.partitions;
  return result;
}

// Returns a plan for each size of clusters. The number of partitions is a multiple of the clusters
// that run at once, unless there are too few rows for that.
std::vector<Plan> backward_clusters(const Question& q, int32_t width) {
  const Pass pass = has_residual(q) ? Pass::kAddNormBackward : Pass::kNormBackward;
  std::vector<Plan> plans = cluster_plans(q, pass, width, kNormBackwardThreads);
  for (Plan& plan : plans) {
    const int64_t used = cluster_multiprocessors(device::multiprocessors());
    plan.partitions = count_partitions(q.rows, /*block_rows=*/1, wave_of(used, plan.blocks));
  }
  return plans;
}

// Returns the candidates. Their threads have the numbers of elements in plans.def, which are as
// large as registers allow.
std::vector<Plan> backward_candidates(const Question& q) {
  const Plan incumbent = backward_plan(q);
  std::vector<Plan> plans = backward_clusters(q, incumbent.width);
  if (incumbent.segment > 0) return plans;
  std::vector<int64_t> counts = {std::max<int64_t>(1, incumbent.partitions / 2)};
  for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
    counts.push_back(waves * device::multiprocessors());
  }
  for (const int64_t partitions : counts) {
    if (partitions > ceil_div(q.rows, incumbent.rows)) continue;
    plans.push_back(incumbent);
    plans.back().partitions = partitions;
  }
  return plans;
}

Status launch_backward(const NormBackward& args, const Plan& plan) {
  NormBackwardPlan as_chosen{{as_row_plan(plan)}, /*segments=*/{}, plan.partitions};
  if (as_chosen.scope == Scope::kRegisters) {
    // Selects the incumbent's kernel, which may be compiled for a fixed number of threads.
    const NormBackwardPlan incumbent = plan_of(args, width_of(args), /*cluster_limit=*/1);
    as_chosen.fixed_threads = incumbent.fixed_threads;
  }
  return launch_scope(args, as_chosen, nullptr);
}

// Returns the bytes of a workspace that is large enough for the incumbent, and for the candidates,
// which have up to two floats for each column and partition.
int64_t backward_workspace(const Question& q) {
  const NormBackward args = backward_of(q, any_memory(std::vector<Array>(kGradSum + 1)));
  const int64_t most = kMostWaves * device::multiprocessors();
  return std::max(workspace_bytes(args), 2 * most * q.cols * int64_t{sizeof(float)});
}

// --- the family ---------------------------------------------------------------------------------

class Norm final : public Family {
 public:
  std::vector<Array> arrays(const Question& q) const override {
    const Array input{tensor_bytes(q), Role::kInput},
        output{tensor_bytes(q), Role::kOutput, q.dtype};
    const Array columns{q.cols * size_of(q.dtype), Role::kInput};
    const Array statistics{4 * q.rows, Role::kInput}, computed{4 * q.rows, Role::kOutput};
    std::vector<Array> arrays;
    if (q.backward) {
      const Array sums{columns.bytes, Role::kOutput, q.dtype};
      const Array scratch{backward_workspace(q), Role::kScratch};
      arrays = {input, input, output, sums, sums, columns, statistics, statistics, scratch};
      if (has_residual(q)) arrays.push_back(input);
    } else {
      const Array scratch{segments_workspace(q), Role::kScratch};
      arrays = {input, output, columns, columns, computed, computed, scratch};
      if (has_residual(q)) arrays.insert(arrays.end(), {input, output});
    }
    return arrays;
  }

  int64_t bytes(const Question& q) const override {
    const int64_t tensors = q.backward ? 3 + has_residual(q) : 2 + 2 * has_residual(q);
    return tensors * tensor_bytes(q);
  }

  Plan incumbent(const Question& q) const override {
    if (q.backward) return backward_plan(q);
    const NormForward args = forward_of(q, any_memory(arrays(q)));
    return as_plan(plan_of(args, width_of(args), cluster_limit()), q);
  }

  std::vector<Plan> candidates(const Question& q) const override {
    if (q.backward) return backward_candidates(q);
    const Pass pass = has_residual(q) ? Pass::kAddNormForward : Pass::kNormForward;
    const int32_t width = pick_width(q.dtype, q.cols, {Access(rows_at(any_address(), q))});
    std::vector<Plan> plans = register_plans(q, pass, width);
    append(plans, cluster_plans(q, pass, width, kMaxThreads));
    append(plans, segment_plans(q, width));
    return plans;
  }

  Status launch_incumbent(const Question& q, const Memory& memory) const override {
    return q.backward ? cuda::launch(backward_of(q, memory), nullptr)
                      : cuda::launch(forward_of(q, memory), nullptr);
  }

  Status launch(const Question& q, const Plan& plan, const Memory& memory) const override {
    return q.backward ? launch_backward(backward_of(q, memory), plan)
                      : launch_forward(forward_of(q, memory), plan);
  }
};

}  // namespace

const Family& norm_family() {
  static const Norm family;
  return family;
}

}  // namespace tune
