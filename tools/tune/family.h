// A family of kernels as the tool sees it: the arrays that a question needs, the plan that the
// list of cuda/launch/plans.def has, the other plans, and their launches.
//
// Each family includes its source in csrc/cuda, so that the tool records the plans that the package
// launches. Candidates are found in the same way, but in a list of their own.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "cuda/block/device.h"
#include "cuda/launch/cluster.h"
#include "cuda/launch/kernels.h"
#include "cuda/launch/plan.h"
#include "tune/question.h"

namespace tune {

using fusedops::device::Status;

// kCausal: probabilities that are zeros behind the diagonal, because the kernels check that.
enum class Role { kInput, kBools, kCausal, kOutput, kScratch };

struct Array {
  int64_t bytes;
  Role role;
  DType dtype = DType::kFloat32;  // of an output, for its comparison
};

// The arrays of a question in the order of Family::arrays(), in device memory.
using Memory = std::vector<void*>;

class Family {
 public:
  virtual ~Family() = default;
  virtual std::vector<Array> arrays(const Question& question) const = 0;
  // Returns the bytes that have to move at least: each row that is read or written, once.
  virtual int64_t bytes(const Question& question) const = 0;
  virtual Plan incumbent(const Question& question) const = 0;
  virtual std::vector<Plan> candidates(const Question& question) const = 0;
  virtual Status launch_incumbent(const Question& question, const Memory& memory) const = 0;
  virtual Status launch(const Question& question, const Plan& plan, const Memory& memory) const = 0;
};

const Family& softmax_family();
const Family& masked_softmax_family();
const Family& spatial_softmax_family();
const Family& norm_family();

inline const Family& family_of(Op op) {
  if (op <= Op::kSoftmaxApply) return softmax_family();
  if (op <= Op::kCappedSoftmax) return masked_softmax_family();
  return op == Op::kSpatialSoftmax ? spatial_softmax_family() : norm_family();
}

// --- what families share ------------------------------------------------------------------------

inline int64_t tensor_bytes(const Question& q) { return q.rows * q.cols * size_of(q.dtype); }

inline fusedops::ConstRows const_rows_at(const void* data, const Question& q) {
  return {data, {q.cols}, q.dtype};
}
inline fusedops::Rows rows_at(void* data, const Question& q) { return {data, {q.cols}, q.dtype}; }

// Returns an address that is aligned as allocations are, for arguments by which a launch is planned
// but not made.
inline void* any_address() { return reinterpret_cast<void*>(uintptr_t{256}); }
inline Memory any_memory(const std::vector<Array>& arrays) {
  return Memory(arrays.size(), any_address());
}

inline bool is_wide(int32_t width, DType dtype) {
  return width * size_of(dtype) == fusedops::cuda::kMaxVectorBytes;
}

// Returns a plan of the package in the form of the tool; as_row_plan() does the reverse.
inline Plan as_plan(const fusedops::cuda::RowPlan& plan, const Question& q) {
  using namespace fusedops::cuda;
  Plan result{plan.width, plan.elements, plan.threads, plan.rows, plan.blocks};
  result.fixed = plan.fixed_threads;
  if (plan.scope != Scope::kSegments) return result;
  result.row_threads = kSegmentThreads;
  result.segment = plan_segments(q.cols).cols;
  return result;
}

inline fusedops::cuda::RowPlan as_row_plan(const Plan& plan) {
  using fusedops::cuda::Scope;
  const Scope scope = plan.blocks > 1 ? Scope::kCluster
      : plan.segment > 0              ? Scope::kSegments
                                      : Scope::kRegisters;
  return {scope, plan.width, plan.elements, plan.fixed, plan.row_threads, plan.rows, plan.blocks};
}

// The kernels that are measured beside those of the package, for find_kernel().
inline constexpr fusedops::cuda::ListedPlan kCandidates[] = {
#define REGISTERS(pass, vectors, cols, elements, threads) \
  {fusedops::cuda::Pass::pass,                            \
   fusedops::cuda::Vectors::vectors,                      \
   fusedops::cuda::Scope::kRegisters,                     \
   cols,                                                  \
   elements,                                              \
   threads,                                               \
   1},
#include "tune/candidates.def"
#undef REGISTERS
};
struct CandidatePlans {
  static constexpr const auto& kList = kCandidates;
};

// The threads of a block that has several short rows.
inline constexpr int32_t kBlockThreads[] = {128, 256};
inline constexpr int32_t kClusterSizes[] = {2, 4, 8, 16};
inline constexpr int32_t kSegments[] = {2048, 4096, 8192, 16384, 65536};  // columns
inline constexpr int32_t kMostSegments = 4096;                            // of a row

inline void append(std::vector<Plan>& plans, const std::vector<Plan>& more) {
  plans.insert(plans.end(), more.begin(), more.end());
}

// Returns the plans that hold a row in one block's registers. A kernel that is compiled for a fixed
// number of threads is left out unless the row is longer than half of the longest that it holds.
inline std::vector<Plan> register_plans(
    const Question& q, fusedops::cuda::Pass pass, int32_t width) {
  using namespace fusedops::cuda;
  std::vector<Plan> plans;
  const auto bytes = static_cast<int32_t>(size_of(q.dtype));
  for (const ListedPlan& listed : plans_of(pass, kCandidates)) {
    const int32_t plan_width = width_in(listed, width, bytes);
    if (plan_width == 0 || q.cols > listed.max_cols) continue;
    if (listed.threads > 0 && 2 * q.cols <= listed.max_cols) continue;
    for (const int32_t block : kBlockThreads) {
      const RowPlan plan = plan_from(listed, q.cols, plan_width, bytes, block);
      const bool is_new = block == kBlockThreads[0] || (plan.rows > 1 && listed.threads == 0);
      if (is_new) plans.push_back(as_plan(plan, q));
    }
  }
  return plans;
}

// Returns the elements of a thread in the clusters of a pass, or 0 if it has no clusters.
inline int32_t cluster_elements(fusedops::cuda::Pass pass, int32_t width, int32_t bytes) {
  using namespace fusedops::cuda;
  for (const ListedPlan& listed : plans_of(pass)) {
    const bool is_cluster = listed.scope == Scope::kCluster;
    if (is_cluster && width_in(listed, width, bytes) > 0) return listed.elements;
  }
  return 0;
}

// Returns the plans that hold a row in the registers of a cluster: in wide vectors, or in single
// elements if the row is not aligned for wide ones.
inline std::vector<Plan> cluster_plans(
    const Question& q, fusedops::cuda::Pass pass, int32_t width, int32_t most_threads) {
  using namespace fusedops::cuda;
  std::vector<Plan> plans;
  const auto bytes = static_cast<int32_t>(size_of(q.dtype));
  if (!is_wide(width, q.dtype)) width = 1;
  const int32_t elements = cluster_elements(pass, width, bytes);
  if (!fusedops::device::has_clusters() || elements == 0) return plans;
  // With more elements a thread, kClusterThreads, the launch bound of the kernels, is 512.
  if (elements > (width > 1 ? 32 : 16)) most_threads = std::min(most_threads, 512);
  for (const int32_t blocks : kClusterSizes) {
    const int32_t cols = round_up(ceil_div(q.cols, blocks), width);
    const int32_t threads = threads_per_row(cols, elements, width * bytes);
    // A block of less than four warps has little to hide the cluster's barriers with.
    if (threads < 128 || threads > most_threads) continue;
    plans.push_back({width, elements, threads, /*rows=*/1, blocks});
  }
  return plans;
}

// Returns the plans that cut rows into segments.
inline std::vector<Plan> segment_plans(const Question& q, int32_t width) {
  std::vector<Plan> plans;
  const int32_t loop_width = is_wide(width, q.dtype) ? width : 1;
  for (const int32_t cols : kSegments) {
    const int64_t count = fusedops::cuda::ceil_div(q.cols, cols);
    if (count < 2 || count > kMostSegments) continue;
    plans.push_back(
        {loop_width, /*elements=*/0, fusedops::cuda::kSegmentThreads, /*rows=*/1, /*blocks=*/1,
         /*partitions=*/0, cols});
  }
  return plans;
}

// Returns the bytes of a workspace for any of segment_plans(): three floats a segment, as norms
// need.
inline int64_t segments_workspace(const Question& q) {
  const int64_t segments =
      std::min<int64_t>(fusedops::cuda::ceil_div(q.cols, kSegments[0]), kMostSegments);
  return q.rows * segments * 3 * 4;
}

// Launches a plan that holds rows in the registers of a block or a cluster, or cuts them into
// segments. The kernel of a single block is one of kCandidates, the others are the package's.
template <class Registers, class Partials, class Apply, class Args, class... More>
Status launch_candidate(
    const Args& args, DType dtype, int64_t row_bytes, const Plan& plan, More... more) {
  using namespace fusedops::cuda;
  const RowPlan row = as_row_plan(plan);
  if (row.scope == Scope::kCluster) return launch_clusters(args, row, nullptr);
  if (row.scope == Scope::kSegments) {
    const auto count = static_cast<int32_t>(ceil_div(args.cols, plan.segment));
    return launch_segments(
        find_kernel<Partials>(dtype, row), find_kernel<Apply>(dtype, row), row_bytes, args,
        Segments{plan.segment, count}, nullptr, more...);
  }
  return launch_rows(find_kernel<Registers, CandidatePlans>(dtype, row), row, args, nullptr);
}

}  // namespace tune
