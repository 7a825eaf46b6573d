// Computes the norms of norm_kinds.def along rows of the input, or of its sum with a residual.
//
// Contract: as in softmax/rows.h; weight and bias are aligned for kWidth elements too (16 bytes at
// most). With kAdd there is a residual, and there may be dropout. Workspace: [rows][segments] of
// NormPartial.
//
// Numerics: results are computed in float (double for double) and rounded once; x = dropout(input)
// + residual is rounded once before. Let m be near the mean and d = mean(x - m). Then mean = m + d,
// output = ((x - m) - d) * rstd, and the squared deviations sum up to sum((x - m)^2) - sum(x - m) *
// d. m is the rounded mean, so that a row far from zero loses nothing; norms without a mean have m
// = d = 0. Each segment has an m and a d of its own, and its sums are moved to the m of the row
// (Chan, Golub and LeVeque, 1979).
//
// Instructions limit 16-bit rows, and two shortcuts save two instructions an element. First, for
// vectors in registers, m is the mean of every second element: if b is the mean of the others, d =
// (b - m) / 2 is within a standard deviation, and the squares lose one bit at most. Second, the
// output is (x - m) * rstd - d * rstd, in one instruction; d * rstd is at most 1, and its error
// 2^-25.
//
// Kind, weight offset, rounding of the normalised value and the dtype of weight and bias are
// run-time options, the same for all threads: each costs a branch a row or a vector. The usual
// options (is_usual) have loops of their own, with a third fewer instructions in 16 bits.
//
// Limits: values above 3e38 / cols overflow the sum, values above 1e19 overflow the squares (rstd
// is then 0), and deviations below 1e-22 count as 0.
#pragma once

#include "cuda/block/cluster.h"
#include "cuda/block/philox.h"
#include "cuda/block/reduce.h"
#include "cuda/block/segments.h"
#include "cuda/block/tile.h"
#include "cuda/launch/plan.h"
#include "cuda/norm/common.h"

namespace fusedops::cuda {

// Loads one vector of the bias, or zeros if there is none.
template <class W, int kWidth, class Acc>
FUSEDOPS_DEVICE void load_bias(Acc (&values)[kWidth], const NormForward& args, int64_t column) {
  const void* const data = args.bias.data;
  const auto vector = data ? Vec<W, kWidth>::load_cached(static_cast<const W*>(data) + column)
                           : Vec<W, kWidth>::filled(0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j);
}

// Loads the values of a row that are normalised: the input or, with kAdd, its sum with the
// residual.
template <class T, bool kAdd>
class NormInput {
 public:
  using Acc = AccumulatorOf<T>;

  // With kAdd, load() stores the sum at `sum`, unless that is null.
  FUSEDOPS_DEVICE NormInput(const NormForward& args, int64_t row, T* sum)
      : args_(args),
        row_(row),
        input_(row_of<T>(args.input, row)),
        residual_(row_of<T>(args.residual, row)),
        sum_(sum),
        dropout_(args.dropout, row) {}

  // Loads a tile of the values from column `start` on, where the row has `cols` columns left.
  // Elements beyond become zeros.
  template <int kThreads = 0, int kWidth, int kVectors>
  FUSEDOPS_DEVICE void load(Tile<T, kWidth, kVectors>& tile, int64_t start, int32_t cols) const {
    if constexpr (!kAdd) {
      tile.template load<kThreads>(input_ + start, cols, 0);
    } else {
      // The residual is loaded first, because a 16-bit branch (the input) is converted as soon as
      // it arrives, and that wait would delay the loads behind it.
      tile.template load<kThreads>(residual_ + start, cols, 0);
      Tile<T, kWidth, kVectors> branch;
      with_narrower<T>(
          args_.input.dtype, [&](auto type) { load_branch<kThreads>(branch, type, start, cols); });
      for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
        const int64_t column = start + column_of<kWidth, kThreads>(i);
        if (is_inside) add(tile.vectors[i], branch.vectors[i], column);
      });
    }
  }

 private:
  // Loads the branch, which is the input that is added to the residual. A 16-bit branch beside
  // floats is widened, which is exact.
  template <int kThreads, class Branch, int kWidth, int kVectors>
  FUSEDOPS_DEVICE void load_branch(
      Tile<T, kWidth, kVectors>& branch, Branch, int64_t start, int32_t cols) const {
    if constexpr (std::is_same_v<Branch, T>) {
      branch.template load<kThreads>(input_ + start, cols, 0);
    } else {
      Tile<Branch, kWidth, kVectors> stored;
      stored.template load<kThreads>(row_of<Branch>(args_.input, row_) + start, cols, 0);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        Acc values[kWidth];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values[j] = stored.at(i, j);
        branch.vectors[i] = Vec<T, kWidth>::rounded(values);
      }
    }
  }

  // Replaces a vector of the residual by its sum with the branch, to which dropout is applied, and
  // stores the sum if it is wanted.
  template <int kWidth>
  FUSEDOPS_DEVICE void add(
      Vec<T, kWidth>& vector, const Vec<T, kWidth>& branch, int64_t column) const {
    Acc values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = branch.at(j);
    dropout_.apply(values, static_cast<int32_t>(column));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] += vector.at(j);
    vector = Vec<T, kWidth>::rounded(values);
    if (sum_) vector.store(sum_ + column);
  }

  const NormForward& args_;
  int64_t row_;
  const T *input_, *residual_;
  T* sum_;
  DropoutRow<Acc> dropout_;
};

// The base m is the mean of every kBaseStep-th element.
template <class T, int kWidth>
inline constexpr int kBaseStep = sizeof(T) == 2 && kWidth > 1 ? 2 : 1;

// Returns the sum of some values and that of their squares.
template <int kCount, class Acc>
FUSEDOPS_DEVICE Pair<Acc> moments_of(const Acc* values) {
  Pair<Acc> sums{values[0], values[0] * values[0]};
#pragma unroll
  for (int k = 1; k < kCount; ++k) {
    sums.first += values[k];
    sums.second = device::fma(values[k], values[k], sums.second);  // this square stays unrounded
  }
  return sums;
}

// Returns the sum of squared deviations from the mean, or infinity if the squares overflow. `sums`
// are those of x - base and of its square, and `mean_offset` is the mean of x - base.
template <class Acc>
FUSEDOPS_DEVICE Acc squares_of(Pair<Acc> sums, Acc mean_offset) {
  // The result of a constant row is 0: its base is so few ulps off that both sums are exact.
  const Acc left = device::fma(-sums.first, mean_offset, sums.second);
  return sums.second == INFINITY ? sums.second : left < Acc(0) ? Acc(0) : left;
}

template <class Acc>
struct NormStatistics {
  Acc base, mean_offset, squares, rstd;  // mean = base + mean_offset

  // `sums` are those of x - base and of its square along a row. If only the squares overflow, rstd
  // is 0. It is NaN for a row with a NaN and, in norms with a mean, for a row with an infinity.
  FUSEDOPS_DEVICE NormStatistics(const NormForward& args, Acc base, Pair<Acc> sums)
      : base(base), mean_offset(0) {
    if (has_mean(args)) mean_offset = mean_of(sums.first, static_cast<Acc>(args.cols));
    squares = squares_of(sums, mean_offset);
    rstd = squares == INFINITY ? Acc(0) : rstd_of(args, squares);
    rstd += mean_offset - mean_offset;  // NaN where mean_offset is not finite
  }

  FUSEDOPS_DEVICE void save(const NormForward& args, int64_t row) const {
    if (args.rstd == nullptr) return;
    if (has_mean(args)) static_cast<Acc*>(args.mean)[row] = base + mean_offset;
    static_cast<Acc*>(args.rstd)[row] = rstd;
  }
};

// Loads one vector of weight, with its offset, and of bias.
template <class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void load_parameters(
    Acc (&weight)[kWidth], Acc (&bias)[kWidth], const NormForward& args, int64_t column) {
  if (is_wider<T>(args.weight.data ? args.weight : args.bias)) {
    load_weight<float>(weight, args, column);
    load_bias<float>(bias, args, column);
  } else {
    load_weight<T>(weight, args, column);
    load_bias<T>(bias, args, column);
  }
}

// Scales, rounds and stores one vector of normalised values, with any weight, bias and options.
template <class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_scaled(
    T* to, const NormForward& args, int64_t column, const Acc (&normalised)[kWidth]) {
  Acc weight[kWidth], bias[kWidth], result[kWidth];
  load_parameters<T>(weight, bias, args, column);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) result[j] = normalised[j];
  if (sizeof(T) == 2 && args.rounds_normalized) {
    const auto rounded = Vec<T, kWidth>::rounded(result);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) result[j] = rounded.at(j);
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) result[j] = result[j] * weight[j] + bias[j];
  store_plain(to, result);
}

// Returns whether there is a weight, in the rows' dtype, without an offset or rounding of the
// normalised value.
template <class T>
FUSEDOPS_DEVICE bool is_usual(const NormForward& args) {
  return args.weight.data && !is_wider<T>(args.weight) && args.weight_offset == 0 &&
      !args.rounds_normalized;
}

// This is the number of vectors whose weights and biases are loaded before the first of these
// vectors is stored. The compiler cannot move a load ahead of a store, because both may access the
// same memory. But blocks of 1024 threads have 64 registers a thread, too few for 32 values and the
// parameters of four vectors. 0 means that there is no separate loop for the usual options
// (is_usual): in clusters with wide vectors of floats, this loop raised the registers from 32 to
// 64, which on an H100 took LayerNorm of 32,768 columns from 0.97 to 0.85 of a copy's speed. In
// clusters with a residual, one vector at a time was 0.4 to 0.8 % faster than two.
template <class RowScope, class T, int kWidth, int kVectors, bool kAdd>
inline constexpr int kParameterVectors =
    RowScope::kIsCluster && sizeof(T) == 4 && kIsWide<T, kWidth> ? 0
    : RowScope::kIsCluster && kAdd                               ? 1
    : kVectors <= 2                                              ? kVectors
    : kVectors * kWidth == 32                                    ? 2
                                                                 : 4;

// Sets `centred` to the values of a tile minus `base`, and returns the sums of the differences and
// of their squares. Columns from `cols` on are outside the row; their differences are zeros.
template <int kThreads = 0, class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE Pair<Acc> centre(
    Acc (&centred)[kVectors][kWidth], const Tile<T, kWidth, kVectors>& tile, int32_t cols,
    Acc base) {
  for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
    const Acc own_base = is_inside ? base : Acc(0);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[i][j] = tile.at(i, j) - own_base;
  });
  constexpr int kGroup = kIsWide<T, kWidth> ? 1 : vectors_of_group(kVectors);
  Pair<Acc> moments[kVectors / kGroup];
#pragma unroll
  for (int i = 0; i < kVectors; i += kGroup) {
    moments[i / kGroup] = moments_of<kGroup * kWidth>(centred[i]);
  }
  return tree_sum<kVectors / kGroup>(moments);
}

// Replaces x - base by the normalised values. In 16 bits that takes one instruction a value, and a
// row of equal elements is a special case, so that it becomes exact zeros.
template <class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void normalise(
    Acc (&values)[kVectors][kWidth], const NormStatistics<Acc>& statistics) {
  const Acc mean_offset = statistics.mean_offset;
  const bool is_constant = sizeof(T) == 2 && statistics.squares == 0;
  const Acc rstd = is_constant ? statistics.rstd * Acc(0) : statistics.rstd;  // NaN stays NaN
#pragma unroll
  for (int k = 0; k < kVectors * kWidth; ++k) {
    Acc& value = values[k / kWidth][k % kWidth];
    value = sizeof(T) == 2 ? device::fma(value, rstd, -mean_offset * rstd)
                           : (value - mean_offset) * rstd;
  }
}

// Scales and stores a row, or a block's part of it from column `start` on, in wide vectors and with
// the usual options (is_usual).
template <int kGroup, int kThreads, class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void store_wide(
    T* output, const NormForward& args, int32_t start, int32_t cols,
    const Acc (&normalised)[kVectors][kWidth]) {
  const T* const weights = static_cast<const T*>(args.weight.data) + start;
  const T* const biases = static_cast<const T*>(args.bias.data) + start;
#pragma unroll
  for (int first = 0; first < kVectors; first += kGroup) {
    Vec<T, kWidth> weight[kGroup], bias[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int32_t column = column_of<kWidth, kThreads>(first + i);
      bias[i] = Vec<T, kWidth>::filled(0);
      if (column >= cols) continue;
      weight[i] = Vec<T, kWidth>::load_cached(weights + column);
      if (args.bias.data) bias[i] = Vec<T, kWidth>::load_cached(biases + column);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int32_t column = column_of<kWidth, kThreads>(first + i);
      if (column >= cols) return;
      Acc result[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        result[j] = normalised[first + i][j] * weight[i].at(j) + bias[i].at(j);
      }
      store_plain(output + column, result);
    }
  }
}

// Scales and stores an unaligned row, with the usual options. The parameters' addresses stay in
// registers: to compute them for each element would take a third of all instructions.
template <bool kHasBias, int kThreads, class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void store_unaligned(
    T* output, const NormForward& args, int32_t start, int32_t cols,
    const Acc (&normalised)[kVectors][kWidth]) {
  const int32_t first = start + column_of<kWidth, kThreads>(0);
  const T* const weight = device::whole(static_cast<const T*>(args.weight.data) + first);
  const T* const bias = device::whole(static_cast<const T*>(args.bias.data) + first);
  store_by<kWidth, kVectors, kThreads>(output, cols, [&](int i, int32_t offset, T* to) {
    const auto factors = Vec<T, kWidth>::load_cached(weight + offset);
    auto summands = Vec<T, kWidth>{};
    if (kHasBias) summands = Vec<T, kWidth>::load_cached(bias + offset);
    Acc result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      result[j] = normalised[i][j] * factors.at(j) + summands.at(j);
    }
    store_plain(to, result);
  });
}

// Scales and stores a row, with any options. With a kGroup of 0 the usual options have no loop of
// their own.
template <int kGroup, int kThreads, class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void store_row(
    T* output, const NormForward& args, int32_t start, int32_t cols,
    const Acc (&normalised)[kVectors][kWidth]) {
  if constexpr (kGroup > 0) {
    if (is_usual<T>(args)) {
      if constexpr (kIsWide<T, kWidth>) {
        return store_wide<kGroup, kThreads>(output, args, start, cols, normalised);
      } else if (args.bias.data) {
        return store_unaligned</*kHasBias=*/true, kThreads>(output, args, start, cols, normalised);
      } else {
        return store_unaligned</*kHasBias=*/false, kThreads>(output, args, start, cols, normalised);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth, kThreads>(i);
    if (column >= cols) return;
    store_scaled(output + column, args, start + column, normalised[i]);
  }
}

// Computes the norm of this thread's row, which stays in registers. With kIsTight the statistics
// are saved after the results, and parameters are loaded for one vector at a time. Kernels of
// stacks, which also keep the arguments of a tensor, spill on sm_80 or sm_120 without kIsTight;
// other kernels spill with it.
template <class RowScope, class T, int kWidth, int kVectors, bool kAdd, bool kIsTight = false>
FUSEDOPS_DEVICE void norm_row(const NormForward& args, int64_t row) {
  using Acc = AccumulatorOf<T>;
  constexpr int kThreads = RowScope::kThreads;
  constexpr int kGroup = kIsTight ? 1 : kParameterVectors<RowScope, T, kWidth, kVectors, kAdd>;
  RowScope scope;
  const auto [start, cols] = scope.template own_columns<kWidth * kVectors>(
      row < args.rows ? static_cast<int32_t>(args.cols) : 0);

  Tile<T, kWidth, kVectors> tile;
  T* const sum = args.sum.data ? row_of<T>(args.sum, row) : nullptr;
  NormInput<T, kAdd>(args, row, sum).template load<kThreads>(tile, start, cols);
  scope.join();

  Acc base = 0, centred[kVectors][kWidth];
  Pair<Acc> sums{0, 0};
  if (has_mean(args)) {
    constexpr int kStep = kBaseStep<T, kWidth>;
    const Acc inverse_count = device::reciprocal(static_cast<Acc>(args.cols)) * kStep;
    const Acc sum = tile.template sum<kStep>();
    // The fma rounds the product. The compiler could contract a multiplication into x - base, whose
    // base would then differ from that of the statistics.
    base = device::fma(scope.template reduce<Sum>(sum), inverse_count, Acc(0));
    sums = scope.template reduce<Sum>(centre<kThreads>(centred, tile, cols, base));
  } else {
    const Acc squares = centre<kThreads>(centred, tile, cols, Acc(0)).second;
    sums.second = scope.template reduce<Sum>(squares);
  }
  const NormStatistics<Acc> statistics(args, base, sums);

  T* const output = row_of<T>(args.output, row) + start;
  const bool saves = row < args.rows && threadIdx.x == 0 && scope.is_first();
  if (!kIsTight && saves) statistics.save(args, row);
  normalise<T>(centred, statistics);
  store_row<kGroup, kThreads>(output, args, start, cols, centred);
  if (kIsTight && saves) statistics.save(args, row);
}

template <class T, int kWidth, int kVectors, bool kAdd, int kThreads = 0>
FUSEDOPS_KERNEL(
    (kNormThreads<T, kWidth, kWidth * kVectors, kAdd, kThreads>), (kLeastBlocks<T, kWidth>))
norm_forward_registers(NormForward args, int64_t first_row) {
  assume_row_threads<kThreads>();
  norm_row<RowInBlock<kThreads>, T, kWidth, kVectors, kAdd>(args, launch_row(first_row));
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL(
    (kNormThreads<T, kWidth, kWidth * kVectors, /*kAdd=*/false>), (kLeastBlocks<T, kWidth>))
norm_stack_registers(NormStack stack) {
  const StackBlock at(stack.count);
  norm_row<OneBlock, T, kWidth, kVectors, /*kAdd=*/false, /*kIsTight=*/true>(
      stack[at.tensor], at.row());
}

template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL((kClusterThreads<T, kWidth, kWidth * kVectors>), (kLeastBlocks<T, kWidth>))
norm_forward_cluster(NormForward args, int64_t first_row) {
  norm_row<ClusterOf<T, kWidth>, T, kWidth, kVectors, kAdd>(args, cluster_row(first_row));
}

// Holds the moments of a segment, whose mean is base + mean_offset.
template <class Acc>
struct NormPartial {
  Acc base, mean_offset, squares;

  // Returns the sums of x - row_base and of its square along the `cols` columns of the segment.
  FUSEDOPS_DEVICE Pair<Acc> moments_about(Acc row_base, Acc cols) const {
    const Acc distance = (base - row_base) + mean_offset, sum = cols * distance;
    return {sum, device::fma(sum, distance, squares)};
  }
};

// Computes and saves the moments of a segment about a base: the mean of the segment's first tile,
// or 0 in norms without a mean. That tile is loaded once for its mean and for the moments. With
// kAdd, if the caller does not want the sum of input and residual, the sum stays in the output
// until norm_forward_apply normalises it there.
template <bool kAdd, class T, int kWidth>
FUSEDOPS_DEVICE void save_moments(const NormForward& args, Segments segments, Segment segment) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/(kAdd ? 2 : 1)>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  FUSEDOPS_SHARED(Pair<Acc>, shared_moments, kMaxWarps);
  T* const sum = row_of<T>(args.sum.data ? args.sum : args.output, segment.row);
  const NormInput<T, kAdd> input(args, segment.row, sum);

  Tile<T, kWidth, kVectors> tile;
  input.load(tile, segment.start, segment.cols);
  Acc base = 0;
  if (has_mean(args)) {
    const auto first_cols =
        static_cast<Acc>(segment.cols < tile.step() ? segment.cols : tile.step());
    base = row_reduce<Sum>(tile.sum(), shared_sums) * device::reciprocal(first_cols);
  }

  Pair<Acc> sums{0, 0};
  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    const int32_t left = segment.cols - start;
    if (start > 0) input.load(tile, segment.start + start, left);
    Acc centred[kVectors][kWidth];
    sums = sums + centre(centred, tile, left, base);
  }
  sums = row_reduce<Sum>(sums, shared_moments);
  const Acc mean = mean_of(sums.first, static_cast<Acc>(segment.cols));
  const Acc mean_offset = has_mean(args) ? mean : Acc(0);
  const NormPartial<Acc> partial = {base, mean_offset, squares_of(sums, mean_offset)};
  save_partial(args.workspace, segments, segment, partial);
}

// Leaves the moments of a segment in the workspace.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_forward_partials(NormForward args, int64_t first_row, Segments segments) {
  const Segment segment(segments, args.cols, first_row, blockIdx.x);
  if (args.residual.data != nullptr) {
    save_moments</*kAdd=*/true, T, kWidth>(args, segments, segment);
  } else {
    save_moments</*kAdd=*/false, T, kWidth>(args, segments, segment);
  }
}

// Returns the statistics of a row, merged from the partials of its segments. Their base is the
// rounded mean of the row.
template <class Acc>
FUSEDOPS_DEVICE NormStatistics<Acc> merged_norm(
    const NormForward& args, Segments segments, int64_t row, Acc* shared_sums,
    Pair<Acc>* shared_moments) {
  const auto* const partials = partials_of<NormPartial<Acc>>(args.workspace, segments, row);
  const auto cols_of = [&](int32_t i) {
    return static_cast<Acc>(Segment::columns_of(segments, args.cols, i));
  };
  Acc base = 0;
  if (has_mean(args)) {
    Acc sum = 0;
    for (int32_t i = threadIdx.x; i < segments.count; i += blockDim.x) {
      sum += cols_of(i) * (partials[i].base + partials[i].mean_offset);
    }
    base = row_reduce<Sum>(sum, shared_sums) * device::reciprocal(static_cast<Acc>(args.cols));
  }
  Pair<Acc> sums{0, 0};
  for (int32_t i = threadIdx.x; i < segments.count; i += blockDim.x) {
    sums = sums + partials[i].moments_about(base, cols_of(i));
  }
  return NormStatistics<Acc>(args, base, row_reduce<Sum>(sums, shared_moments));
}

// Stores the norm of a segment. Its first tile is loaded while the partials are merged.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_forward_apply(NormForward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/1>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  FUSEDOPS_SHARED(Pair<Acc>, shared_moments, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, backwards(blockIdx.x));
  T* const output = row_of<T>(args.output, segment.row);
  const T* const sum = args.sum.data ? row_of<T>(args.sum, segment.row) : output;
  const T* const input =
      (args.residual.data ? sum : row_of<T>(args.input, segment.row)) + segment.start;

  Tile<T, kWidth, kVectors> tile;
  tile.load(input, segment.cols, 0);
  const NormStatistics<Acc> statistics =
      merged_norm(args, segments, segment.row, shared_sums, shared_moments);

  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    const int32_t left = segment.cols - start;
    if (start > 0) tile.load(input + start, left, 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column >= left) continue;
      const int64_t to = segment.start + start + column;
      Acc values[1][kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[0][j] = tile.at(i, j) - statistics.base;
      normalise<T>(values, statistics);
      store_scaled(output + to, args, to, values[0]);
    }
  }
  if (segment.index == 0 && threadIdx.x == 0) statistics.save(args, segment.row);
}

}  // namespace fusedops::cuda
