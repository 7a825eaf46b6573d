// The order of the questions: first the main operators of models, then what decides a plan.
#include <algorithm>
#include <set>
#include <tuple>

#include "tune/question.h"

namespace tune {
namespace {

struct Pass {
  Op op;
  bool backward;
};

// The main operators of models, by direction.
constexpr Pass kMain[] = {
    {Op::kLayerNorm, false}, {Op::kSoftmax, false},      {Op::kRmsNorm, false},
    {Op::kLayerNorm, true},  {Op::kRmsNorm, true},       {Op::kCausalSoftmax, false},
    {Op::kSoftmax, true},    {Op::kCausalSoftmax, true}, {Op::kCappedSoftmax, false}};
// These are one operator or two for each pass of cuda/launch/plans.def that has candidates.
constexpr Pass kDeciding[] = {
    {Op::kSoftmax, false},   {Op::kLayerNorm, false},     {Op::kRmsNorm, false},
    {Op::kLayerNorm, true},  {Op::kSoftmax, true},        {Op::kAddRmsNorm, false},
    {Op::kAddRmsNorm, true}, {Op::kPaddedSoftmax, false}, {Op::kPaddedSoftmax, true}};
constexpr Pass kAll[] = {{Op::kSoftmax, false},       {Op::kSoftmax, true},
                         {Op::kLogSoftmax, false},    {Op::kLogSoftmax, true},
                         {Op::kPaddedSoftmax, false}, {Op::kPaddedSoftmax, true},
                         {Op::kCausalSoftmax, false}, {Op::kCausalSoftmax, true},
                         {Op::kCappedSoftmax, false}, {Op::kLayerNorm, false},
                         {Op::kLayerNorm, true},      {Op::kRmsNorm, false},
                         {Op::kRmsNorm, true},        {Op::kStdNorm, false},
                         {Op::kStdNorm, true},        {Op::kAddLayerNorm, false},
                         {Op::kAddLayerNorm, true},   {Op::kAddRmsNorm, false},
                         {Op::kAddRmsNorm, true},     {Op::kSpatialSoftmax, false},
                         {Op::kSpatialSoftmax, true}, {Op::kSoftmaxStatistics, false},
                         {Op::kSoftmaxApply, false}};

constexpr Pass kCausal[] = {{Op::kCausalSoftmax, false}, {Op::kCausalSoftmax, true}};

using Lengths = std::vector<int64_t>;
const Lengths kMainLengths = {4096, 1024, 8192, 2048, 16384, 32768, 65536};
// Apart from 512 and 1024, these are the longest rows of plans for 16-byte vectors (plans.def).
const Lengths kBorders = {4096, 1024, 8192, 512, 16384, 2048, 32768, 65536, 131072, 262144, 524288};
const Lengths kOdd = {49, 197, 577, 1023, 50257, 128256};

Lengths powers_of_two() {
  Lengths lengths;
  for (int64_t cols = 32; cols <= int64_t{4} << 20; cols *= 2) lengths.push_back(cols);
  return lengths;
}

constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat32};
constexpr int64_t kSmall = int64_t{16} << 20, kMedium = int64_t{512} << 20,
                  kLarge = int64_t{2} << 30;
constexpr int64_t kFewRows = 264;  // two for each multiprocessor of a Hopper
// The numbers of rows in one step of decoding. kHidden has their lengths, the widths of models.
constexpr int64_t kDecodingRows[] = {1, 8, 64};
const Lengths kHidden = {4096, 1024, 8192, 512, 2048};

class Order {
 public:
  explicit Order(int64_t largest) : largest_(largest) {}

  // Adds questions on tensors of `bytes`.
  template <class Passes>
  void add(const Passes& passes, const Lengths& lengths, int64_t bytes, bool with_candidates) {
    add_each(passes, lengths, with_candidates, [&](int64_t row_bytes) {
      return std::max<int64_t>(1, bytes / row_bytes);
    });
  }

  // Adds questions on `rows` rows of each length.
  template <class Passes>
  void add_few(const Passes& passes, const Lengths& lengths, bool with_candidates, int64_t rows) {
    add_each(passes, lengths, with_candidates, [&](int64_t) { return rows; });
  }

  std::vector<Ask> take() { return std::move(asks_); }

 private:
  // Adds each length for all passes before the next length. Takes at most as many rows as fit into
  // largest_ bytes. Leaves out lengths of which no row fits, and questions that were added before.
  template <class Passes, class RowsOf>
  void add_each(
      const Passes& passes, const Lengths& lengths, bool with_candidates, RowsOf rows_of) {
    for (const int64_t cols : lengths) {
      for (const Pass& pass : passes) {
        for (const DType dtype : kDTypes) {
          const int64_t row_bytes = cols * size_of(dtype);
          const int64_t rows = std::min(rows_of(row_bytes), largest_ / row_bytes);
          if (rows > 0) add_one({pass.op, pass.backward, dtype, rows, cols}, with_candidates);
        }
      }
    }
  }

  void add_one(const Question& q, bool with_candidates) {
    const auto key = std::tuple(q.op, q.backward, q.dtype, q.rows, q.cols, with_candidates);
    if (asked_.insert(key).second) asks_.push_back({q, with_candidates});
  }

  int64_t largest_;
  std::vector<Ask> asks_;
  std::set<std::tuple<Op, bool, DType, int64_t, int64_t, bool>> asked_;
};

}  // namespace

std::vector<Ask> questions(int64_t largest) {
  Order order(largest);
  order.add(kMain, kMainLengths, kMedium, /*with_candidates=*/false);
  for (const int64_t rows : kDecodingRows)
    order.add_few(kMain, kHidden, /*with_candidates=*/false, rows);
  order.add(kDeciding, kBorders, kMedium, /*with_candidates=*/true);
  for (const int64_t bytes : {kSmall, kMedium}) {
    order.add(kDeciding, kHidden, bytes, /*with_candidates=*/true);
    order.add(kCausal, kHidden, bytes, /*with_candidates=*/true);
  }
  order.add_few(kDeciding, kBorders, /*with_candidates=*/true, kFewRows);
  order.add(kDeciding, kOdd, kMedium, /*with_candidates=*/true);
  order.add(kAll, powers_of_two(), kMedium, /*with_candidates=*/false);
  order.add(kAll, kOdd, kMedium, /*with_candidates=*/false);
  order.add(kDeciding, powers_of_two(), kSmall, /*with_candidates=*/true);
  order.add_few(kDeciding, kOdd, /*with_candidates=*/true, kFewRows);
  order.add(kMain, powers_of_two(), kLarge, /*with_candidates=*/false);
  order.add(kAll, powers_of_two(), kSmall, /*with_candidates=*/false);
  order.add(kDeciding, powers_of_two(), kMedium, /*with_candidates=*/true);
  order.add_few(kAll, powers_of_two(), /*with_candidates=*/false, /*rows=*/1);
  return order.take();
}

std::vector<Ask> smoke_questions(int64_t largest) {
  // In this order the lengths are for part of a warp, some warps, unaligned rows in some warps,
  // many warps, clusters, unaligned rows in clusters or segments, and the longest clusters or
  // segments. The plans of the package come first, so that a run that ends early has them.
  const Lengths lengths = {64, 1000, 1023, 4096, 40960, 50257, 300000};
  Order order(largest);
  for (const bool with_candidates : {false, true})
    order.add_few(kAll, lengths, with_candidates, /*rows=*/9);
  return order.take();
}

}  // namespace tune
