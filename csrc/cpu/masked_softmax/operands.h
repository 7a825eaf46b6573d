// Finds the operands of rows of scores (bias, mask, interval and sink), and applies a bias or a
// mask to a tile of scores.
#pragma once

#include "cpu/masked_softmax/visible.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

struct NoOperand {};

// Describes which columns of a row its interval and a bool mask leave visible.
struct VisibleColumns {
  RowRange range;  // the other columns are hidden; {0, 0} if all columns are hidden
  bool all;        // whether all columns of the range are visible
};

// Whether the first `cols` bools are all true. The loop reads all of them: a loop that ended at the
// first false bool would end elsewhere in each row and cost a mispredicted branch.
inline bool are_all_true(const Bool* bools, int64_t cols) {
  constexpr uint64_t kTrue = 0x0101010101010101;
  bool all = true;
  int64_t col = 0;
  if (cols >= kVectorBytes) {
    const VecI64 is_true = VecI64{} + int64_t(kTrue);
    VecI64 differs = Load<VecI64>(bools + cols - kVectorBytes) ^ is_true;
    for (; col + kVectorBytes <= cols; col += kVectorBytes) {
      differs |= Load<VecI64>(bools + col) ^ is_true;
    }
    return !AnyTrue(differs != 0);
  }
  for (; col + 8 <= cols; col += 8) all &= Load<uint64_t>(bools + col) == kTrue;
  for (; col < cols; ++col) all &= bools[col].value != 0;
  return all;
}

// Whether all of a vector's bools are false.
inline bool are_all_false(const Bool* bools) { return !AnyTrue(Load<VecI64>(bools) != 0); }

// Return the first true bool of a range (its end if all are false), and the one after the last (its
// start). The last steps count bits, because a loop over bools would end elsewhere in each row.
inline int64_t first_true(const Bool* bools, RowRange range) {
  auto [begin, end] = range;
  while (end - begin >= kVectorBytes && are_all_false(bools + begin)) begin += kVectorBytes;
  for (; end - begin >= 8; begin += 8) {
    const auto word = Load<uint64_t>(bools + begin);
    if (word != 0) return begin + __builtin_ctzll(word) / 8;
  }
  while (begin < end && bools[begin].value == 0) ++begin;
  return begin;
}
inline int64_t after_last_true(const Bool* bools, RowRange range) {
  auto [begin, end] = range;
  while (end - begin >= kVectorBytes && are_all_false(bools + end - kVectorBytes)) {
    end -= kVectorBytes;
  }
  for (; end - begin >= 8; end -= 8) {
    const auto word = Load<uint64_t>(bools + end - 8);
    if (word != 0) return end - __builtin_clzll(word) / 8;
  }
  while (begin < end && bools[end - 1].value == 0) --end;
  return end;
}

// Returns the range without the false bools at its start and at its end. Inline, it would take
// registers from the loops over columns.
FUSEDOPS_NOINLINE RowRange from_true_to_true(const Bool* bools, RowRange range) {
  const int64_t end = after_last_true(bools, range);
  return range_of(first_true(bools, RowRange{range.begin, end}), end);
}

// Returns which columns in `range` a bool mask leaves visible.
inline VisibleColumns columns_visible(const Bool* mask, RowRange range) {
  const RowRange shown = from_true_to_true(mask, range);
  return {shown, are_all_true(mask + shown.begin, shown.end - shown.begin)};
}

// Steps through rows, and finds their operands and visible columns.
class OperandRows {
 public:
  OperandRows(const Scores& scores, int64_t row) : scores_(scores), query_(0) {
    const bool has_diagonal = scores.causal.on || scores.causal.has_lower_diagonal;
    if (has_diagonal) query_ = row % scores.causal.queries;
    const bool has_operands = scores.bias.data != nullptr || scores.mask.data != nullptr ||
        scores.has_bounds() || scores.sinks.data != nullptr;
    last_dim_ = has_operands ? scores.dims.count - 1 : -1;
    is_mask_shared_ = last_dim_ < 0 || scores.mask.strides[last_dim_] == 0;
    are_shared_ = !has_diagonal && do_not_move(last_dim_);
    for (int32_t d = last_dim_; d >= 0; --d) {
      index_[d] = row % scores.dims.sizes[d];
      row /= scores.dims.sizes[d];
      move(d, index_[d]);
    }
  }

  // Whether this row and the following ones, `rows` in all, have the same operands and interval.
  bool are_alike(int64_t rows) const {
    return are_shared_ &&
        (last_dim_ < 0 || index_[last_dim_] + rows <= scores_.dims.sizes[last_dim_]);
  }

  // Goes on by one row, or by several if these are alike.
  FUSEDOPS_INLINE void next(int64_t rows = 1) {
    if (++query_ == scores_.causal.queries) query_ = 0;
    for (int32_t d = last_dim_; d >= 0; --d, rows = 1) {
      move(d, rows);
      index_[d] += rows;
      if (index_[d] < scores_.dims.sizes[d]) return;
      move(d, -index_[d]);
      index_[d] = 0;
    }
  }

  const void* bias() const { return at(scores_.bias, bias_); }
  const void* mask() const { return at(scores_.mask, mask_); }

  // Returns the row's sink, or -inf if there is none.
  template <class C>
  C sink() const {
    const RowValues& sinks = scores_.sinks;
    return sinks.data == nullptr ? -kInfinity<C> : static_cast<const C*>(sinks.data)[sinks_];
  }

  // Returns the columns that causality, the lower diagonal, start and end leave visible.
  FUSEDOPS_INLINE RowRange interval(int64_t cols) const {
    const Causal& causal = scores_.causal;
    int64_t begin = 0, end = cols;
    if (causal.on) end = clamped(query_ + causal.diagonal + 1, 0, cols);
    if (scores_.end.data != nullptr) end = clamped(bound(scores_.end, end_), 0, end);
    if (causal.has_lower_diagonal) begin = clamped(query_ + causal.lower_diagonal, 0, end);
    if (scores_.start.data != nullptr) begin = clamped(bound(scores_.start, start_), begin, end);
    return range_of(begin, end);
  }

  // Returns the visible columns of the row, which has `cols` columns. A mask that rows in
  // succession share, such as a padding mask, is read once.
  VisibleColumns visible(int64_t cols) {
    const RowRange range = in_registers(interval(cols));
    const auto* row = static_cast<const Bool*>(mask());
    if (row == nullptr) return {range, true};
    if (!scores_.mask.is_bool) return {range, false};
    if (scores_.mask.col_stride == 0) return {row->value != 0 ? range : RowRange{0, 0}, true};
    if (!is_mask_shared_) {
      const VisibleColumns seen = columns_visible(row, range);
      return {in_registers(seen.range), seen.all};
    }
    if (row != last_mask_) {
      last_mask_ = row;
      last_visible_ = columns_visible(row, RowRange{0, cols});
    }
    const RowRange shown = in_registers(last_visible_.range);
    return {in_registers(intersection(range, shown)), last_visible_.all};
  }

 private:
  static int64_t bound(const RowBound& bound, int64_t offset) {
    if (bound.is_int64) return static_cast<const int64_t*>(bound.data)[offset];
    return static_cast<const int32_t*>(bound.data)[offset];
  }

  static const void* at(const Operand& operand, int64_t offset) {
    if (operand.data == nullptr) return nullptr;
    return static_cast<const char*>(operand.data) + offset * element_bytes(operand);
  }

  // Whether all operands are the same along a dimension of the rows; true if there is none.
  bool do_not_move(int32_t dim) const {
    return dim < 0 ||
        (scores_.bias.strides[dim] == 0 && scores_.mask.strides[dim] == 0 &&
         scores_.start.strides[dim] == 0 && scores_.end.strides[dim] == 0 &&
         scores_.sinks.strides[dim] == 0);
  }

  FUSEDOPS_INLINE void move(int32_t dim, int64_t steps) {
    bias_ += steps * scores_.bias.strides[dim];
    mask_ += steps * scores_.mask.strides[dim];
    start_ += steps * scores_.start.strides[dim];
    end_ += steps * scores_.end.strides[dim];
    sinks_ += steps * scores_.sinks.strides[dim];
  }

  const Scores& scores_;
  int64_t bias_ = 0, mask_ = 0, start_ = 0, end_ = 0, sinks_ = 0;  // offsets in elements
  int64_t query_, index_[kMaxRowDims] = {};
  int32_t last_dim_;     // the last dimension of the rows, or -1 if there are no operands
  bool are_shared_;      // whether rows that differ in the last dimension have the same operands
  bool is_mask_shared_;  // whether they have the same mask
  const Bool* last_mask_ = nullptr;
  VisibleColumns last_visible_ = {};
};

template <class T>
void splat(const void* value, void* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) static_cast<T*>(to)[i] = *static_cast<const T*>(value);
}

// Returns the values of an operand for one row, or null if `row` is null. If the operand has the
// same value in all columns, the value is written `cols` times, enough for a chunk, to `repeated`,
// which is returned.
inline const void* values_of(
    const Operand& operand, const void* row, void* repeated, int64_t cols) {
  if (row == nullptr || operand.col_stride != 0) return row;
  const int64_t size = element_bytes(operand);
  if (size == 1) splat<uint8_t>(row, repeated, cols);
  if (size == 2) splat<uint16_t>(row, repeated, cols);
  if (size == 4) splat<uint32_t>(row, repeated, cols);
  if (size == 8) splat<uint64_t>(row, repeated, cols);
  return repeated;
}

// Returns the distance, in elements, from the values that the bias (or, without one, the mask) has
// for a row to those for the next row. Where the next row begins a new index of the dimension
// before the last, its values are elsewhere.
inline int64_t operand_stride(const Scores& scores) {
  if (scores.dims.count == 0) return 0;
  const Operand& operand = scores.bias.data != nullptr ? scores.bias : scores.mask;
  return operand.strides[scores.dims.count - 1];
}

// Calls body(pointer to the row's values from column `begin` on). The pointer has the operand's
// type.
template <class In, class Body>
FUSEDOPS_INLINE auto with_values(
    const Operand& operand, const void* values, int64_t begin, Body body) {
  const int64_t at = begin * operand.col_stride;
  if (operand.is_bool) return body(static_cast<const Bool*>(values) + at);
  if constexpr (sizeof(In) == 2) {
    if (operand.dtype == DType::kFloat32) return body(static_cast<const float*>(values) + at);
  }
  return body(static_cast<const In*>(values) + at);
}

// These functions apply an operand to a tile of scores: none, a bool mask, which puts mask_value in
// place of the scores that it hides, or a bias or mask that is added.
template <class In, class Part, class C = Compute<In>>
FUSEDOPS_INLINE Tile<C> with_operand(Tile<C> score, NoOperand, int64_t, Part, C) {
  return score;
}
template <class In, class Part, class C = Compute<In>>
FUSEDOPS_INLINE Tile<C> with_operand(
    Tile<C> score, const Bool* mask, int64_t col, Part part, C mask_value) {
  return IfThenElse(load_bools<In>(mask + col, part), score, mask_value);
}
template <class In, class Value, class Part, class C = Compute<In>>
FUSEDOPS_INLINE Tile<C> with_operand(Tile<C> score, const Value* added, int64_t col, Part part, C) {
  return score + in_order<Value, In>(load(added + col, part));
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
