// Masked softmax: a bool mask that all rows share, causality, or causality and a soft cap.
#include "cuda/masked_softmax/launch.cu"

#include "tune/family.h"

namespace tune {
namespace {

using namespace fusedops;
using namespace fusedops::cuda;

bool is_capped(const Question& q) { return q.op == Op::kCappedSoftmax; }

// The queries of a causal row: as many as there are columns, in attention.
Scores scores_of(const Question& q, const void* mask) {
  Scores scores{};
  scores.dims = {1, {q.rows}};
  scores.scale = 0.125;
  scores.mask_value = -10000.0;
  scores.causal = {q.op != Op::kPaddedSoftmax, q.cols, 0};
  if (is_capped(q)) scores.softcap = 50;  // as in Gemma 2
  if (q.op == Op::kPaddedSoftmax) scores.mask = {mask, {}, 1, true, q.dtype};
  return scores;
}

MaskedSoftmaxForward forward_of(const Question& q, const Memory& memory) {
  const Rows none{nullptr, {0}, q.dtype};
  return {
      const_rows_at(memory[0], q),
      rows_at(memory[1], q),
      none,
      scores_of(q, memory[2]),
      {},
      q.rows,
      q.cols,
      false};
}

MaskedSoftmaxBackward backward_of(const Question& q, const Memory& memory) {
  const ConstRows grad = const_rows_at(memory[0], q);
  const ConstRows probabilities = const_rows_at(memory[1], q);
  return {grad, probabilities, rows_at(memory[2], q), scores_of(q, memory[3]), {}, q.rows, q.cols};
}

// Whether the tables choose a kernel of masked_softmax_narrow.h.
bool is_narrow(const Question& q, int32_t width) {
  const auto bytes = static_cast<int32_t>(size_of(q.dtype));
  const bool is_short = plan_rows(kPlainMaskedSoftmaxRegimes, q.cols, 1, bytes).elements > 0;
  return width == 1 && is_short && !is_capped(q);
}

const Regimes& regimes_of(const Question& q, int32_t width) {
  if (is_narrow(q, width)) return kPlainMaskedSoftmaxRegimes;
  const bool any_parts = is_capped(q) || !is_wide(width, q.dtype);
  return q.backward ? masked_softmax_backward_regimes(any_parts)
                    : masked_softmax_regimes(any_parts);
}

// f(Type<T>{}, width, parts of the scores, the last two as types). Rows of narrow vectors have
// kernels for all parts alone.
template <class F>
Status with_instance(const Question& q, int32_t width, F f) {
  return with_asked_type(q.dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    return with_wide_or_single<T>(width, [&](auto width) {
      if constexpr (!kIsWide<T, decltype(width)::value>)
        return f(type, width, Int<kAllParts>{});
      else if (q.op == Op::kCausalSoftmax)
        return f(type, width, Int<kCausalPart>{});
      else
        return f(type, width, Int<kBoolPart>{});
    });
  });
}

// Whether a candidate has room in the registers of its largest block: with more than 64 bytes a
// thread, or two tensors of more than 32, only forward kernels of 16 bits have.
template <class T>
constexpr bool has_room(bool backward, int elements) {
  return elements * sizeof(T) <= 64 ? !backward || elements <= 16 : !backward && sizeof(T) == 2;
}

int32_t most_threads(const Question& q, int32_t width, int32_t elements) {
  int32_t most = 0;
  with_instance(q, width, [&](auto type, auto width, auto parts) {
    using T = TypeOf<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    constexpr bool kAnyParts = decltype(parts)::value == kAllParts;
    return with_elements<T, kWidth>(elements, [&](auto elements) {
      constexpr int kElements = decltype(elements)::value;
      if (has_room<T>(q.backward, kElements)) {
        most = kMaskedSoftmaxThreads<T, kWidth, kElements, kAnyParts>;
      }
      return device::kSuccess;
    });
  });
  return most;
}

template <class T, int kWidth, int kParts>
Status launch_plan(const ForwardArgs& args, const Plan& plan) {
  if (plan.blocks > 1) {
    return launch_masked_softmax_forward<T, T, kWidth, kParts>(args, as_row_plan(plan), nullptr);
  }
  if (plan.fixed > 0) {
    return with_fixed<T, kWidth>(plan, [&](auto elements, auto threads) -> Status {
      constexpr int kElements = decltype(elements)::value, kThreads = decltype(threads)::value;
      if constexpr (kParts != kAllParts && has_room<T>(false, kElements)) {
        const auto kernel =
            &masked_softmax_forward_registers<T, T, kWidth, kElements / kWidth, kParts, kThreads>;
        return launch_rows(kernel, as_row_plan(plan), args, nullptr);
      }
      return device::kInvalidValue;
    });
  }
  return with_elements<T, kWidth>(plan.elements, [&](auto elements) -> Status {
    constexpr int kElements = decltype(elements)::value;
    if constexpr (has_room<T>(false, kElements)) {
      const auto kernel =
          &masked_softmax_forward_registers<T, T, kWidth, kElements / kWidth, kParts>;
      return launch_rows(kernel, as_row_plan(plan), args, nullptr);
    }
    return device::kInvalidValue;
  });
}

template <class T, int kWidth, int kParts>
Status launch_plan(const BackwardArgs& args, const Plan& plan) {
  if (plan.blocks > 1) {
    return launch_masked_softmax_backward<T, T, kWidth, kParts>(args, as_row_plan(plan), nullptr);
  }
  return with_elements<T, kWidth>(plan.elements, [&](auto elements) -> Status {
    constexpr int kElements = decltype(elements)::value;
    if constexpr (has_room<T>(true, kElements)) {
      const auto kernel =
          &masked_softmax_backward_registers<T, T, kWidth, kElements / kWidth, kParts>;
      return launch_rows(kernel, as_row_plan(plan), args, nullptr);
    }
    return device::kInvalidValue;
  });
}

class MaskedSoftmax final : public Family {
 public:
  std::vector<Array> arrays(const Question& q) const override {
    const Array input{tensor_bytes(q), Role::kInput},
        output{tensor_bytes(q), Role::kOutput, q.dtype};
    const Array mask{q.cols, Role::kBools};
    if (q.backward) return {input, input, output, mask};
    return {input, output, mask};
  }

  // A causal row does not read half of its inputs.
  int64_t bytes(const Question& q) const override {
    const int64_t inputs = (1 + q.backward) * tensor_bytes(q);
    return (q.op == Op::kPaddedSoftmax ? inputs : inputs / 2) + tensor_bytes(q);
  }

  Plan incumbent(const Question& q) const override {
    const int32_t width = width_of(q);
    const Regimes& regimes = regimes_of(q, width);
    const RowPlan block = plan_rows(regimes, q.cols, width, size_of(q.dtype));
    const Clusters& clusters = masked_clusters(size_of(q.dtype));
    const RowPlan plan = with_clusters(block, clusters, kNoClusters, q.cols, q.dtype);
    // Longer rows are walked along by one block.
    Plan result{plan.width, plan.elements, plan.threads, plan.rows, plan.blocks};
    result.fixed = fixed_threads(regimes, plan, q.dtype);
    return result;
  }

  // A soft cap has the table of scores of any parts, which it cannot decide alone.
  std::vector<Plan> candidates(const Question& q) const override {
    if (is_capped(q)) return {};
    const int32_t width = width_of(q);
    const auto most = [&](int32_t elements) { return most_threads(q, width, elements); };
    std::vector<Plan> plans = register_plans(q, width, most);
    append(
        plans,
        cluster_plans(
            q, width, masked_clusters(size_of(q.dtype)), kNoClusters, kMaskedClusterThreads));
    if (q.backward || !is_wide(width, q.dtype)) return plans;
    for (const Plan& plan : fixed_plans(q, width)) {
      if (most(plan.elements) > 0) plans.push_back(plan);
    }
    return plans;
  }

  Status launch_incumbent(const Question& q, const Memory& memory) const override {
    return q.backward ? cuda::launch(backward_of(q, memory), nullptr)
                      : cuda::launch(forward_of(q, memory), nullptr);
  }

  Status launch(const Question& q, const Plan& plan, const Memory& memory) const override {
    return with_instance(q, plan.width, [&](auto type, auto width, auto parts) {
      using T = TypeOf<decltype(type)>;
      constexpr int kWidth = decltype(width)::value, kParts = decltype(parts)::value;
      if (q.backward) {
        return launch_plan<T, kWidth, kParts>(BackwardArgs(backward_of(q, memory)), plan);
      }
      return launch_plan<T, kWidth, kParts>(ForwardArgs(forward_of(q, memory)), plan);
    });
  }

 private:
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
