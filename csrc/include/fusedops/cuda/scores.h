// What masked softmax takes the softmax of: a row's operands, and what of the row is hidden.
//
// Contract: as in args.h; an operand with a value per column is aligned for kWidth elements in
// every row. Its kind is a run-time choice, the same for all threads: one branch a tile.
// Numerics: float (double for double): scale * x + (bias + mask).
#pragma once

#include "fusedops/cuda/tile.h"

namespace fusedops::cuda {

FUSEDOPS_DEVICE int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// What causality shows of one row, and where its operands begin. It has no columns past the last
// row.
struct ScoreRow {
  int64_t index;
  int32_t cols, visible;       // columns; those from `visible` on are hidden by causality
  int64_t bias = 0, mask = 0;  // elements from the beginnings of the operands

  FUSEDOPS_DEVICE ScoreRow(const Scores& scores, int64_t row, int64_t rows, int64_t all_cols)
      : index(row), cols(row < rows ? static_cast<int32_t>(all_cols) : 0), visible(cols) {
    if (scores.causal.on) visible = visible_columns(scores.causal);
    auto rest = static_cast<uint64_t>(row);
    // Unrolled: the arguments cannot be indexed without a copy of them on a stack.
#pragma unroll
    for (int d = kMaxRowDims - 1; d >= 0; --d) {
      if (d >= scores.dims.count) continue;
      const uint64_t outer = d > 0 ? rest / static_cast<uint64_t>(scores.dims.sizes[d]) : 0;
      const auto at = static_cast<int64_t>(rest - outer * scores.dims.sizes[d]);
      bias += at * scores.bias.strides[d];
      mask += at * scores.mask.strides[d];
      rest = outer;
    }
  }

  FUSEDOPS_DEVICE int32_t hidden() const { return cols - visible; }

 private:
  // The diagonal may be any number: clamped, it cannot make the sum overflow.
  FUSEDOPS_DEVICE int32_t visible_columns(const Causal& causal) const {
    const auto query =
        static_cast<int64_t>(static_cast<uint64_t>(index) % static_cast<uint64_t>(causal.queries));
    const int64_t diagonal = clamp(causal.diagonal, -causal.queries, cols);
    return static_cast<int32_t>(clamp(query + diagonal + 1, 0, cols));
  }
};

// What of a tile a bool mask shows: bit i * kWidth + j is element j of vector i. `cols` are those
// of the row from the tile on.
template <int kWidth, int kVectors>
FUSEDOPS_DEVICE uint32_t shown_bits(const Operand& mask, int64_t offset, int32_t cols) {
  static_assert(kWidth * kVectors <= 32);
  if (mask.data == nullptr || !mask.is_bool || cols <= 0) return ~0u;
  const auto* const row = static_cast<const bool*>(mask.data) + offset;
  if (mask.col_stride == 0) return *row ? ~0u : 0;
  Tile<bool, kWidth, kVectors> tile;
  tile.load_cached(row, cols);
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) bits |= tile.vectors[i].bits() << (i * kWidth);
  return bits;
}

template <class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void add_elements(
    Acc (&sums)[kVectors][kWidth], const void* data, int64_t offset, int32_t col_stride,
    int32_t cols) {
  const T* const row = static_cast<const T*>(data) + offset;
  Tile<T, kWidth, kVectors> tile;
  if (col_stride != 0) {
    tile.load_cached(row, cols);
  } else {
    const auto repeated = Vec<T, kWidth>::filled(Vec<T, 1>::load_cached(row).at(0));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) tile.vectors[i] = repeated;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[i][j] += tile.at(i, j);
  }
}

// Adds an operand of numbers; one of bools adds nothing.
template <class In, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void add_operand(
    Acc (&sums)[kVectors][kWidth], const Operand& operand, int64_t offset, int32_t cols) {
  if (operand.data == nullptr || operand.is_bool || cols <= 0) return;
  if constexpr (sizeof(In) == 2) {
    if (operand.dtype == DType::kFloat32) {
      return add_elements<float>(sums, operand.data, offset, operand.col_stride, cols);
    }
  }
  add_elements<In>(sums, operand.data, offset, operand.col_stride, cols);
}

// A thread's share of the scores of a row, laid out as a Tile. Where causality or the end of the
// row hides a column its score is -inf; where a bool mask does, mask_value.
template <class In, class Acc, int kWidth, int kVectors>
struct ScoreTile {
  Acc values[kVectors][kWidth];
  bool seen;  // whether a score of them is visible, and not -inf

  // From column `start` of the row on.
  FUSEDOPS_DEVICE void load(
      const ConstRows& input, const Scores& scores, const ScoreRow& row, int64_t start) {
    const auto left = static_cast<int32_t>(row.visible - start);
    Tile<In, kWidth, kVectors> tile;
    tile.load(row_of<In>(input, row.index) + start, left, 0);
    const int64_t bias = row.bias + start * scores.bias.col_stride;
    const int64_t mask = row.mask + start * scores.mask.col_stride;
    const uint32_t shown = shown_bits<kWidth, kVectors>(scores.mask, mask, left);
    // Summed up beforehand: until the operands are here nothing waits for the input.
    Acc sums[kVectors][kWidth] = {};
    add_operand<In>(sums, scores.bias, bias, left);
    add_operand<In>(sums, scores.mask, mask, left);

    const auto scale = static_cast<Acc>(scores.scale);
    const auto mask_value = static_cast<Acc>(scores.mask_value);
    seen = false;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const bool is_inside = column_of<kWidth>(i) + j < left;
        const bool is_shown = shown >> (i * kWidth + j) & 1;
        const Acc score = scale * tile.at(i, j) + sums[i][j];
        seen |= is_inside && is_shown && score != -INFINITY;
        values[i][j] = !is_inside ? -INFINITY : is_shown ? score : mask_value;
      }
    }
  }

  FUSEDOPS_DEVICE Acc max() const {
    Acc max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) max = device::maximum(max, values[i][j]);
    }
    return max;
  }
};

}  // namespace fusedops::cuda
