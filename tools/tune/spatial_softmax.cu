// Measures softmax over a dimension that is not the last. `rows` are the positions of the other
// dimensions; up to 4096 of them are neighbours in memory.
#include "cuda/softmax/spatial_launch.cu"

#include "tune/family.h"

namespace tune {
namespace {

using namespace fusedops;
using namespace fusedops::cuda;

constexpr int64_t kMostInner = 4096;

// Returns how many positions are neighbours: the largest divisor of q.rows up to kMostInner.
int64_t inner_of(const Question& q) {
  int64_t inner = std::min(q.rows, kMostInner);
  while (q.rows % inner != 0) --inner;
  return inner;
}

ConstSlices const_slices_at(const void* data, const Question& q) {
  const int64_t inner = inner_of(q);
  return {data, q.cols * inner, inner, q.dtype};
}
Slices slices_at(void* data, const Question& q) {
  const int64_t inner = inner_of(q);
  return {data, q.cols * inner, inner, q.dtype};
}

SpatialSoftmaxForward forward_of(const Question& q, const Memory& memory) {
  const int64_t inner = inner_of(q);
  const ConstSlices input = const_slices_at(memory[0], q);
  return {input, slices_at(memory[1], q), q.rows / inner, q.cols, inner, /*log=*/false};
}

SpatialSoftmaxBackward backward_of(const Question& q, const Memory& memory) {
  const int64_t inner = inner_of(q);
  const ConstSlices grad = const_slices_at(memory[0], q);
  const ConstSlices output = const_slices_at(memory[1], q);
  return {grad, output, slices_at(memory[2], q), q.rows / inner, q.cols, inner, /*log=*/false};
}

// Spatial softmax has no list of plans to choose from. Only the incumbent, the plan that
// plan_spatial() computes, is measured.
class SpatialSoftmax final : public Family {
 public:
  std::vector<Array> arrays(const Question& q) const override {
    const Array input{tensor_bytes(q), Role::kInput},
        output{tensor_bytes(q), Role::kOutput, q.dtype};
    if (q.backward) return {input, input, output};
    return {input, output};
  }

  int64_t bytes(const Question& q) const override { return (2 + q.backward) * tensor_bytes(q); }

  Plan incumbent(const Question& q) const override {
    const int64_t inner = inner_of(q);
    const Access access(slices_at(any_address(), q));
    const int32_t width = pick_wide_or_single(q.dtype, inner, {access});
    const SpatialPlan plan = plan_spatial(
        q.cols, inner, width, size_of(q.dtype), /*tensors=*/1 + q.backward,
        device::max_shared_bytes());
    return {
        plan.width, /*elements=*/0, /*row_threads=*/plan.dim_threads, /*rows=*/plan.inner_threads};
  }

  std::vector<Plan> candidates(const Question&) const override { return {}; }

  Status launch_incumbent(const Question& q, const Memory& memory) const override {
    return q.backward ? cuda::launch(backward_of(q, memory), nullptr)
                      : cuda::launch(forward_of(q, memory), nullptr);
  }

  Status launch(const Question&, const Plan&, const Memory&) const override {
    return device::kInvalidValue;
  }
};

}  // namespace

const Family& spatial_softmax_family() {
  static const SpatialSoftmax family;
  return family;
}

}  // namespace tune
