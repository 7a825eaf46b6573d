// LayerNorm, StdNorm and RMSNorm along rows, of a row or of a residual sum, forward.
//
// Contract: rows as in args.h; kWidth divides cols; every row, weight and bias are aligned for
// kWidth elements (16 bytes at most). _registers: blockDim.x * kVectors * kWidth >= cols;
// blockDim.x threads share a row, blockDim.y rows a block; _cluster: those of a cluster's blocks
// share it. _parts and _apply: any cols, by segments (segments.h), the row is read twice. kAdd:
// whether there is a residual, and perhaps dropout. Workspace: [rows][segments] of NormPart.
//
// Numerics: float (double for double), rounded once, and x = dropout(input) + residual once before.
// With any m near the mean and d = mean(x - m): mean = m + d, output = ((x - m) - d) * rstd, and
// the squared deviations sum up to sum((x - m)^2) - sum(x - m) * d. m is the rounded mean, so that
// a row far from zero loses nothing. Of RMSNorm m = d = 0. Each segment has an m and a d of its
// own, and what it found is moved to the m of the row (Chan, Golub and LeVeque, 1979).
//
// Kind, offset of the weight, rounding of what is normalised and the dtype of weight and bias are
// run-time choices, the same for all threads: each a branch a row or a vector.
// Limits: values above 3e38 / cols overflow the sum, values above 1e19 the squares (rstd = 0), and
// deviations below 1e-22 count as none.
#pragma once

#include "fusedops/cuda/cluster.h"
#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/philox.h"
#include "fusedops/cuda/reduce.h"
#include "fusedops/cuda/segments.h"
#include "fusedops/cuda/tile.h"

namespace fusedops::cuda {

template <class Args>
FUSEDOPS_DEVICE bool has_mean(const Args& args) {
  return fusedops::has_mean(args.kind);
}

// One vector of what rows are multiplied with: weight + weight_offset, or 1 where there is none.
template <class W, int kWidth, class Acc, class Args>
FUSEDOPS_DEVICE void load_weight(Acc (&values)[kWidth], const Args& args, int64_t column) {
  const void* const data = args.weight.data;
  const auto vector = data ? Vec<W, kWidth>::load_cached(static_cast<const W*>(data) + column)
                           : Vec<W, kWidth>::filled(1);
  const Acc offset = data ? static_cast<Acc>(args.weight_offset) : Acc(0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j) + offset;
}

template <class W, int kWidth, class Acc>
FUSEDOPS_DEVICE void load_bias(Acc (&values)[kWidth], const NormForward& args, int64_t column) {
  const void* const data = args.bias.data;
  const auto vector = data ? Vec<W, kWidth>::load_cached(static_cast<const W*>(data) + column)
                           : Vec<W, kWidth>::filled(0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j);
}

// Whether weight and bias, which share a dtype, are floats beside 16-bit rows.
template <class T>
FUSEDOPS_DEVICE bool is_wider(const ConstColumns& parameter) {
  return sizeof(T) == 2 && parameter.dtype == DType::kFloat32;
}

// What is normalised of a row: the input or, with kAdd, its sum with the residual.
template <class T, bool kAdd>
class NormInput {
 public:
  using Acc = AccumulatorOf<T>;

  // The sum goes to `sum`, if that is not null.
  FUSEDOPS_DEVICE NormInput(const NormForward& args, int64_t row, T* sum)
      : input_(row_of<T>(args.input, row)),
        residual_(row_of<T>(args.residual, row)),
        sum_(sum),
        dropout_(args.dropout, row) {}

  // From column `start` on, of which `cols` are left; what is outside counts as zeros.
  template <int kWidth, int kVectors>
  FUSEDOPS_DEVICE void load(Tile<T, kWidth, kVectors>& tile, int64_t start, int32_t cols) const {
    tile.load(input_ + start, cols, 0);
    if constexpr (kAdd) {
      Tile<T, kWidth, kVectors> residual;
      residual.load(residual_ + start, cols, 0);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int32_t column = column_of<kWidth>(i);
        if (column < cols) add(tile.vectors[i], residual.vectors[i], start + column);
      }
    }
  }

 private:
  template <int kWidth>
  FUSEDOPS_DEVICE void add(
      Vec<T, kWidth>& vector, const Vec<T, kWidth>& residual, int64_t column) const {
    Acc values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j);
    dropout_.apply(values, static_cast<int32_t>(column));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] += residual.at(j);
    vector = Vec<T, kWidth>::rounded(values);
    if (sum_) vector.store(sum_ + column);
  }

  const T *input_, *residual_;
  T* sum_;
  DropoutRow<Acc> dropout_;
};

template <int kWidth, class Acc>
FUSEDOPS_DEVICE Pair<Acc> moments_of(const Acc (&values)[kWidth]) {
  Pair<Acc> sums{0, 0};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    sums.first += values[j];
    sums.second += values[j] * values[j];
  }
  return sums;
}

// sum / count. The rounded 1 / count alone would not do: its error would be the same in every row,
// and half of that of rstd.
template <class Acc>
FUSEDOPS_DEVICE Acc mean_of(Acc sum, Acc count) {
  const Acc share = device::reciprocal(count), mean = sum * share;
  return device::fma(device::fma(-mean, count, sum), share, mean);
}

// Within 0.6 ulp: a Newton step on an rsqrt() that may be 2 ulp off. Every value of a row bears the
// error of its rstd.
template <class Acc>
FUSEDOPS_DEVICE Acc exact_rsqrt(Acc x) {
  const Acc y = device::rsqrt(x), product = x * y, low = device::fma(x, y, -product);
  const Acc rest = device::fma(-low, y, device::fma(-product, y, Acc(1)));
  return rest == rest ? device::fma(y * Acc(0.5), rest, y) : y;  // of 0, infinity and NaN
}

// Within 0.6 ulp: the same step on x * rsqrt(x).
template <class Acc>
FUSEDOPS_DEVICE Acc exact_root(Acc x) {
  const Acc y = device::rsqrt(x), near = x * y;
  const Acc root = device::fma(y * Acc(0.5), device::fma(-near, near, x), near);
  return root == root ? root : x;  // of 0, infinity and NaN
}

// From the sum of squared deviations.
template <class Acc>
FUSEDOPS_DEVICE Acc rstd_of(const NormForward& args, Acc squares) {
  const auto eps = static_cast<Acc>(args.eps), cols = static_cast<Acc>(args.cols);
  const Acc count = args.kind == NormKind::kStd ? cols - 1 : cols;
  const Acc variance = mean_of(squares, count);
  if (args.kind == NormKind::kStd) return device::reciprocal(exact_root(variance) + eps);
  return exact_rsqrt(variance + eps);
}

// The means of g and g * n in the backward pass (norm_backward.h); share is 1 / cols. For StdNorm,
// std * rstd = 1 - eps * rstd. Where std is small beside eps, rounding may be all that is left of
// it, but the second mean's part of a gradient is then as small beside the rest; where std is 0
// that part is 0.
template <class Acc>
FUSEDOPS_DEVICE Pair<Acc> means_of(const NormBackward& args, Pair<Acc> sums, Acc share, Acc rstd) {
  Acc along = share;
  if (args.kind == NormKind::kStd) {
    const Acc kept = device::fma(-static_cast<Acc>(args.eps), rstd, Acc(1));
    along = kept > 0 ? device::reciprocal(static_cast<Acc>(args.cols - 1) * kept) : Acc(0);
  }
  return {has_mean(args) ? sums.first * share : Acc(0), sums.second * along};
}

// Squared deviations from the mean, from the sums of x - base and of its square; `correction` is
// the mean of x - base. Infinity where the squares overflow.
template <class Acc>
FUSEDOPS_DEVICE Acc squares_of(Pair<Acc> sums, Acc correction) {
  // For a constant row this is 0: base is so few ulps off that both sums are exact.
  const Acc left = device::fma(-sums.first, correction, sums.second);
  return sums.second == INFINITY ? sums.second : left < Acc(0) ? Acc(0) : left;
}

template <class Acc>
struct NormStatistics {
  Acc base, correction, rstd;  // mean = base + correction

  // From the sums of x - base and of its square along a row. Where only the squares overflow rstd
  // is 0; a row with a NaN gets NaN, and so does one with an infinity, whose mean is none.
  FUSEDOPS_DEVICE NormStatistics(const NormForward& args, Acc base, Pair<Acc> sums)
      : base(base), correction(0) {
    if (has_mean(args)) correction = mean_of(sums.first, static_cast<Acc>(args.cols));
    const Acc squares = squares_of(sums, correction);
    rstd = squares == INFINITY ? Acc(0) : rstd_of(args, squares);
    rstd += correction - correction;
  }

  FUSEDOPS_DEVICE void save(const NormForward& args, int64_t row) const {
    if (args.rstd == nullptr) return;
    if (has_mean(args)) static_cast<Acc*>(args.mean)[row] = base + correction;
    static_cast<Acc*>(args.rstd)[row] = rstd;
  }
};

// Normalises, rounds and stores one vector of values from which the base is already subtracted.
template <class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_normalised(
    T* row, const NormForward& args, int64_t column, const Acc (&centred)[kWidth],
    const NormStatistics<Acc>& statistics) {
  Acc weight[kWidth], bias[kWidth], result[kWidth];
  if (is_wider<T>(args.weight.data ? args.weight : args.bias)) {
    load_weight<float>(weight, args, column);
    load_bias<float>(bias, args, column);
  } else {
    load_weight<T>(weight, args, column);
    load_bias<T>(bias, args, column);
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    result[j] = (centred[j] - statistics.correction) * statistics.rstd;
  }
  if (sizeof(T) == 2 && args.rounds_normalized) {
    const auto rounded = Vec<T, kWidth>::rounded(result);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) result[j] = rounded.at(j);
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) result[j] = result[j] * weight[j] + bias[j];
  store(row + column, result);
}

// The values of a tile less `base`, and their moments. The first `cols` columns are inside the row;
// those outside count as zeros.
template <class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE Pair<Acc> centre(
    Acc (&centred)[kVectors][kWidth], const Tile<T, kWidth, kVectors>& tile, int32_t cols,
    Acc base) {
  Pair<Acc> moments[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool inside = column_of<kWidth>(i) < cols;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[i][j] = inside ? tile.at(i, j) - base : Acc(0);
    moments[i] = moments_of(centred[i]);
  }
  return tree_sum<kVectors>(moments);
}

// The norm of the thread's row, all of which lies in registers.
template <class Share, class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_DEVICE void norm_row(const NormForward& args, int64_t row) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Acc, sum_slots, Share::kSlots);
  FUSEDOPS_SHARED(Pair<Acc>, moment_slots, Share::kSlots);
  const auto [start, cols] =
      Share::template part_of<kWidth>(row < args.rows ? static_cast<int32_t>(args.cols) : 0);

  Tile<T, kWidth, kVectors> tile;
  T* const sum = args.sum.data ? row_of<T>(args.sum, row) : nullptr;
  NormInput<T, kAdd>(args, row, sum).load(tile, start, cols);

  Acc base = 0;
  if (has_mean(args)) {
    const Acc share = device::reciprocal(static_cast<Acc>(args.cols));
    base = Share::template reduce<Sum>(tile.sum(), sum_slots) * share;
  }

  Acc centred[kVectors][kWidth];
  const Pair<Acc> moments = centre(centred, tile, cols, base);
  const Pair<Acc> sums = Share::template reduce<Sum>(moments, moment_slots);
  const NormStatistics<Acc> statistics(args, base, sums);

  T* const output = row_of<T>(args.output, row);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth>(i);
    if (column < cols) store_normalised(output, args, start + column, centred[i], statistics);
  }
  if (row < args.rows && threadIdx.x == 0 && Share::is_first()) statistics.save(args, row);
  Share::leave();
}

template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL((kNormThreads<T, kWidth, kWidth * kVectors, kAdd>))
norm_forward_registers(NormForward args, int64_t first_row) {
  norm_row<OneBlock, T, kWidth, kVectors, kAdd>(args, launch_row(first_row));
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kNormThreads<T, kWidth, kWidth * kVectors, false>))
norm_stack_registers(NormStack stack) {
  const StackBlock at(stack.count);
  norm_row<OneBlock, T, kWidth, kVectors, false>(stack[at.tensor], at.row());
}

template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kMaxThreads)
norm_forward_cluster(NormForward args, int64_t first_row) {
  norm_row<Cluster, T, kWidth, kVectors, kAdd>(args, first_row + blockIdx.x / kClusterBlocks);
}

// What a segment knows of its row: the mean is base + correction.
template <class Acc>
struct NormPart {
  Acc base, correction, squares;

  // The sums of x - other and of its square along `cols` columns.
  FUSEDOPS_DEVICE Pair<Acc> about(Acc other, Acc cols) const {
    const Acc apart = (base - other) + correction, sum = cols * apart;
    return {sum, device::fma(sum, apart, squares)};
  }
};

// The first tile stays in registers between its mean and its moments. A sum that is not wanted
// waits in the output until it is normalised.
template <class T, int kWidth, bool kAdd>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_forward_parts(NormForward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors < kWidth, kAdd ? 2 : 1 > ;
  FUSEDOPS_SHARED(Acc, sum_slots, kMaxWarps);
  FUSEDOPS_SHARED(Pair<Acc>, moment_slots, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, blockIdx.x);
  T* const sum = row_of<T>(args.sum.data ? args.sum : args.output, segment.row);
  const NormInput<T, kAdd> input(args, segment.row, sum);

  Tile<T, kWidth, kVectors> tile;
  input.load(tile, segment.start, segment.cols);
  Acc base = 0;
  if (has_mean(args)) {
    const auto first_cols =
        static_cast<Acc>(segment.cols < tile.step() ? segment.cols : tile.step());
    base = row_reduce<Sum>(tile.sum(), sum_slots) * device::reciprocal(first_cols);
  }

  Pair<Acc> sums{0, 0};
  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    const int32_t left = segment.cols - start;
    if (start > 0) input.load(tile, segment.start + start, left);
    Acc centred[kVectors][kWidth];
    sums = sums + centre(centred, tile, left, base);
  }
  sums = row_reduce<Sum>(sums, moment_slots);
  if (threadIdx.x != 0) return;
  const Acc mean = mean_of(sums.first, static_cast<Acc>(segment.cols));
  const Acc correction = has_mean(args) ? mean : Acc(0);
  parts_of<NormPart<Acc>>(args.workspace, segments, segment.row)[segment.index] = {
      base, correction, squares_of(sums, correction)};
}

// The statistics of a row from those of its segments, around the rounded mean of all.
template <class Acc>
FUSEDOPS_DEVICE NormStatistics<Acc> merged_norm(
    const NormForward& args, Segments segments, int64_t row, Acc* sum_slots,
    Pair<Acc>* moment_slots) {
  const auto* const parts = parts_of<NormPart<Acc>>(args.workspace, segments, row);
  const auto cols_of = [&](int32_t i) {
    return static_cast<Acc>(Segment::columns_of(segments, args.cols, i));
  };
  Acc base = 0;
  if (has_mean(args)) {
    Acc sum = 0;
    for (int32_t i = threadIdx.x; i < segments.count; i += blockDim.x) {
      sum += cols_of(i) * (parts[i].base + parts[i].correction);
    }
    base = row_reduce<Sum>(sum, sum_slots) * device::reciprocal(static_cast<Acc>(args.cols));
  }
  Pair<Acc> sums{0, 0};
  for (int32_t i = threadIdx.x; i < segments.count; i += blockDim.x) {
    sums = sums + parts[i].about(base, cols_of(i));
  }
  return NormStatistics<Acc>(args, base, row_reduce<Sum>(sums, moment_slots));
}

// The first tile is on its way while the parts are merged.
template <class T, int kWidth, bool kAdd>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_forward_apply(NormForward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors < kWidth, kAdd ? 2 : 1 > ;
  FUSEDOPS_SHARED(Acc, sum_slots, kMaxWarps);
  FUSEDOPS_SHARED(Pair<Acc>, moment_slots, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, backwards(blockIdx.x));
  T* const output = row_of<T>(args.output, segment.row);
  const T* const sum = args.sum.data ? row_of<T>(args.sum, segment.row) : output;
  const T* const input = (kAdd ? sum : row_of<T>(args.input, segment.row)) + segment.start;

  Tile<T, kWidth, kVectors> tile;
  tile.load(input, segment.cols, 0);
  const NormStatistics<Acc> statistics =
      merged_norm(args, segments, segment.row, sum_slots, moment_slots);

  for (int32_t start = 0; start < segment.cols; start += tile.step()) {
    const int32_t left = segment.cols - start;
    if (start > 0) tile.load(input + start, left, 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column >= left) continue;
      Acc centred[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) centred[j] = tile.at(i, j) - statistics.base;
      store_normalised(output, args, segment.start + start + column, centred, statistics);
    }
  }
  if (segment.index == 0 && threadIdx.x == 0) statistics.save(args, segment.row);
}

}  // namespace fusedops::cuda
