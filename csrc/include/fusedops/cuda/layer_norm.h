// Layer normalisation along rows, forward.
//
// Contract: rows as in args.h; kWidth divides cols; every row, weight and bias are aligned for
// kWidth elements (16 bytes at most). _registers: blockDim.x * kVectors * kWidth >= cols; _looped:
// any cols, the row is read twice. blockDim.x threads share a row, blockDim.y rows a block.
//
// Numerics: float (double for double), rounded once. With any m near the mean and d = mean(x - m):
// mean = m + d, var = mean((x - m)^2) - d^2, output = ((x - m) - d) * rstd. m is the rounded mean,
// of the first tile in a looped row, so that a row far from zero loses nothing.
//
// Limits: values above 3e38 / cols overflow the sum, values above 1e19 the squares (rstd = 0).
#pragma once

#include "fusedops/cuda/policy.h"
#include "fusedops/cuda/reduce.h"
#include "fusedops/cuda/tile.h"

namespace fusedops::cuda {

// One vector of weight or bias, or `otherwise` where there is none.
template <class W, int kWidth, class Acc>
FUSEDOPS_DEVICE void load_parameter(
    Acc (&values)[kWidth], const ConstColumns& parameter, int64_t column, Acc otherwise) {
  const auto vector = parameter.data
      ? Vec<W, kWidth>::load_cached(static_cast<const W*>(parameter.data) + column)
      : Vec<W, kWidth>::filled(otherwise);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j);
}

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

template <class Acc>
struct NormStatistics {
  Acc base, correction, rstd;  // mean = base + correction

  // From the sums of x - base and of its square along a row.
  FUSEDOPS_DEVICE NormStatistics(Acc base, Pair<Acc> sums, Acc share, double eps)
      : base(base), correction(sums.first * share) {
    const Acc mean_square = sums.second * share;
    const Acc variance = device::maximum(mean_square - correction * correction, Acc(0));
    // Where only the squares overflow rstd is 0; a row that holds an infinity or a NaN gets NaN.
    rstd = mean_square < INFINITY ? device::rsqrt(variance + static_cast<Acc>(eps))
                                  : correction - correction;
  }

  FUSEDOPS_DEVICE void save(const LayerNormForward& args, int64_t row) const {
    static_cast<Acc*>(args.mean)[row] = base + correction;
    static_cast<Acc*>(args.rstd)[row] = rstd;
  }
};

// Normalises, rounds and stores one vector of values from which the base is already subtracted.
template <class W, class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void store_normalised(
    T* row, const LayerNormForward& args, int64_t column, const Acc (&centred)[kWidth],
    const NormStatistics<Acc>& statistics) {
  Acc weight[kWidth], bias[kWidth], result[kWidth];
  load_parameter<W>(weight, args.weight, column, Acc(1));
  load_parameter<W>(bias, args.bias, column, Acc(0));
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const Acc normal = (centred[j] - statistics.correction) * statistics.rstd;
    result[j] = normal * weight[j] + bias[j];
  }
  store(row + column, result);
}

template <class T, class W, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kNormThreads<T, kWidth, kWidth * kVectors>))
layer_norm_forward_registers(LayerNormForward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Acc, sum_slots, kMaxWarps);
  FUSEDOPS_SHARED(Pair<Acc>, moment_slots, kMaxWarps);
  const int64_t row = launch_row(first_row);
  const int32_t cols = row < args.rows ? static_cast<int32_t>(args.cols) : 0;
  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));

  Tile<T, kWidth, kVectors> tile;
  tile.load(row_of<T>(args.input, row), cols, 0);

  const Acc base = row_reduce<Sum>(tile.sum(), sum_slots) * share;

  Acc centred[kVectors][kWidth];
  Pair<Acc> moments[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool inside = column_of<kWidth>(i) < cols;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[i][j] = inside ? tile.at(i, j) - base : Acc(0);
    moments[i] = moments_of(centred[i]);
  }
  const Pair<Acc> sums = row_reduce<Sum>(tree_sum<kVectors>(moments), moment_slots);
  const NormStatistics<Acc> statistics(base, sums, share, args.eps);

  T* const output = row_of<T>(args.output, row);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth>(i);
    if (column < cols) store_normalised<W>(output, args, column, centred[i], statistics);
  }
  if (row < args.rows && threadIdx.x == 0) statistics.save(args, row);
}

// One row a block. The first tile stays in registers between its mean and its moments.
template <class T, class W, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads)
layer_norm_forward_looped(LayerNormForward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 1>;
  FUSEDOPS_SHARED(Acc, sum_slots, kMaxWarps);
  FUSEDOPS_SHARED(Pair<Acc>, moment_slots, kMaxWarps);
  const int64_t row = launch_row(first_row), step = int64_t{blockDim.x} * kVectors * kWidth;
  const T* const input = row_of<T>(args.input, row);
  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));

  Tile<T, kWidth, kVectors> tile;
  tile.load(input, static_cast<int32_t>(args.cols), 0);
  const Acc first_cols = static_cast<Acc>(args.cols < step ? args.cols : step);
  const Acc base = row_reduce<Sum>(tile.sum(), sum_slots) * device::reciprocal(first_cols);

  Pair<Acc> sums{0, 0};
  for (int64_t start = 0; start < args.cols; start += step) {
    const auto left = static_cast<int32_t>(args.cols - start);
    if (start > 0) tile.load(input + start, left, 0);
    Pair<Acc> moments[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool inside = column_of<kWidth>(i) < left;
      Acc centred[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) centred[j] = inside ? tile.at(i, j) - base : Acc(0);
      moments[i] = moments_of(centred);
    }
    sums = sums + tree_sum<kVectors>(moments);
  }
  sums = row_reduce<Sum>(sums, moment_slots);
  const NormStatistics<Acc> statistics(base, sums, share, args.eps);

  T* const output = row_of<T>(args.output, row);
  for (int64_t start = 0; start < args.cols; start += step) {
    const auto left = static_cast<int32_t>(args.cols - start);
    tile.load(input + start, left, 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc centred[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) centred[j] = tile.at(i, j) - base;
      const int32_t column = column_of<kWidth>(i);
      if (column < left) store_normalised<W>(output, args, start + column, centred, statistics);
    }
  }
  if (threadIdx.x == 0) statistics.save(args, row);
}

}  // namespace fusedops::cuda
