// Computes for cross_entropy the losses of rows and the logarithms of their sums of exponentials.
//
// Contract: rows and classes are as in args.h. blockDim.x threads, a power of two, share a row,
// and a block has blockDim.y rows; or a block has a segment of one row. The row is read once.
// Workspace: [rows][segments] sums, if rows have several segments, which a second kernel merges.
//
// Numerics: threads add exponentials of x - max, which is rounded once, in float (double for
// double). The sums of lanes, warps and segments are added in double, and a row's results are
// computed in double. The exponential of the row's class is left out of the sum: the loss of a
// class that is nearly certain is then log1p(sum / exponential), and not the difference of two
// equal logarithms. The order of additions depends on cols and dtype alone.
#pragma once

#include "cuda/block/reduce.h"
#include "cuda/cross_entropy/logits.h"
#include "cuda/cross_entropy/vectors.h"

namespace fusedops::cuda {

// Returns what is subtracted from logits of which `largest` is the largest: 0 if that is infinite,
// so that the sum of exponentials is 0 or infinite, and not NaN.
template <class Acc>
FUSEDOPS_DEVICE Acc finite_shift(Acc largest) {
  return std::fabs(largest) == Acc(INFINITY) ? Acc(0) : largest;
}

// Holds the sum of exponentials e^(x - largest) of some logits x, and `total`, the sum of their
// values before LogitMap's factor, which label smoothing needs. Without any logits they are {0, 0,
// -inf}.
template <class Acc>
struct ClassSums {
  double sum, total;
  Acc largest;

  // Adds the sums of other logits. Both sums of exponentials move to the larger maximum.
  FUSEDOPS_DEVICE void add(const ClassSums& other) {
    const Acc to = device::maximum(largest, other.largest), shift = finite_shift(to);
    sum = sum * device::exp(largest - shift) + other.sum * device::exp(other.largest - shift);
    total += other.total;
    largest = to;
  }
};

// Holds the sums of one thread's elements, as ClassSums does.
template <class T>
struct ThreadSums {
  using Acc = AccumulatorOf<T>;
  Acc largest = -INFINITY, sum = 0, total = 0;

  // Adds the logits factor * values. Values that are -inf add nothing to the sum.
  template <int kVectors, int kWidth>
  FUSEDOPS_DEVICE void add(const Acc (&values)[kVectors][kWidth], Acc factor) {
    Acc most = -INFINITY, sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) most = device::maximum(most, values[i][j]);
    }
    const Acc to = device::maximum(largest, device::product(most, factor));
    const Acc shift = finite_shift(to);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc exponentials[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        exponentials[j] = exponential<T>(device::fma(values[i][j], factor, -shift));
      }
      sums[i] = tree_sum<kWidth>(exponentials);
    }
    sum = sum * exponential<T>(largest - shift) + tree_sum<kVectors>(sums);
    largest = to;
  }

  // Returns the sums over `lanes` neighbouring lanes, a power of two. The sum of values is 0 unless
  // it is wanted.
  FUSEDOPS_DEVICE ClassSums<Acc> of_lanes(int32_t lanes, bool wants_total) const {
    const Acc most = warp_reduce<Max>(largest, lanes);
    const double moved = sum * device::exp(largest - finite_shift(most));
    ClassSums<Acc> sums = {warp_reduce<Sum>(moved, lanes), /*total=*/0, most};
    if (wants_total) sums.total = warp_reduce<Sum>(static_cast<double>(total), lanes);
    return sums;
  }
};

// Adds the logits of a tile to `own`, the thread's sums. The sum of exponentials leaves out the
// columns outside of the row and the class's column, `left_out`. The sum of values includes the
// class's column. Columns are counted from this thread's first one.
template <class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE void add_tile(
    ThreadSums<T>& own, const Vec<T, kWidth> (&tile)[kVectors], const LogitMap<T>& logits,
    int32_t end, bool is_whole, int32_t left_out, bool wants_total) {
  using Acc = AccumulatorOf<T>;
  Acc values[kVectors][kWidth];
#pragma unroll
  for (int k = 0; k < kVectors * kWidth; ++k) {
    values[k / kWidth][k % kWidth] = tile[k / kWidth].at(k % kWidth);
  }
  if (logits.is_capped) {
#pragma unroll
    for (auto& vector : values) {
#pragma unroll
      for (Acc& value : vector) value = logits.capped(value);
    }
  } else if (!logits.is_linear) {
#pragma unroll
    for (auto& vector : values) {
#pragma unroll
      for (Acc& value : vector) value *= logits.scale;
    }
  }
  if (wants_total) {
    Acc totals[kVectors];  // elements outside are 0, and so are their logits
#pragma unroll
    for (int i = 0; i < kVectors; ++i) totals[i] = tree_sum<kWidth>(values[i]);
    own.total += tree_sum<kVectors>(totals);
  }
  const int32_t last = columns_before<kWidth>(kVectors - 1) + kWidth;
  if (!is_whole || static_cast<uint32_t>(left_out) < static_cast<uint32_t>(last)) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t out = left_out - columns_before<kWidth>(i);
      const int32_t inside = end - columns_before<kWidth>(i);
      if (static_cast<uint32_t>(out) >= kWidth && inside >= kWidth) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j == out || j >= inside) values[i][j] = -INFINITY;
      }
    }
  }
  own.add(values, logits.factor);
}

// Computes and stores a row's results. `others` are the sums of all classes but that in
// target.column, or of all if the column is -1; `element` is the element in that column.
template <class Acc>
FUSEDOPS_DEVICE void store_row(
    const CrossEntropyForward& args, int64_t row, const RowClass& target,
    const ClassSums<Acc>& others, double element) {
  const bool is_read = args.reads_ignored || !target.is_ignored;
  const bool is_linear = LogitMap<Acc>::is_factor(args.logits);
  // lse is most + logs. The sum is rounded, and would lose the digits of `logs` beside a large
  // logit, so that the loss and lse_error are computed from the two.
  double most = 0, logs = 0, lse = 0, loss = 0;
  if (is_read) {
    // The rounding of the scale to Acc changes the largest logit, and logits near it, by about the
    // same amount. The shift makes up for that: it is the largest logit with the exact scale.
    const double rounding = LogitMap<Acc>::relative_rounding(args.logits);
    const double largest = finite_shift(others.largest), log_sum = device::log(others.sum);
    const double shift = largest + largest * rounding;
    most = shift, logs = log_sum;
    lse = most + logs;
    loss = target.is_ignored ? 0 : NAN;
    if (target.column >= 0) {
      const double own = exact_logit(args.logits, element), above = log_sum + (shift - own);
      const double rest = exact_log1p(device::exp(-std::fabs(above)));
      most = above < 0 ? own : shift;
      logs = (above < 0 ? 0.0 : log_sum) + rest;
      const bool are_infinite = lse == own && std::fabs(own) == INFINITY;
      if (!are_infinite) lse = most + logs;
      loss = (above > 0 ? above : 0.0) + rest;
      if (args.label_smoothing != 0) {
        const double mean =
            others.total * (is_linear ? args.logits.scale : 1.0) * exact_reciprocal(args.cols);
        loss = (1 - args.label_smoothing) * loss + args.label_smoothing * (lse - mean);
      }
      if (!(std::fabs(lse) < INFINITY)) loss = NAN;
    }
  }
  const Acc rounded = static_cast<Acc>(lse);
  const bool is_finite = std::fabs(rounded) < Acc(INFINITY);
  static_cast<Acc*>(args.losses)[row] = static_cast<Acc>(loss);
  static_cast<Acc*>(args.lse)[row] = rounded;
  static_cast<Acc*>(args.lse_error)[row] =
      is_finite ? static_cast<Acc>((most - rounded) + logs) : Acc(0);
}

// Computes the sums of a block's rows, and from them the rows' results. Sums of a segment are left
// in the workspace instead, for cross_entropy_merge.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kClassThreads, kClassBlocks<T>)
cross_entropy_forward(CrossEntropyForward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/1>, kLanes = device::kWarpLanes;
  FUSEDOPS_SHARED(ClassSums<Acc>, shared_sums, kClassThreads);
  const ClassBlock block(segments, first_row);
  const LogitMap<T> logits(args.logits);
  const bool wants_total = is_positive(args.label_smoothing);
  const bool has_one_segment = segments.count == 1;

  // If rows have one segment, each of the first blockDim.y threads stores the results of a row. It
  // loads the element of the row's class ahead of the row.
  FUSEDOPS_SHARED(Acc, elements, kClassThreads);
  const uint32_t thread = thread_of_block();
  const int64_t own_row = block.first_row + thread;
  if (has_one_segment && thread < blockDim.y && own_row < args.rows) {
    const int64_t column = RowClass(args.targets, own_row, args.cols).column;
    elements[thread] = column < 0
        ? Acc(0)
        : Vec<T, 1>::load_cached(logits_row<T>(args.logits.input, own_row) + column).at(0);
  }

  ThreadSums<T> own;
  if (const int64_t row = block.row(); row < args.rows) {
    const RowClass target(args.targets, row, args.cols);
    const int64_t start = int64_t{block.segment} * segments.cols, left = args.cols - start;
    const bool is_read = args.reads_ignored || !target.is_ignored;
    // The segment's last vector may lie across two aligned words (vectors.h), of which the second
    // reaches into the next segment: up to kWidth columns of that segment can be read.
    const int64_t most = is_read ? segments.cols + kWidth : 0;
    const int32_t end = static_cast<int32_t>(left < most ? left : most);
    RowVectors<T, kWidth, kVectors> vectors(
        logits_row<T>(args.logits.input, row) + start, start == 0 ? 0 : -kWidth, end);
    const int32_t beyond = end > segments.cols ? end - segments.cols : 0;
    const int64_t out = target.column - start;
    int32_t left_out =
        out >= 0 && out < end ? static_cast<int32_t>(out) - column_of<kWidth>(0) : -1;
#pragma unroll 1
    for (; vectors.end() > beyond; vectors.advance()) {
      Vec<T, kWidth> tile[kVectors];
      const bool is_whole = vectors.is_whole();
      vectors.load(tile, is_whole);
      add_tile(own, tile, logits, vectors.end(), is_whole, left_out, wants_total);
      left_out -= vectors.step();
    }
  }

  const int32_t lanes = blockDim.x < kLanes ? blockDim.x : kLanes;
  const uint32_t warps = (blockDim.x + kLanes - 1) / kLanes;
  const ClassSums<Acc> of_lanes = own.of_lanes(lanes, wants_total);
  if (threadIdx.x % kLanes == 0) {
    shared_sums[threadIdx.y * warps + threadIdx.x / kLanes] = of_lanes;
  }
  __syncthreads();
  if (thread >= blockDim.y) return;
  ClassSums<Acc> sums = shared_sums[thread * warps];
  for (uint32_t i = 1; i < warps; ++i) sums.add(shared_sums[thread * warps + i]);
  if (!has_one_segment) {
    partials_of<ClassSums<Acc>>(args.workspace, segments, block.first_row)[block.segment] = sums;
  } else if (thread < args.rows - block.first_row) {
    const RowClass target(args.targets, own_row, args.cols);
    store_row(args, own_row, target, sums, elements[thread]);
  }
}

// Returns the element of a row in `column`. The rows may have any dtype whose accumulators are Acc.
template <class Acc>
FUSEDOPS_DEVICE double element_at(const ConstRows& rows, int64_t row, int64_t column) {
  return with_narrower<Acc>(rows.dtype, [&](auto type) {
    using T = decltype(type);
    return Vec<T, 1>::load_cached(logits_row<T>(rows, row) + column).at(0);
  });
}

// In cross_entropy_merge, kMergeLanes neighbouring lanes merge the sums of a row's segments. The
// first of them stores the row's results.
inline constexpr int32_t kMergeLanes = 8, kMergeRows = kClassThreads / kMergeLanes;

template <class Acc>
FUSEDOPS_KERNEL(kClassThreads)
cross_entropy_merge(CrossEntropyForward args, int64_t first_row, Segments segments) {
  device::wait_for_launch_ahead();
  const int64_t row = first_row + int64_t{blockIdx.x} * kMergeRows + threadIdx.y;
  ClassSums<Acc> sums = {0, 0, -INFINITY};
  if (row < args.rows) {
    const auto* const partials = partials_of<ClassSums<Acc>>(args.workspace, segments, row);
    for (int32_t i = threadIdx.x; i < segments.count; i += kMergeLanes) sums.add(partials[i]);
  }
#pragma unroll
  for (int32_t step = kMergeLanes / 2; step > 0; step /= 2) {
    sums.add(
        {device::shuffle_xor(sums.sum, step), device::shuffle_xor(sums.total, step),
         device::shuffle_xor(sums.largest, step)});
  }
  if (threadIdx.x > 0 || row >= args.rows) return;
  const RowClass target(args.targets, row, args.cols);
  const double element =
      target.column < 0 ? 0 : element_at<Acc>(args.logits.input, row, target.column);
  store_row(args, row, target, sums, element);
}

}  // namespace fusedops::cuda
