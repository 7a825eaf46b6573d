// A family of kernels as the tool sees it: the arrays that a question needs, the plan that the
// tables of cuda/launch/plan.h choose, the other plans, and their launches.
//
// Each family includes its source in csrc/cuda, so that the plans that are recorded are those that
// the package launches. Candidates go through the same launch functions where these take a plan,
// and name kernels where a candidate has more elements or other segments than any table.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "cuda/block/device.h"
#include "cuda/launch/dispatch.h"
#include "cuda/launch/plan.h"
#include "tune/question.h"

namespace tune {

using fusedops::device::Status;

enum class Role { kInput, kBools, kOutput, kScratch };

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
  // The bytes that have to move at least: each row that is read or written, once.
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

// An address that is aligned as allocations are, where only a plan is wanted.
inline void* any_address() { return reinterpret_cast<void*>(uintptr_t{256}); }
inline Memory any_memory(const std::vector<Array>& arrays) {
  return Memory(arrays.size(), any_address());
}

inline bool is_wide(int32_t width, DType dtype) {
  return width * size_of(dtype) == fusedops::cuda::kMaxVectorBytes;
}

// The threads of a plan that a table fixes; 0 where it does not.
inline int32_t fixed_threads(
    const fusedops::cuda::Regimes& regimes, const fusedops::cuda::RowPlan& plan, DType dtype) {
  if (plan.elements == 0 || plan.blocks > 1) return 0;
  const auto& table = regimes.table(size_of(dtype), is_wide(plan.width, dtype));
  return fusedops::cuda::is_fixed(table, plan.elements, plan.threads) ? plan.threads : 0;
}

inline Plan as_plan(
    const fusedops::cuda::Regimes& regimes, const fusedops::cuda::RowPlan& plan,
    const Question& q) {
  Plan result{plan.width, plan.elements, plan.threads, plan.rows, plan.blocks};
  result.fixed = fixed_threads(regimes, plan, q.dtype);
  if (plan.elements > 0) return result;
  result.row_threads = fusedops::cuda::kSegmentThreads;
  result.segment = fusedops::cuda::plan_segments(q.cols).cols;
  return result;
}

inline fusedops::cuda::RowPlan as_row_plan(const Plan& plan) {
  return {plan.width, plan.elements, plan.row_threads, plan.rows, plan.blocks};
}

// Elements of a thread, 64 only of 16 bits. The vectors of odd rows need an address each, so that
// 16 are many.
inline const std::vector<int32_t> kWideElements = {8, 16, 32, 64}, kNarrowElements = {4, 8, 16};
// Kernels compiled for the threads of a row, where offsets are constants: their elements and
// threads.
struct Fixed {
  int32_t elements, threads;
};
inline constexpr Fixed kWideFixed[] = {{16, 32}, {32, 32}, {64, 32}};
inline constexpr Fixed kNarrowFixed[] = {{8, 8}, {8, 16}, {16, 16}, {16, 32}, {32, 32}};
// The threads of a block that has several short rows.
inline constexpr int32_t kBlockThreads[] = {128, 256};
inline constexpr int32_t kClusterSizes[] = {2, 4, 8, 16};
inline constexpr int32_t kSegments[] = {2048, 4096, 8192, 16384, 65536};
inline constexpr int32_t kMostSegments = 4096;  // of a row

inline void append(std::vector<Plan>& plans, const std::vector<Plan>& more) {
  plans.insert(plans.end(), more.begin(), more.end());
}

inline int32_t most_cluster_threads(const fusedops::cuda::Clusters& clusters) {
  using fusedops::cuda::kClusterThreads;
  return clusters.elements > 32 ? kClusterThreads<float, 4, 64> : kClusterThreads<float, 4, 32>;
}

// The plans that keep a row in one block's registers, for `most` threads of a block.
template <class Most>
std::vector<Plan> register_plans(const Question& q, int32_t width, Most most) {
  std::vector<Plan> plans;
  const int32_t bytes = width * static_cast<int32_t>(size_of(q.dtype));
  for (const int32_t elements : is_wide(width, q.dtype) ? kWideElements : kNarrowElements) {
    const int32_t threads = fusedops::cuda::threads_per_row(q.cols, elements, bytes);
    for (const int32_t block : kBlockThreads) {
      const int32_t rows = std::max(1, block / threads);
      const bool is_new = block == kBlockThreads[0] || rows > 1;
      if (is_new && threads * rows <= most(elements))
        plans.push_back({width, elements, threads, rows});
    }
  }
  return plans;
}

// The same by kernels that are compiled for the threads of a row, where at least half of their
// elements are inside it.
inline std::vector<Plan> fixed_plans(const Question& q, int32_t width) {
  std::vector<Plan> plans;
  const auto add = [&](const Fixed& fixed) {
    const int64_t most = int64_t{fixed.elements} * fixed.threads;
    if (q.cols > most || 2 * q.cols <= most || fixed.elements * size_of(q.dtype) > 128) return;
    const int32_t rows = fusedops::cuda::kRowBlockThreads / fixed.threads;
    plans.push_back({width, fixed.elements, fixed.threads, rows, 1, 0, 0, fixed.threads});
  };
  if (is_wide(width, q.dtype)) {
    for (const Fixed& fixed : kWideFixed) add(fixed);
  } else {
    for (const Fixed& fixed : kNarrowFixed) add(fixed);
  }
  return plans;
}

// The plans that hold a row in the registers of a cluster: in wide vectors, or in single elements
// where a row has no wide ones.
inline std::vector<Plan> cluster_plans(
    const Question& q, int32_t width, const fusedops::cuda::Clusters& wide,
    const fusedops::cuda::Clusters& narrow, int32_t most_threads) {
  std::vector<Plan> plans;
  if (!is_wide(width, q.dtype)) {
    width = 1;
    most_threads = std::min(most_threads, fusedops::cuda::kClusterThreads<float, 1, 16>);
  }
  const int32_t elements = (width > 1 ? wide : narrow).elements;
  if (!fusedops::device::has_clusters() || elements == 0) return plans;
  const auto bytes = static_cast<int32_t>(size_of(q.dtype));
  for (const int32_t blocks : kClusterSizes) {
    const int32_t cols = fusedops::cuda::round_up(fusedops::cuda::ceil_div(q.cols, blocks), width);
    const int32_t threads = fusedops::cuda::threads_per_row(cols, elements, width * bytes);
    // A block of less than four warps has little to hide the cluster's barriers with.
    if (threads < 128 || threads > most_threads) continue;
    plans.push_back({width, elements, threads, 1, blocks});
  }
  return plans;
}

// The plans that cut rows into segments.
inline std::vector<Plan> segment_plans(const Question& q, int32_t width) {
  std::vector<Plan> plans;
  const int32_t loop_width = is_wide(width, q.dtype) ? width : 1;
  for (const int32_t cols : kSegments) {
    const int64_t count = fusedops::cuda::ceil_div(q.cols, cols);
    if (count < 2 || count > kMostSegments) continue;
    plans.push_back({loop_width, 0, fusedops::cuda::kSegmentThreads, 1, 1, 0, cols});
  }
  return plans;
}

// Enough of a workspace for the partials of each of segment_plans(), three accumulators each.
inline int64_t segments_workspace(const Question& q) {
  const int64_t segments =
      std::min<int64_t>(fusedops::cuda::ceil_div(q.cols, kSegments[0]), kMostSegments);
  return q.rows * segments * 3 * 4;
}

// As fusedops::cuda::launch_segments(), with the segments of a plan.
template <class Args>
Status launch_with_segments(
    void (*partials)(Args, int64_t, fusedops::cuda::Segments),
    void (*apply)(Args, int64_t, fusedops::cuda::Segments), int64_t row_bytes, const Args& args,
    const Plan& plan) {
  using namespace fusedops;
  const auto count = static_cast<int32_t>(cuda::ceil_div(args.cols, plan.segment));
  const cuda::Segments segments{plan.segment, count};
  const int64_t most = std::min(cuda::segment_rows(row_bytes), device::max_grid() / count);
  const dim3 threads(plan.row_threads);
  for (int64_t first = 0; first < args.rows; first += most) {
    const int64_t blocks = std::min(args.rows - first, most) * count;
    Status status = device::launch(partials, blocks, threads, nullptr, args, first, segments);
    if (status != device::kSuccess) return status;
    status = device::launch(apply, blocks, threads, nullptr, args, first, segments);
    if (status != device::kSuccess) return status;
  }
  return device::kSuccess;
}

// f(elements, as a type) where a thread of vectors of that width may have as many.
template <class T, int kWidth, class F>
Status with_elements(int32_t elements, F f) {
  constexpr bool kWide = fusedops::cuda::kIsWide<T, kWidth>;
  switch (elements) {
    case 4:
      if constexpr (!kWide) return f(std::integral_constant<int, 4>{});
      break;
    case 8:
      return f(std::integral_constant<int, 8>{});
    case 16:
      return f(std::integral_constant<int, 16>{});
    case 32:
      if constexpr (kWide) return f(std::integral_constant<int, 32>{});
      break;
    case 64:
      if constexpr (kWide && sizeof(T) == 2) return f(std::integral_constant<int, 64>{});
      break;
  }
  return fusedops::device::kInvalidValue;
}

// f(elements, threads, as types) for a plan of fixed_plans().
template <class T, int kWidth, int kIndex = 0, class F>
Status with_fixed(const Plan& plan, F f) {
  constexpr bool kWide = fusedops::cuda::kIsWide<T, kWidth>;
  constexpr int kCount = kWide ? std::size(kWideFixed) : std::size(kNarrowFixed);
  if constexpr (kIndex < kCount) {
    constexpr Fixed kFixed = kWide ? kWideFixed[kIndex] : kNarrowFixed[kIndex];
    if constexpr (kFixed.elements * sizeof(T) <= 128) {
      if (plan.elements == kFixed.elements && plan.fixed == kFixed.threads) {
        return f(
            std::integral_constant<int, kFixed.elements>{},
            std::integral_constant<int, kFixed.threads>{});
      }
    }
    return with_fixed<T, kWidth, kIndex + 1>(plan, f);
  } else {
    return fusedops::device::kInvalidValue;
  }
}

// f(Type<T>{}) for the dtypes of the questions.
template <class F>
Status with_asked_type(DType dtype, F f) {
  if (dtype == DType::kBFloat16) return f(fusedops::cuda::Type<fusedops::BFloat16>{});
  if (dtype == DType::kFloat32) return f(fusedops::cuda::Type<float>{});
  return fusedops::device::kInvalidValue;
}

}  // namespace tune
