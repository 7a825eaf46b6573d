// Softmax and its logarithm over the last dimension, and softmax in two steps.
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

// f(Type<T>{}, width, as a type).
template <class F>
Status with_instance(const Question& q, int32_t width, F f) {
  return with_asked_type(q.dtype, [&](auto type) {
    return with_width<TypeOf<decltype(type)>>(width, [&](auto width) { return f(type, width); });
  });
}

// Two tensors of 64 elements have no room.
int32_t most_threads(const Question& q, int32_t width, int32_t elements) {
  int32_t most = 0;
  if (q.backward && elements > 32) return most;
  with_instance(q, width, [&](auto type, auto width) {
    using T = TypeOf<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    return with_elements<T, kWidth>(elements, [&](auto elements) {
      constexpr int kElements = decltype(elements)::value;
      most =
          q.backward ? kSoftmaxBackwardThreads<T, kWidth> : kSoftmaxThreads<T, kWidth, kElements>;
      return device::kSuccess;
    });
  });
  return most;
}

template <class T, int kWidth>
Status launch_plan(const SoftmaxForward& args, const Plan& plan) {
  if (plan.blocks > 1) {
    return launch_softmax_forward<T, T, kWidth>(args, as_row_plan(plan), nullptr);
  }
  if (plan.segment > 0) {
    if constexpr (!kIsLoopWidth<T, kWidth>)
      return device::kInvalidValue;
    else
      return launch_with_segments(
          &softmax_forward_partials<T, T, kWidth>, &softmax_forward_apply<T, T, kWidth>,
          args.cols * sizeof(T), args, plan);
  }
  if (plan.fixed > 0) {
    return with_fixed<T, kWidth>(plan, [&](auto elements, auto threads) {
      constexpr int kVectors = decltype(elements)::value / kWidth;
      constexpr int kThreads = decltype(threads)::value;
      const auto kernel = &softmax_forward_registers<T, T, kWidth, kVectors, kThreads>;
      return launch_rows(kernel, as_row_plan(plan), args, nullptr);
    });
  }
  return with_elements<T, kWidth>(plan.elements, [&](auto elements) {
    constexpr int kVectors = decltype(elements)::value / kWidth;
    return launch_rows(
        &softmax_forward_registers<T, T, kWidth, kVectors>, as_row_plan(plan), args, nullptr);
  });
}

template <class T, int kWidth>
Status launch_plan(const SoftmaxBackward& args, const Plan& plan) {
  if (plan.blocks > 1) {
    return launch_softmax_backward<T, T, kWidth>(args, as_row_plan(plan), nullptr);
  }
  if (plan.segment > 0) {
    if constexpr (!kIsLoopWidth<T, kWidth>)
      return device::kInvalidValue;
    else
      return launch_with_segments(
          &softmax_backward_partials<T, T, kWidth>, &softmax_backward_apply<T, T, kWidth>,
          2 * args.cols * sizeof(T), args, plan);
  }
  if (plan.fixed > 0) {
    return with_fixed<T, kWidth>(plan, [&](auto elements, auto threads) {
      constexpr int kVectors = decltype(elements)::value / kWidth;
      constexpr int kThreads = decltype(threads)::value;
      const auto kernel = &softmax_backward_registers<T, T, kWidth, kVectors, kThreads>;
      return launch_rows(kernel, as_row_plan(plan), args, nullptr);
    });
  }
  return with_elements<T, kWidth>(plan.elements, [&](auto elements) -> Status {
    constexpr int kElements = decltype(elements)::value;
    if constexpr (kElements <= 32) {
      const auto kernel = &softmax_backward_registers<T, T, kWidth, kElements / kWidth>;
      return launch_rows(kernel, as_row_plan(plan), args, nullptr);
    }
    return device::kInvalidValue;
  });
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
      return {width, 0, kSegmentThreads, 1, 1, 0, plan_segments(q.cols).cols};
    }
    if (q.backward) {
      const SoftmaxBackward args = backward_of(q, memory);
      return as_plan(kSoftmaxBackwardRegimes, with_clusters(args, plan_of(args)), q);
    }
    const SoftmaxForward args = forward_of(q, memory);
    return as_plan(kSoftmaxRegimes, with_clusters(args, plan_of(args, width_of(args))), q);
  }

  std::vector<Plan> candidates(const Question& q) const override {
    if (!is_planned(q)) return {};
    const int32_t width = pick_width(q.dtype, q.cols, {Access(rows_at(any_address(), q))});
    const auto most = [&](int32_t elements) { return most_threads(q, width, elements); };
    std::vector<Plan> plans = register_plans(q, width, most);
    const Clusters& clusters =
        q.backward ? kSoftmaxBackwardClusters : softmax_clusters(size_of(q.dtype));
    append(plans, fixed_plans(q, width));
    append(
        plans, cluster_plans(q, width, clusters, kNarrowClusters, most_cluster_threads(clusters)));
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
    return with_instance(q, plan.width, [&](auto type, auto width) {
      using T = TypeOf<decltype(type)>;
      constexpr int kWidth = decltype(width)::value;
      return q.backward ? launch_plan<T, kWidth>(backward_of(q, memory), plan)
                        : launch_plan<T, kWidth>(forward_of(q, memory), plan);
    });
  }

 private:
  // The two steps have one plan for all rows.
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
