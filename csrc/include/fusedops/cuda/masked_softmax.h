// masked_softmax with dropout, along rows, forward and backward.
//
// Contract: rows and operands as in args.h; kWidth divides cols, and every row and operand is
// aligned for kWidth elements. _registers: the row stays in registers,
// blockDim.x * kVectors * kWidth >= cols. _looped: any cols, the row is read twice. blockDim.x
// threads share a row, and a block has blockDim.y rows.
//
// Numerics: computed in float (double for double) and rounded once. Columns that causality hides
// are not read: their score is mask_value, whose exponential is added to the sum once for each of
// them. NaN and infinities are handled as in softmax.h, and so as by masked_fill and softmax.
//
// Masks, bias, causality and dropout are chosen at run time: each costs a branch a tile or a
// vector.
#pragma once

#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/philox.h"
#include "fusedops/cuda/reduce.h"
#include "fusedops/cuda/scores.h"
#include "fusedops/cuda/softmax.h"

namespace fusedops::cuda {

// e^(score - largest), or 0 in a row whose result is zeros.
template <class Out>
struct MaskedExponentials {
  using Acc = AccumulatorOf<Out>;
  Acc largest;  // score of the row
  Acc hidden;   // the exponential of a column that causality hides
  bool zero;

  FUSEDOPS_DEVICE MaskedExponentials(
      const MaskedSoftmaxForward& args, const ScoreRow& row, Acc visible_largest, Acc seen)
      : largest(visible_largest), hidden(0), zero(args.zero_masked_rows && seen == 0) {
    if (row.hidden_cols() == 0) return;
    const auto mask_value = static_cast<Acc>(args.scores.mask_value);
    largest = device::maximum(largest, mask_value);
    hidden = of(mask_value);
  }

  FUSEDOPS_DEVICE Acc of(Acc score) const {
    return zero ? Acc(0) : exponential<Out>(score - largest);
  }
};

// Stores a row once its sum is known.
template <class Out>
struct MaskedOutput {
  using Acc = AccumulatorOf<Out>;
  Out *output, *probabilities;
  int32_t visible;
  Acc scale;
  Acc hidden;  // the probability of a column that causality hides
  DropoutRow<Acc> dropout;

  FUSEDOPS_DEVICE MaskedOutput(
      const MaskedSoftmaxForward& args, const ScoreRow& row,
      const MaskedExponentials<Out>& exponentials, Acc visible_sum)
      : output(row_of<Out>(args.output, row.index)),
        probabilities(row_of<Out>(args.probabilities, row.index)),
        visible(row.visible),
        dropout(args.dropout, row.index) {
    const Acc sum = visible_sum + static_cast<Acc>(row.hidden_cols()) * exponentials.hidden;
    scale = exponentials.zero ? Acc(0) : device::reciprocal(sum);
    hidden = exponentials.hidden * scale;
    if (args.probabilities.data == nullptr) probabilities = nullptr;
  }

  template <int kWidth>
  FUSEDOPS_DEVICE void store_exponentials(int32_t column, const Acc (&exponentials)[kWidth]) const {
    Acc result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      result[j] = column + j < visible ? exponentials[j] * scale : hidden;
    }
    if (probabilities) store(probabilities + column, result);
    dropout.apply(result, column);
    store(output + column, result);
  }
};

template <class In, class Out, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kSoftmaxBackwardThreads<In, kWidth>))
masked_softmax_forward_registers(MaskedSoftmaxForward args, int64_t first_row) {
  using Acc = AccumulatorOf<Out>;
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_seen, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const ScoreRow row(args.scores, launch_row(first_row), args.rows, args.cols);

  ScoreTile<In, Acc, kWidth, kVectors> tile;
  tile.load(args.input, args.scores, row, 0);

  const Acc largest = row_reduce<Max>(tile.max(), shared_max);
  Acc seen = tile.seen;
  if (args.zero_masked_rows) seen = row_reduce<Max>(seen, shared_seen);
  const MaskedExponentials<Out> exponentials(args, row, largest, seen);

  Acc sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) tile.values[i][j] = exponentials.of(tile.values[i][j]);
    sums[i] = tree_sum<kWidth>(tile.values[i]);
  }
  const Acc sum = row_reduce<Sum>(tree_sum<kVectors>(sums), shared_sums);

  const MaskedOutput<Out> output(args, row, exponentials, sum);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth>(i);
    if (column < row.cols) output.store_exponentials(column, tile.values[i]);
  }
}

// A block has one row. The sum of a thread whose columns are all -inf stays 0, so that the rest of
// the row is right.
template <class In, class Out, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads)
masked_softmax_forward_looped(MaskedSoftmaxForward args, int64_t first_row) {
  using Acc = AccumulatorOf<Out>;
  // With eight doubles of one element each, the exponentials would spill.
  constexpr int kVectors = sizeof(Acc) == 8 ? 4 : kLoopVectors<kWidth, 1>;
  FUSEDOPS_SHARED(Acc, shared_max, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_seen, kMaxWarps);
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const ScoreRow row(args.scores, launch_row(first_row), args.rows, args.cols);
  const int64_t step = int64_t{blockDim.x} * kVectors * kWidth;

  ScoreTile<In, Acc, kWidth, kVectors> tile;
  Acc largest = -INFINITY, sum = 0, seen = 0;
  for (int64_t start = 0; start < row.visible; start += step) {
    tile.load(args.input, args.scores, row, start);
    const Acc larger = device::maximum(largest, tile.max());
    const Acc shift = finite_or_zero(larger);
    Acc exponentials[kVectors * kWidth];
#pragma unroll
    for (int k = 0; k < kVectors * kWidth; ++k) {
      exponentials[k] = exponential<Out>(tile.values[k / kWidth][k % kWidth] - shift);
    }
    sum = sum * exponential<Out>(largest - shift) + tree_sum<kVectors * kWidth>(exponentials);
    largest = larger;
    seen = device::maximum(seen, Acc(tile.seen));
  }
  const Acc row_largest = row_reduce<Max>(largest, shared_max);
  if (args.zero_masked_rows) seen = row_reduce<Max>(seen, shared_seen);
  const MaskedExponentials<Out> exponentials(args, row, row_largest, seen);
  sum *= exponential<Out>(largest - finite_or_zero(exponentials.largest));

  const MaskedOutput<Out> output(args, row, exponentials, row_reduce<Sum>(sum, shared_sums));
  for (int64_t start = 0; start < row.cols; start += step) {
    tile.load(args.input, args.scores, row, start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) tile.values[i][j] = exponentials.of(tile.values[i][j]);
      const int64_t column = start + column_of<kWidth>(i);
      if (column < row.cols)
        output.store_exponentials(static_cast<int32_t>(column), tile.values[i]);
    }
  }
}

// Columns that the backward pass reads: the visible ones, or all where hidden columns have a
// probability other than 0. All hidden columns have the same, so that the last one tells.
template <class T>
FUSEDOPS_DEVICE int32_t columns_read(const MaskedSoftmaxBackward& args, const ScoreRow& row) {
  if (row.hidden_cols() == 0) return row.visible;
  const T* const last = row_of<T>(args.probabilities, row.index) + (row.cols - 1);
  return Vec<T, 1>::load(last).at(0) == 0 ? row.visible : row.cols;
}

// Tiles of grad_output and of the probabilities.
template <class T, int kWidth, int kVectors>
struct MaskedGradientTile {
  using Acc = AccumulatorOf<T>;
  Tile<T, kWidth, kVectors> grad_outputs, probabilities;
  Acc grads[kVectors][kWidth];  // of the probabilities: grad_output after dropout

  // Loads from column `start` on; columns beyond the next `cols` count as zeros.
  FUSEDOPS_DEVICE void load(
      const MaskedSoftmaxBackward& args, int64_t row, int64_t start, int32_t cols) {
    grad_outputs.load(row_of<T>(args.grad_output, row) + start, cols, 0);
    probabilities.load(row_of<T>(args.probabilities, row) + start, cols, 0);
  }

  FUSEDOPS_DEVICE void drop(const DropoutRow<Acc>& dropout, int64_t start) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) grads[i][j] = grad_outputs.at(i, j);
      dropout.apply(grads[i], static_cast<int32_t>(start + column_of<kWidth>(i)));
    }
  }

  FUSEDOPS_DEVICE Acc sum(int32_t cols) const {
    Acc sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc products[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const bool is_inside = column_of<kWidth>(i) + j < cols;
        products[j] = is_inside ? grads[i][j] * probabilities.at(i, j) : Acc(0);
      }
      sums[i] = tree_sum<kWidth>(products);
    }
    return tree_sum<kVectors>(sums);
  }

  template <class Out>
  FUSEDOPS_DEVICE void store_to(
      const Rows& grad_input, const ScoreRow& row, int64_t start, uint32_t shown, Acc scale,
      Acc sum) const {
    Out* const to = row_of<Out>(grad_input, row.index) + start;
    const auto left = static_cast<int32_t>(row.cols - start);
    const auto visible = static_cast<int32_t>(row.visible - start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      Acc result[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const bool is_visible = column + j < visible && (shown >> (i * kWidth + j) & 1);
        result[j] = is_visible ? scale * probabilities.at(i, j) * (grads[i][j] - sum) : Acc(0);
      }
      if (column < left) store(to + column, result);
    }
  }
};

template <class T, class Out, int kWidth, int kVectors>
FUSEDOPS_KERNEL((kSoftmaxBackwardThreads<T, kWidth>))
masked_softmax_backward_registers(MaskedSoftmaxBackward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const ScoreRow row(args.scores, launch_row(first_row), args.rows, args.cols);

  MaskedGradientTile<T, kWidth, kVectors> tile;
  tile.load(args, row.index, 0, row.visible);
  const int32_t read = columns_read<T>(args, row);
  if (read > row.visible) tile.load(args, row.index, 0, read);
  const auto shown = shown_bits<kWidth, kVectors>(args.scores.mask, row.mask, row.visible);

  tile.drop(DropoutRow<Acc>(args.dropout, row.index), 0);
  const Acc sum = row_reduce<Sum>(tile.sum(read), shared_sums);
  const auto scale = static_cast<Acc>(args.scores.scale);
  tile.template store_to<Out>(args.grad_input, row, 0, shown, scale, sum);
}

template <class T, class Out, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads)
masked_softmax_backward_looped(MaskedSoftmaxBackward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 2>;
  FUSEDOPS_SHARED(Acc, shared_sums, kMaxWarps);
  const ScoreRow row(args.scores, launch_row(first_row), args.rows, args.cols);
  const int64_t step = int64_t{blockDim.x} * kVectors * kWidth;
  const DropoutRow<Acc> dropout(args.dropout, row.index);
  const int32_t read = columns_read<T>(args, row);

  MaskedGradientTile<T, kWidth, kVectors> tile;
  Acc sum = 0;
  for (int64_t start = 0; start < read; start += step) {
    const auto left = static_cast<int32_t>(read - start);
    tile.load(args, row.index, start, left);
    tile.drop(dropout, start);
    sum += tile.sum(left);
  }
  sum = row_reduce<Sum>(sum, shared_sums);

  const Operand& mask = args.scores.mask;
  const auto scale = static_cast<Acc>(args.scores.scale);
  for (int64_t start = 0; start < row.cols; start += step) {
    const auto left = static_cast<int32_t>(row.visible - start);
    tile.load(args, row.index, start, left);
    const int64_t offset = row.mask + start * mask.col_stride;
    const auto shown = shown_bits<kWidth, kVectors>(mask, offset, left);
    tile.drop(dropout, start);
    tile.template store_to<Out>(args.grad_input, row, start, shown, scale, sum);
  }
}

}  // namespace fusedops::cuda
