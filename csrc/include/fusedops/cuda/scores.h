// The scores of a masked softmax: a row's operands, and which of its columns are hidden.
//
// Contract: as in args.h; an operand with a value per column is aligned for kWidth elements in
// every row. The kinds of operands are chosen at run time, the same for all threads: each costs a
// branch a tile.
// Numerics: scale * x + (bias + mask), computed in float (double for double).
#pragma once

#include "fusedops/cuda/tile.h"

namespace fusedops::cuda {

FUSEDOPS_DEVICE int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// The columns of a row that causality shows, and where its operands begin. A row past the last has
// no columns.
struct ScoreRow {
  int64_t index;
  int32_t cols, visible;       // causality hides the columns from `visible` on
  int64_t bias = 0, mask = 0;  // offsets of the row in the operands, in elements

  FUSEDOPS_DEVICE ScoreRow(const Scores& scores, int64_t row, int64_t rows, int64_t all_cols)
      : index(row), cols(row < rows ? static_cast<int32_t>(all_cols) : 0), visible(cols) {
    if (scores.causal.on) visible = visible_columns(scores.causal);
    auto rest = static_cast<uint64_t>(row);
    // Unrolled, because indexing the arguments would copy them to a stack.
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

  FUSEDOPS_DEVICE int32_t hidden_cols() const { return cols - visible; }

 private:
  // The diagonal may be any number; clamping keeps the sum from overflowing.
  FUSEDOPS_DEVICE int32_t visible_columns(const Causal& causal) const {
    const auto query =
        static_cast<int64_t>(static_cast<uint64_t>(index) % static_cast<uint64_t>(causal.queries));
    const int64_t diagonal = clamp(causal.diagonal, -causal.queries, cols);
    return static_cast<int32_t>(clamp(query + diagonal + 1, 0, cols));
  }
};

// The elements of a tile that a bool mask shows: bit i * kWidth + j is element j of vector i. The
// row has `cols` columns from the tile on.
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

// Adds an operand of numbers. A bool mask adds nothing.
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

// The scores of a row that one thread holds, laid out as in a Tile. The score is -inf where
// causality hides a column or the row has ended, and mask_value where a bool mask hides it.
template <class In, class Acc, int kWidth, int kVectors>
struct ScoreTile {
  Acc values[kVectors][kWidth];
  bool seen;  // whether any of them is visible and not -inf

  // Loads from column `start` of the row on.
  FUSEDOPS_DEVICE void load(
      const ConstRows& input, const Scores& scores, const ScoreRow& row, int64_t start) {
    const auto left = static_cast<int32_t>(row.visible - start);
    Tile<In, kWidth, kVectors> tile;
    tile.load(row_of<In>(input, row.index) + start, left, 0);
    const int64_t bias = row.bias + start * scores.bias.col_stride;
    const int64_t mask = row.mask + start * scores.mask.col_stride;
    const uint32_t shown = shown_bits<kWidth, kVectors>(scores.mask, mask, left);
    // The operands are added to each other first, so that nothing waits for the input before they
    // have arrived.
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
