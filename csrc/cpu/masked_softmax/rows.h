// Computes the masked softmax of rows on the CPU: forward with and without dropout, and backward.
//
// Forward, with AVX-512: short_rows.h computes most short rows. In other rows, scores with at most
// one operand, a mask or a bias, are computed twice: for the maximum of a chunk (kSoftmaxChunk
// columns) and for its exponentials. All other scores, those of doubles and of mixed dtypes, and
// all scores without AVX-512, take several loops over a chunk, each of which writes the chunk's
// scores to scratch memory in the L1 cache: one loop for the first operand or the soft cap, and one
// for each further operand. The exponentials are in scratch memory in either case, and from there
// on all rows are alike.
//
// Columns outside the row's interval, and those that a bool mask hides at the end of the row (and
// at its start, if the mask is converted to bits), are skipped where their result is 0, and so are
// those that a shared padding mask hides (PaddingMasks). Chunks and tiles begin at the same columns
// whether others are skipped or not, so that results have the same bits whether an interval or a
// bool mask hides a column.
#pragma once

#include <type_traits>

#include "cpu/masked_softmax/scratch.h"
#include "cpu/simd/philox.h"
#include "cpu/simd/tanh.h"
#include "cpu/softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// --- operands -----------------------------------------------------------------------------------

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

// Returns the range [begin, end), or {0, 0} if it is empty.
constexpr RowRange range_of(int64_t begin, int64_t end) {
  return begin < end ? RowRange{begin, end} : RowRange{0, 0};
}

constexpr RowRange intersection(RowRange a, RowRange b) {
  return range_of(a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end);
}

// Returns which columns in `range` a bool mask leaves visible.
inline VisibleColumns columns_visible(const Bool* mask, RowRange range) {
  int64_t end = range.end;
  while (end - range.begin >= 8 && Load<uint64_t>(mask + end - 8) == 0) end -= 8;
  while (end > range.begin && mask[end - 1].value == 0) --end;
  return {range_of(range.begin, end), are_all_true(mask + range.begin, end - range.begin)};
}

constexpr int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Returns the range, with both bounds in registers. The compiler copies a range in memory by one
// load of 16 bytes, which waits for the two stores of the bounds, and for all stores before them.
FUSEDOPS_INLINE RowRange in_registers(RowRange range) {
  asm("" : "+r"(range.begin), "+r"(range.end));
  return range;
}

// Steps through rows, and finds their operands and visible columns.
class OperandRows {
 public:
  OperandRows(const Scores& scores, int64_t row) : scores_(scores), query_(0) {
    if (scores.causal.on || scores.causal.has_lower_diagonal) query_ = row % scores.causal.queries;
    for (int32_t d = scores.dims.count - 1; d >= 0; --d) {
      index_[d] = row % scores.dims.sizes[d];
      row /= scores.dims.sizes[d];
      move(d, index_[d]);
    }
  }

  void next() {
    if (++query_ == scores_.causal.queries) query_ = 0;
    for (int32_t d = scores_.dims.count - 1; d >= 0; --d) {
      move(d, 1);
      if (++index_[d] < scores_.dims.sizes[d]) return;
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
  RowRange interval(int64_t cols) const {
    const Causal& causal = scores_.causal;
    int64_t begin = 0, end = cols;
    if (causal.on) end = clamped(query_ + causal.diagonal + 1, 0, cols);
    if (scores_.end.data != nullptr) end = clamped(bound(scores_.end, end_), 0, end);
    if (causal.has_lower_diagonal) begin = clamped(query_ + causal.lower_diagonal, 0, end);
    if (scores_.start.data != nullptr) begin = clamped(bound(scores_.start, start_), begin, end);
    return range_of(begin, end);
  }

  // Returns the visible columns of the row, which has `cols` columns. A mask that several rows
  // share, such as a padding mask, is read once.
  VisibleColumns visible(int64_t cols) {
    const RowRange range = interval(cols);
    const auto* row = static_cast<const Bool*>(mask());
    if (row == nullptr) return {range, true};
    if (!scores_.mask.is_bool) return {range, false};
    if (scores_.mask.col_stride == 0) return {row->value != 0 ? range : RowRange{0, 0}, true};
    if (row != last_mask_ || range.begin != last_.begin || range.end != last_.end) {
      last_mask_ = row;
      last_ = range;
      last_visible_ = columns_visible(row, range);
    }
    return last_visible_;
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

  void move(int32_t dim, int64_t steps) {
    bias_ += steps * scores_.bias.strides[dim];
    mask_ += steps * scores_.mask.strides[dim];
    start_ += steps * scores_.start.strides[dim];
    end_ += steps * scores_.end.strides[dim];
    sinks_ += steps * scores_.sinks.strides[dim];
  }

  const Scores& scores_;
  int64_t bias_ = 0, mask_ = 0, start_ = 0, end_ = 0, sinks_ = 0;  // offsets in elements
  int64_t query_, index_[kMaxRowDims] = {};
  const Bool* last_mask_ = nullptr;
  RowRange last_ = {};
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

// --- scores -------------------------------------------------------------------------------------

// Describes a range of a tile's columns: from `begin` to before `end`.
struct Between {
  int begin, end;
};

// Returns which columns of the tile at `col` are in `range`.
template <class T>
FUSEDOPS_INLINE Between part_of_tile(RowRange range, int64_t col) {
  return {
      static_cast<int>(clamped(range.begin - col, 0, kTile<T>)),
      static_cast<int>(clamped(range.end - col, 0, kTile<T>))};
}

// Replaces the columns outside of `part` by `value`.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> filled(Tile<Compute<T>> tile, Between part, Compute<T> value) {
  using C = Compute<T>;
  for (int half = 0; half < 2; ++half) {
    const Lanes<C> column = columns_of_lanes<T>(half), none = {};
    const auto inside = (column >= none + part.begin) & (column < none + part.end);
    tile.v[half] = inside ? tile.v[half] : Set(value);
  }
  return tile;
}

// Computes sums = step(sums, col, part, seen) for the tiles that contain `visible` columns of a row
// of `cols` columns: `part` of the tile is in the row, and `seen` of it is visible.
template <class T, class Sums, class Step>
FUSEDOPS_INLINE Sums fold_visible(RowRange visible, int64_t cols, Sums sums, Step step) {
  int64_t col = visible.begin / kTile<T> * kTile<T>;
  for (; col < visible.end; col += kTile<T>) {
    if (col >= visible.begin) {
      for (; col + kTile<T> <= visible.end; col += kTile<T>) {
        sums = step(sums, col, Full{}, Full{});
      }
      if (col >= visible.end) break;
    }
    const Between seen = part_of_tile<T>(visible, col);
    sums = col + kTile<T> <= cols ? step(sums, col, Full{}, seen)
                                  : step(sums, col, Tail{static_cast<int>(cols - col)}, seen);
  }
  return sums;
}

// Returns the columns of all tiles that contain a `visible` one, but none from `cols` on.
template <class T>
constexpr RowRange columns_computed(RowRange visible, int64_t cols) {
  const int64_t whole = ceil_div(visible.end, kTile<T>) * kTile<T>;
  return {visible.begin / kTile<T> * kTile<T>, whole < cols ? whole : cols};
}

// Computes the scores of a chunk, scale * input with one operand applied. Columns are counted from
// the chunk's first one. A bool mask that has been converted to bits is not applied to the scores:
// counted() returns its bits, and the exponentials of the columns that it hides become 0.
template <class In, class OperandValues>
struct ChunkScores {
  using C = Compute<In>;
  const In* input;
  OperandValues operand;
  C scale, mask_value;

  static constexpr bool kHasBits = std::is_same_v<OperandValues, const TileBits*>;
  static constexpr bool kAdds = !kHasBits && !std::is_same_v<OperandValues, NoOperand>;

  template <bool kScales = true, class Part>
  FUSEDOPS_INLINE Tile<C> at(int64_t col, Part part) const {
    Tile<C> score = load(input + col, part);
    if constexpr (kScales) score = score * scale;
    if constexpr (kHasBits) {
      return score;
    } else {
      return with_operand<In>(score, operand, col, part, mask_value);
    }
  }

  // Returns the bits of the mask for the tile at `col`, or AllLanes if the mask is not bits.
  FUSEDOPS_INLINE auto counted(int64_t col) const {
    if constexpr (kHasBits) {
      return operand[col / kTile<In>];
    } else {
      return AllLanes{};
    }
  }

  // Returns the maximum in each lane of the visible scores. If nothing is added to the scaled
  // input, that is the maximum of the input, times the scale, unless the scale is negative.
  FUSEDOPS_INLINE Vec<C> lanes_of_max(RowRange visible, int64_t cols) const {
    if constexpr (!kAdds) {
      if (scale > 0) return lanes_of_max<false>(visible, cols) * scale;
    }
    return lanes_of_max<true>(visible, cols);
  }

 private:
  // Pairs of whole tiles have two accumulators, for the reason that fold_columns() gives.
  template <bool kScales>
  FUSEDOPS_INLINE Vec<C> lanes_of_max(RowRange visible, int64_t cols) const {
    const auto step = [=](Tile<C> so_far, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
      const Tile<C> score = filled<In>(at<kScales>(col, part), seen, -kInfinity<C>);
      return MaskedMax(counted(col), so_far, score);
    };
    Tile<C> even = Broadcast(-kInfinity<C>), odd = even;
    int64_t col = visible.begin;
    for (; col % kTile<In> == 0 && col + 2 * kTile<In> <= visible.end; col += 2 * kTile<In>) {
      even = step(even, col, Full{}, Full{});
      odd = step(odd, col + kTile<In>, Full{}, Full{});
    }
    const RowRange rest{col, visible.end};
    const Tile<C> max = fold_visible<In>(rest, cols, Max(even, odd), step);
    return Max(max.v[0], max.v[1]);
  }
};

// Writes the scores at(col, part) to `scratch`. The columns that are not visible, but in a tile
// with one that is, get -inf. Returns the maximum.
template <class In, class Source, class C = Compute<In>>
FUSEDOPS_INLINE C write_scores(Source at, C* scratch, RowRange visible, int64_t cols) {
  const auto max = fold_visible<In>(
      visible, cols, Broadcast(-kInfinity<C>),
      [=](Tile<C> so_far, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
        const Tile<C> score = filled<In>(at(col, part), seen, -kInfinity<C>);
        store(scratch + col, score);
        return Max(so_far, score);
      });
  return max_of(max, max);
}

// Writes the scores of a chunk to `scratch`, and returns the maximum. The fields of ChunkScores are
// separate arguments, because they are then passed in registers.
template <class In, class OperandValues, class C = Compute<In>>
FUSEDOPS_NOINLINE C write_chunk_scores(
    const In* input, OperandValues operand, C scale, C mask_value, C* scratch, RowRange visible,
    int64_t cols) {
  const ChunkScores<In, OperandValues> scores{input, operand, scale, mask_value};
  const auto at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA { return scores.at(col, part); };
  return write_scores<In>(at, scratch, visible, cols);
}

// Writes soft-capped scores, tanh(scale * input / cap) * cap, and returns their maximum.
template <class In, class C = Compute<In>>
FUSEDOPS_NOINLINE C
capped_scores_of(const In* input, C scale, C cap, C* scratch, RowRange visible, int64_t cols) {
  const C inverse = C(1) / cap;
  const auto at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return tanh_of(load(input + col, part) * scale * inverse) * cap;
  };
  return write_scores<In>(at, scratch, visible, cols);
}

// Applies one more operand to the scores in scratch memory, and returns their maximum.
template <class In, class OperandValues, class C = Compute<In>>
FUSEDOPS_NOINLINE C
scores_with(OperandValues operand, C* scratch, C mask_value, RowRange visible, int64_t cols) {
  const auto at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return with_operand<In>(load(scratch + col), operand, col, part, mask_value);
  };
  return write_scores<In>(at, scratch, visible, cols);
}

// In all tiles with a column in `range`, writes `value` to the columns that are not visible, and
// -inf to those from `cols` on.
template <class In, class C = Compute<In>>
void hide_columns(C* scratch, C value, RowRange visible, RowRange range, int64_t cols) {
  for (int64_t col = range.begin / kTile<In> * kTile<In>; col < range.end; col += kTile<In>) {
    const Tile<C> seen = filled<In>(load(scratch + col), part_of_tile<In>(visible, col), value);
    const Between in_row = part_of_tile<In>(RowRange{0, cols}, col);
    store(scratch + col, filled<In>(seen, in_row, -kInfinity<C>));
  }
}

// fold_columns() adds tiles to two accumulators in turn. The columns of a row that are computed
// begin at a multiple of this number, so that each tile goes to the same accumulator as if the
// whole row were computed.
constexpr int64_t kFoldedCols = 2 * kTile<float>;

// Writes exp(score - max) of the scores at(col) to `scratch`, for all tiles with a column in
// `cols`. Scratch memory is padded to full tiles. Columns outside of counted(col) get 0. Sets
// `least`, and returns the lanes of the sum.
template <class Out, class Source, class Counted, class C>
FUSEDOPS_INLINE Vec<double> write_exponentials(
    Source at, Counted counted, C* scratch, C max, Vec<C>& least, RowRange cols) {
  const C shift = shift_of(max);
  const int64_t end_of_tiles = columns_computed<C>(cols, padded_cols(cols.end)).end;
  const auto sums = fold_columns<C>(
      end_of_tiles - cols.begin, no_exp_sum<C>(),
      [=](ExpSum<C> so_far, int64_t offset, auto) FUSEDOPS_LAMBDA {
        const int64_t col = cols.begin + offset;
        const Tile<C> e = scaled_exp<Out>(at(col) - shift, so_far.least, counted(col));
        store(scratch + col, e);
        so_far.sum = so_far.sum + e;
        return so_far;
      });
  // The number of columns, on which the order of additions depends, is counted from column 0, so
  // that the sum has the same bits whether hidden columns at the start are computed or skipped.
  return lanes_of_exp_sum<C>(sums, end_of_tiles, least);
}

// Writes the exponentials of a chunk whose maximum is set, and sets the chunk's other fields.
template <class Out, class Source, class Counted, class C>
FUSEDOPS_INLINE void write_chunk_exponentials(
    Source at, Counted counted, C* scratch, SoftmaxChunk<C>& chunk, RowRange cols) {
  const auto lanes = write_exponentials<Out>(at, counted, scratch, chunk.max, chunk.least, cols);
  chunk.sum = ReduceLanes<double>(lanes, Add{});
}

// Replaces the scores in `cols` by their exponentials. The scores after `cols`, up to the end of
// its last tile, have to be -inf.
template <class Out, class C>
FUSEDOPS_NOINLINE void exponentials_in_scratch(C* scratch, SoftmaxChunk<C>& chunk, RowRange cols) {
  const auto at = [=](int64_t col) FUSEDOPS_LAMBDA { return load(scratch + col); };
  const auto all = [](int64_t) FUSEDOPS_LAMBDA { return AllLanes{}; };
  write_chunk_exponentials<Out>(at, all, scratch, chunk, cols);
}

// Holds a bool mask of a row as bits. `shown` begins with the first true bool and ends with the
// last one; it is {0, 0} if there is none. A padding mask hides columns outside of it, but has no
// holes.
struct RowBits {
  const TileBits* bits;
  RowRange shown;
  bool hides, has_holes;  // whether any bool is false, and whether one in `shown` is
};

// Returns the first true column of a tile, and the one after the last. One of them must be true.
template <class T>
FUSEDOPS_INLINE Between true_columns(TileBits tile) {
  const auto first = [](uint64_t bits) FUSEDOPS_LAMBDA { return __builtin_ctzll(bits); };
  const auto after_last = [](uint64_t bits)
                              FUSEDOPS_LAMBDA { return 63 - __builtin_clzll(2 * bits + 1); };
  if constexpr (!kEvenOdd<T>) return {first(tile.bits), after_last(tile.bits)};
  constexpr int kHalf = kTile<T> / 2;
  constexpr uint64_t kNone = uint64_t(1) << kHalf;
  const uint64_t even = tile.bits % kNone, odd = tile.bits / kNone;
  return {
      Min(2 * first(even | kNone), 2 * first(odd | kNone) + 1),
      Max(2 * after_last(even) - 1, 2 * after_last(odd))};
}

// Converts bool masks to bits. Rows in succession that have the same mask share its bits. The
// memory holds as many masks as a group has rows and is filled in turn, so that the bits of all
// rows of a group exist at once.
template <class In>
class MaskBits {
 public:
  MaskBits(char* memory, int64_t cols, int64_t group_rows)
      : memory_(memory), cols_(cols), masks_(group_rows) {}

  const RowBits& of(const Bool* mask) {
    if (mask != last_) {
      last_ = mask;
      index_ = index_ + 1 < masks_ ? index_ + 1 : 0;
      converted_ = converted(mask, memory_ + index_ * mask_bits_bytes(cols_));
    }
    return converted_;
  }

 private:
  FUSEDOPS_INLINE RowBits converted(const Bool* mask, char* memory) const {
    auto* bits = reinterpret_cast<TileBits*>(memory);
    int64_t begin = cols_, end = 0, count = 0;
    for_columns<In>(cols_, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const TileBits tile = bits_of<In>(mask + col, part);
      bits[col / kTile<In>] = tile;
      count += __builtin_popcount(tile.bits);
      if (tile.bits == 0) return;
      const Between columns = true_columns<In>(tile);
      begin = begin < col ? begin : col + columns.begin;
      end = col + columns.end;
    });
    return {bits, range_of(begin, end), count < cols_, count < end - begin};
  }

  char* memory_;
  int64_t cols_, masks_, index_ = 0;
  const Bool* last_ = nullptr;
  RowBits converted_ = {};
};

// An added mask hides the columns to which it adds this value or less: their exponentials are 0
// unless scores differ by thousands, which PaddedRows rules out. Masks of models add -inf, the
// lowest finite number or -10000.
constexpr float kHidingValue = -8192;

// Finds which columns an added padding mask leaves visible. Only masks that many rows in succession
// share are looked at, and only where nothing else is added and rows have no intervals.
template <class In>
class PaddingMasks {
 public:
  using C = Compute<In>;

  PaddingMasks(const Scores& scores, DType input, int64_t cols) : cols_(cols) {
    const Operand& mask = scores.mask;
    const int32_t last = scores.dims.count - 1;
    const bool is_row = mask.data != nullptr && !mask.is_bool && mask.col_stride != 0;
    const bool is_alone = scores.bias.data == nullptr && scores.softcap == 0 && !scores.causal.on &&
        !scores.has_bounds();
    are_shared_ = is_row && mask.dtype == input && is_alone && last >= 0 &&
        mask.strides[last] == 0 && scores.dims.sizes[last] >= 8;
  }

  // Returns the columns that the mask leaves visible if it adds 0 to all of these and hides all
  // others. Returns {0, 0} for any other mask.
  RowRange visible(const void* mask) {
    if (!are_shared_) return {0, 0};
    if (mask != last_) {
      last_ = mask;
      visible_ = columns_visible(static_cast<const In*>(mask));
    }
    return visible_;
  }

 private:
  FUSEDOPS_NOINLINE RowRange columns_visible(const In* mask) const {
    const auto hides = [=](int64_t col) {
      return load(mask + col, Tail{1}).v[0][0] <= kHidingValue;
    };
    int64_t begin = cols_, end = 0;
    for_columns<In>(cols_, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> added = filled<In>(load(mask + col, part), part, C(kHidingValue));
      if (!AnyTrue(~(added.v[0] <= kHidingValue) | ~(added.v[1] <= kHidingValue))) return;
      begin = begin < col ? begin : col;
      end = col + kTile<In> < cols_ ? col + kTile<In> : cols_;
    });
    while (begin < end && hides(begin)) ++begin;
    while (begin < end && hides(end - 1)) --end;
    bool adds = false;
    for_columns<In>(end - begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> added = load(mask + begin + col, part);
      adds |= AnyTrue((added.v[0] != 0) | (added.v[1] != 0));
    });
    return adds ? RowRange{0, 0} : range_of(begin, end);
  }

  int64_t cols_;
  bool are_shared_;
  const void* last_ = nullptr;
  RowRange visible_ = {};
};

// Describes rows of the input that have the same padding mask.
template <class T>
struct PaddedRows {
  const ConstRows& input;
  int64_t first, count, cols;
  RowRange visible;

  // Whether the exponentials of all columns that are not visible are 0, because the mask adds at
  // most kHidingValue to their scores. `least` is the smallest maximum of a row, computed without
  // these columns. The limit of 2^20 bounds what the scores' rounding adds, for which the
  // comparison leaves 1.
  FUSEDOPS_INLINE bool vanish(double scale, double least) const {
    double largest = 0;
    if (visible.begin > 0) largest = magnitude_or_nan(RowRange{0, visible.begin});
    if (visible.end < cols) largest += magnitude_or_nan(RowRange{visible.end, cols});
    const double score = largest * (scale < 0 ? -scale : scale);
    return score < 0x1p20 && score + kHidingValue < least + ExpFor<Compute<T>>::type::kLowest - 1;
  }

 private:
  // Returns the largest magnitude in some columns, or NaN if any is infinite or NaN.
  FUSEDOPS_NOINLINE double magnitude_or_nan(RowRange range) const {
    const auto zero = Broadcast(Compute<T>(0));
    auto largest = zero, not_finite = zero;
    for (int64_t row = first; row < first + count; ++row) {
      const T* from = start_of<T>(input, row) + range.begin;
      for_columns<T>(range.end - range.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
        const auto x = load(from + col, part);
        largest = Max(largest, Max(x, zero - x));
        not_finite = not_finite + (x - x);
      });
    }
    return max_of(largest, largest) + sum_of(not_finite, not_finite);
  }
};

// --- forward ------------------------------------------------------------------------------------

// Holds a row in progress, and its operands.
template <class In>
struct MaskedRow {
  using C = Compute<In>;
  const Scores* scores;
  const In *input, *next;   // `next` is the row to prefetch
  const void* written;      // where the results are written, or what is prefetched in its place
  const void *bias, *mask;  // null if there is none, or if the mask hides no column of `visible`
  const TileBits* bits;     // the mask, if it is a bool mask and kept as bits
  const void* padding;      // the mask, if it is a padding mask that hides what is not `visible`
  RowRange visible;
  RowRange computed;  // the columns with exponentials: the visible ones and some before, or all
  int64_t cols;
  C sink;  // -inf if there is no sink
  C* scratch;
  SoftmaxChunk<C>* chunks;

  // Whether the columns outside of `visible` count, with the mask value as their score. If not, the
  // row is computed without them, and without the columns that a mask of bits hides.
  FUSEDOPS_INLINE bool counts_hidden() const {
    return bits == nullptr && padding == nullptr && computed.begin == 0 && computed.end == cols;
  }

  // Makes `range` the visible columns.
  FUSEDOPS_INLINE void show(RowRange range) {
    visible = in_registers(range);
    computed = RowRange{visible.begin / kFoldedCols * kFoldedCols, visible.end};
  }

  // Makes the padding mask one that is added to the scores.
  FUSEDOPS_INLINE void add_padding() {
    mask = padding;
    padding = nullptr;
    show(RowRange{0, cols});
  }

  // Whether any columns of the chunk at `begin` are computed.
  FUSEDOPS_INLINE bool has_chunk(int64_t begin) const {
    return begin < computed.end && begin + kSoftmaxChunk<C> > computed.begin;
  }

  // Returns which columns of the chunk at `begin` are in `range`, counted from `begin`.
  static FUSEDOPS_INLINE RowRange in_chunk(RowRange range, int64_t begin) {
    return {
        clamped(range.begin - begin, 0, kSoftmaxChunk<C>),
        clamped(range.end - begin, 0, kSoftmaxChunk<C>)};
  }
  FUSEDOPS_INLINE RowRange chunk_cols(int64_t begin) const { return in_chunk(computed, begin); }
  FUSEDOPS_INLINE SoftmaxChunk<C>& chunk_at(int64_t begin) const {
    return chunks[begin / kSoftmaxChunk<C>];
  }

  // Returns the score of hidden columns whose exponentials are computed.
  FUSEDOPS_INLINE C hidden_score(C mask_value) const {
    return counts_hidden() ? mask_value : -kInfinity<C>;
  }

  // Writes the scores of the chunk at `begin` to scratch, and returns their maximum.
  FUSEDOPS_INLINE C write_chunk(int64_t begin, C mask_value) const {
    const RowRange computed_cols = chunk_cols(begin), seen = in_chunk(visible, begin);
    C* to = scratch + begin;
    const C max =
        scores->softcap != 0 ? write_capped(begin, mask_value) : write_plain(begin, mask_value);
    if (seen.begin == computed_cols.begin && seen.end == computed_cols.end) return max;
    const C hidden = hidden_score(mask_value);
    hide_columns<In>(
        to, hidden, seen, RowRange{computed_cols.begin, seen.begin}, computed_cols.end);
    hide_columns<In>(to, hidden, seen, RowRange{seen.end, computed_cols.end}, computed_cols.end);
    return Max(max, hidden);
  }

  // Returns the scores of the chunk at `begin`, which have one operand, of type `Values`, or none.
  template <class Values>
  FUSEDOPS_INLINE ChunkScores<In, Values> scores_at(int64_t begin, C mask_value) const {
    Values values{};
    if constexpr (std::is_same_v<Values, const TileBits*>) {
      values = bits + begin / kTile<In>;
    } else if constexpr (!std::is_same_v<Values, NoOperand>) {
      const Operand& operand = bias != nullptr ? scores->bias : scores->mask;
      values = static_cast<Values>(bias != nullptr ? bias : mask) + begin * operand.col_stride;
    }
    return {input + begin, values, C(scores->scale), mask_value};
  }

  // Returns the input that is read after the chunk at `begin` and is prefetched.
  FUSEDOPS_INLINE const In* after_chunk(int64_t begin) const {
    const int64_t end = begin + chunk_cols(begin).end;
    return end < computed.end ? input + end : next + computed.begin;
  }

  // Combines the chunks' maxima and sums.
  FUSEDOPS_INLINE SoftmaxRow whole() const {
    const int64_t first = computed.begin / kSoftmaxChunk<C>;
    return combine(chunks + first, softmax_chunk_count<C>(computed.end) - first);
  }

  // Returns the maximum and the sum of the row with the sink, if there is one, as one more column.
  FUSEDOPS_INLINE SoftmaxRow with_sink(SoftmaxRow row) const {
    if (sink == -kInfinity<C>) return row;
    const C max = Max(C(row.max), sink);
    const double sum = row.sum * exp_difference(C(row.max), max);
    return {double(max), sum + exponential_of_sink(max)};
  }

  // Returns the sink's exponential, scaled as the others are. It is NaN for a sink of +inf.
  FUSEDOPS_INLINE double exponential_of_sink(C max) const {
    return double(kExpScale<C>) * exp_or_zero<C>(double(sink) - double(max));
  }

  // Whether columns that are left out would have a probability of 0 with the mask value as their
  // score. It is true if no column is left out, or only columns that a padding mask hides.
  FUSEDOPS_INLINE bool is_rest_zero(SoftmaxRow whole, C mask_value) const {
    return counts_hidden() || padding != nullptr ||
        (mask_value < whole.max + ExpFor<C>::type::kLowest && whole.sum == whole.sum);
  }

 private:
  // write_plain() and write_capped() write the scores of the visible columns to the scratch memory
  // and return their maximum. The first loop of write_plain() applies the scale and one operand,
  // that of write_capped() the scale and the soft cap; each further operand has a loop of its own.
  FUSEDOPS_INLINE C write_plain(int64_t begin, C mask_value) const {
    const RowRange seen = in_chunk(visible, begin);
    const auto first = [&](auto operand) {
      return write_chunk_scores(
          input + begin, operand, C(scores->scale), mask_value, scratch + begin, seen,
          cols - begin);
    };
    if (bias != nullptr) {
      const C max = with_values<In>(scores->bias, bias, begin, first);
      return mask == nullptr ? max : add_to_scores(scores->mask, mask, begin, mask_value);
    }
    return mask == nullptr ? first(NoOperand{}) : with_values<In>(scores->mask, mask, begin, first);
  }

  FUSEDOPS_INLINE C write_capped(int64_t begin, C mask_value) const {
    C max = capped_scores_of<In>(
        input + begin, C(scores->scale), C(scores->softcap), scratch + begin,
        in_chunk(visible, begin), cols - begin);
    if (bias != nullptr) max = add_to_scores(scores->bias, bias, begin, mask_value);
    if (mask != nullptr) max = add_to_scores(scores->mask, mask, begin, mask_value);
    return max;
  }

  FUSEDOPS_INLINE C
  add_to_scores(const Operand& operand, const void* values, int64_t begin, C mask_value) const {
    return with_values<In>(operand, values, begin, [&](auto of_columns) {
      return scores_with<In>(
          of_columns, scratch + begin, mask_value, in_chunk(visible, begin), cols - begin);
    });
  }
};

// Writes the exponentials of every row to its scratch memory, and the maximum and sum of each
// chunk.
template <class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void compute_exponentials(MaskedRow<In>* rows, int64_t count, C mask_value) {
  for (int64_t begin = 0; begin < rows->cols; begin += kSoftmaxChunk<C>) {
    for (int64_t i = 0; i < count; ++i) {
      const MaskedRow<In>& row = rows[i];
      if (row.has_chunk(begin)) row.chunk_at(begin).max = row.write_chunk(begin, mask_value);
    }
    for (int64_t i = 0; i < count; ++i) {
      const MaskedRow<In>& row = rows[i];
      if (!row.has_chunk(begin)) continue;
      const RowRange cols = row.chunk_cols(begin);
      const In* after = row.after_chunk(begin) - cols.begin;
      const Out* written = static_cast<const Out*>(row.written) + begin;
      for (int64_t col = cols.begin; col < cols.end; col += kTile<In>) {
        prefetch_tile<Cache::kL2>(after + col);
        prefetch_tile<Cache::kL2>(written + col);
      }
      exponentials_in_scratch<Out>(row.scratch + begin, row.chunk_at(begin), cols);
    }
  }
}

// Returns the scores of a tile with hidden columns, which have the score `hidden` before the
// visible columns and -inf after them.
template <class In, class Values, class C>
FUSEDOPS_INLINE Tile<C> scores_at_edge(
    ChunkScores<In, Values> scores, int64_t col, RowRange visible, int64_t cols, C hidden) {
  const Between seen = part_of_tile<In>(visible, col);
  const Tile<C> all = col + kTile<In> <= cols ? scores.at(col, Full{})
                                              : scores.at(col, Tail{static_cast<int>(cols - col)});
  return filled<In>(
      filled<In>(all, Between{0, seen.end}, -kInfinity<C>), Between{seen.begin, kTile<In>}, hidden);
}

// Writes exponentials, maxima and sums as compute_exponentials() does, for rows whose scores have
// at most one operand (of type `Values`) and whose MaskedRow::computed ends where `visible` does.
// Columns that a mask of bits hides become 0, whatever the mask value. To compute such scores twice
// takes less time than to write them. All loops over columns are here: to pass a row's scores to
// functions takes as long as 128 columns.
template <class Out, class Values, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void compute_exponentials_of_one_operand(
    MaskedRow<In>* rows, int64_t count, C mask_value) {
  for (int64_t begin = 0; begin < rows->cols; begin += kSoftmaxChunk<C>) {
    for (int64_t i = 0; i < count; ++i) {
      const MaskedRow<In>& row = rows[i];
      if (!row.has_chunk(begin)) continue;
      const auto scores = row.template scores_at<Values>(begin, mask_value);
      const RowRange seen = row.in_chunk(row.visible, begin);
      const C max = ReduceLanes<C>(scores.lanes_of_max(seen, row.cols - begin), Maximum{});
      const bool begins_visible = seen.begin == row.chunk_cols(begin).begin;
      row.chunk_at(begin).max = begins_visible ? max : Max(max, row.hidden_score(mask_value));
    }
    for (int64_t i = 0; i < count; ++i) {
      const MaskedRow<In>& row = rows[i];
      if (!row.has_chunk(begin)) continue;
      const auto scores = row.template scores_at<Values>(begin, mask_value);
      const RowRange cols = row.chunk_cols(begin), seen = row.in_chunk(row.visible, begin);
      const In* after = row.after_chunk(begin) - cols.begin;
      const Out* written = static_cast<const Out*>(row.written) + begin;
      const int64_t left = row.cols - begin;
      const C hidden = row.hidden_score(mask_value);
      const auto at = [=](int64_t col) FUSEDOPS_LAMBDA {
        prefetch_tile<Cache::kL1>(after + col);
        prefetch_tile<Cache::kL2>(written + col);
        // The branch keeps the product of scores.at() from being fused into the subtraction of the
        // maximum, which would give other bits.
        const bool inside = col >= seen.begin && col + kTile<In> <= seen.end;
        if (__builtin_expect(inside, true)) return scores.at(col, Full{});
        return scores_at_edge(scores, col, seen, left, hidden);
      };
      const auto counted = [=](int64_t col) FUSEDOPS_LAMBDA { return scores.counted(col); };
      write_chunk_exponentials<Out>(at, counted, row.scratch + begin, row.chunk_at(begin), cols);
    }
  }
}

// Whether every element of the row is hidden or -inf. It is called only if no score exceeds the
// mask value. It leaves the exponentials for a mask value of -inf in scratch memory.
template <class Out, class In>
bool is_nothing_visible(MaskedRow<In> row) {
  compute_exponentials<Out>(&row, /*count=*/1, -kInfinity<Compute<In>>);
  return row.whole().sum == 0;
}

// Writes zeros to `cols`, whose first column begins a tile.
template <class In, class Out>
FUSEDOPS_INLINE void write_zeros(Out* output, RowRange cols, StoreMode mode) {
  for_columns<In>(cols.end - cols.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    mode.store(output + cols.begin + col, part, NormalTile<Compute<In>>{Broadcast(Compute<In>(0))});
  });
}

// Writes zeros to the columns of a row that are not in `written`, which consists of whole tiles.
template <class In, class Out>
FUSEDOPS_INLINE void write_zeros_around(
    Out* output, RowRange written, int64_t cols, StoreMode mode) {
  write_zeros<In>(output, RowRange{0, written.begin}, mode);
  write_zeros<In>(output, RowRange{written.end, cols}, mode);
}

// Whether a bool mask with a value for each column is the only operand, and there is no soft cap.
inline bool is_bool_mask_alone(const Scores& scores) {
  const Operand& mask = scores.mask;
  const bool is_mask = mask.data != nullptr && mask.is_bool && mask.col_stride != 0;
  return is_mask && scores.bias.data == nullptr && scores.softcap == 0;
}

template <class In, class Out>
struct MaskedSoftmax {
  using C = Compute<In>;
  // Whether compute_exponentials_of_one_operand() is used. It is no faster with the 16 registers of
  // AVX2 and SSE2. For doubles and mixed dtypes, which are rare, it would not be worth its size.
  static constexpr bool kComputesTwice =
      kHasLaneBits && std::is_same_v<In, Out> && sizeof(In) < sizeof(double);
  const MaskedSoftmaxForward& args;
  StoreMode mode;
  char *repeated, *scratch;
  int64_t group_rows, row_bytes;
  bool keeps_bits;  // whether a bool mask is the only operand, and is converted to bits

  void run(RowRange range) const {
    MaskedRow<In> rows[kMaxMaskedGroupRows];
    OperandRows operands(args.scores, range.begin);
    MaskBits<In> bits(scratch + group_rows * row_bytes, args.cols, group_rows);
    PaddingMasks<In> padding(args.scores, args.input.dtype, args.cols);
    for (int64_t first = range.begin; first < range.end; first += group_rows) {
      const int64_t count = range.end - first < group_rows ? range.end - first : group_rows;
      for (int64_t i = 0; i < count; ++i, operands.next()) {
        describe(first + i, operands, i, bits, padding, rows[i]);
      }
      compute(rows, count);
      for (int64_t i = 0; i < count; ++i) finish(first + i, rows[i]);
    }
  }

 private:
  FUSEDOPS_INLINE C mask_value() const { return C(args.scores.mask_value); }

  // Returns the visible columns of a row, and sets row.bits or row.padding if the row has a mask of
  // bits or a padding mask.
  FUSEDOPS_INLINE VisibleColumns visible_columns(
      OperandRows& operands, MaskBits<In>& bits, PaddingMasks<In>& padding,
      MaskedRow<In>& row) const {
    row.bits = nullptr;
    row.padding = nullptr;
    const RowRange unpadded = padding.visible(operands.mask());
    if (unpadded.begin < unpadded.end) {
      row.padding = operands.mask();
      return {unpadded, true};
    }
    if constexpr (kComputesTwice) {
      if (keeps_bits) {
        const RowRange range = operands.interval(args.cols);
        const RowBits& mask = bits.of(static_cast<const Bool*>(operands.mask()));
        if (mask.has_holes) row.bits = mask.bits;
        return {intersection(range, mask.shown), !mask.has_holes};
      }
    }
    return operands.visible(args.cols);
  }

  // Describes row `index`, which has place `place` in its group, and thus in scratch memory. The
  // fields are set one by one: a load of several would wait for the stores of each.
  FUSEDOPS_INLINE void describe(
      int64_t index, OperandRows& operands, int64_t place, MaskBits<In>& bits,
      PaddingMasks<In>& padding, MaskedRow<In>& row) const {
    const Scores& scores = args.scores;
    const int64_t chunk = args.cols < kSoftmaxChunk<C> ? args.cols : kSoftmaxChunk<C>;
    char* copies = repeated + place * chunk * sizeof(C);
    const VisibleColumns seen = visible_columns(operands, bits, padding, row);
    row.scores = &scores;
    row.input = start_of<In>(args.input, index);
    row.next = row.input + group_rows * args.input.spacing.stride;
    row.bias = values_of(scores.bias, operands.bias(), copies, chunk);
    row.mask = seen.all ? nullptr
                        : values_of(scores.mask, operands.mask(), copies + kRepeatedBytes, chunk);
    row.show(seen.range);
    row.cols = args.cols;
    row.sink = operands.sink<C>();
    row.scratch = reinterpret_cast<C*>(scratch + place * row_bytes);
    row.written = mode.prefetched(start_of<Out>(args.output, index), row.scratch);
    row.chunks = reinterpret_cast<SoftmaxChunk<C>*>(row.scratch + padded_cols(args.cols));
  }

  // Computes the exponentials of a group. The rows of one call of
  // compute_exponentials_of_one_operand() must have the same operands, so neighbouring rows that
  // all have a mask, or all have none, are computed together.
  FUSEDOPS_INLINE void compute(MaskedRow<In>* rows, int64_t count) const {
    if constexpr (kComputesTwice) {
      int64_t end;
      for (int64_t i = 0; i < count; i = end) {
        const bool has_mask = rows[i].mask != nullptr;
        for (end = i + 1; end < count && (rows[end].mask != nullptr) == has_mask;) ++end;
        compute_alike(rows + i, end - i);
      }
    } else {
      compute_exponentials<Out>(rows, count, mask_value());
    }
  }

  // Computes the exponentials of rows that all have a mask, or all have none.
  FUSEDOPS_INLINE void compute_alike(MaskedRow<In>* rows, int64_t count) const {
    const bool has_bias = rows->bias != nullptr, has_mask = rows->mask != nullptr;
    if (args.scores.softcap != 0 || (has_bias && has_mask)) {
      return compute_exponentials<Out>(rows, count, mask_value());
    }
    if (!has_bias && !has_mask) {
      return compute_exponentials_of_one_operand<Out, NoOperand>(rows, count, mask_value());
    }
    const Operand& operand = has_bias ? args.scores.bias : args.scores.mask;
    with_values<In>(operand, nullptr, 0, [&](auto values) {  // only their type is used
      using Values = decltype(values);
      if constexpr (std::is_same_v<Values, const Bool*>) {
        compute_exponentials_of_one_operand<Out, const TileBits*>(rows, count, mask_value());
      } else if constexpr (std::is_same_v<Values, const In*>) {
        compute_exponentials_of_one_operand<Out, Values>(rows, count, mask_value());
      } else {  // a float32 operand of a 16-bit input
        compute_exponentials<Out>(rows, count, mask_value());
      }
    });
  }

  // Whether the columns that a padding mask hides have a probability of 0.
  FUSEDOPS_INLINE bool is_padding_zero(
      int64_t index, const MaskedRow<In>& row, SoftmaxRow whole) const {
    const PaddedRows<In> rows{args.input, index, /*count=*/1, args.cols, row.visible};
    return whole.sum == whole.sum && rows.vanish(args.scores.scale, whole.max);
  }

  // Writes the results of a row whose exponentials are in scratch memory.
  FUSEDOPS_INLINE void finish(int64_t index, MaskedRow<In>& row) const {
    SoftmaxRow whole = row.whole();
    if (row.padding != nullptr && !is_padding_zero(index, row, whole)) {
      row.add_padding();
      compute_exponentials<Out>(&row, /*count=*/1, mask_value());
      whole = row.whole();
    }
    // If no visible score exceeds the mask value, perhaps nothing is visible. To find out, the
    // exponentials are computed for a mask value of -inf. If something is visible, they are
    // computed again for the mask value itself.
    if (args.zero_masked_rows && whole.max <= mask_value()) {
      if (row.bits != nullptr ? whole.sum == 0 : is_nothing_visible<Out>(row)) {
        write_sink(index, /*probability=*/1);
        return write(index, row, whole, RowRange{0, 0});
      }
      if (row.bits == nullptr) compute_exponentials<Out>(&row, /*count=*/1, mask_value());
    }
    whole = row.with_sink(whole);
    // If the probability of hidden columns is not 0, or is NaN, the whole row is computed.
    if (!row.is_rest_zero(whole, mask_value())) {
      row.computed = {0, args.cols};
      row.bits = nullptr;
      compute_exponentials<Out>(&row, /*count=*/1, mask_value());
      whole = row.with_sink(row.whole());
    }
    write_sink(index, row.exponential_of_sink(C(whole.max)) / whole.sum);
    write(index, row, whole, columns_computed<In>(row.computed, args.cols));
  }

  FUSEDOPS_INLINE void write_sink(int64_t index, double probability) const {
    if (args.sink_probabilities == nullptr) return;
    static_cast<C*>(args.sink_probabilities)[index] = C(probability);
  }

  // Writes the columns `cols` of the probabilities from scratch memory, applies dropout there, and
  // then writes the columns of the output. Other columns become zeros.
  FUSEDOPS_INLINE void write(
      int64_t index, const MaskedRow<In>& row, SoftmaxRow whole, RowRange cols) const {
    if (args.probabilities.data != nullptr) {
      write_to(args.probabilities, index, row, whole, cols);
    }
    if (args.dropout.seed != nullptr) {
      drop_columns<In>(
          DropoutRow(args.dropout, index), row.scratch + cols.begin, cols.begin,
          cols.end - cols.begin);
      whole.sum /= args.dropout.scale;  // multiplies the results, which are divided by the sum
    }
    write_to(args.output, index, row, whole, cols);
  }

  FUSEDOPS_INLINE void write_to(
      const Rows& to, int64_t index, const MaskedRow<In>& row, SoftmaxRow whole,
      RowRange cols) const {
    Out* output = start_of<Out>(to, index);
    write_softmax<In>(output, FromScratch<C>{row.scratch}, row.chunks, whole, cols, mode);
    write_zeros_around<In>(output, cols, args.cols, mode);
  }
};

template <class In, class Out>
FUSEDOPS_INLINE void masked_softmax_rows(
    const MaskedSoftmaxForward& args, RowRange range, void* memory, StoreMode mode) {
  static_assert(kSoftmaxChunk<Compute<In>> * sizeof(Compute<In>) <= kRepeatedBytes);
  static_assert(kMaskedGroupBytes <= kRepeatedBytes);
  char* repeated = static_cast<char*>(memory);
  const DType dtype = args.input.dtype;
  MaskedSoftmax<In, Out>{
      args,
      mode,
      repeated,
      repeated + 2 * kRepeatedBytes,
      masked_group_rows(args.cols, dtype),
      masked_row_bytes(args.cols, dtype),
      is_bool_mask_alone(args.scores)}
      .run(range);
}

// --- backward -----------------------------------------------------------------------------------

// Returns the sum of grad * probabilities over the visible columns.
template <class T, class Grad, class C = Compute<T>>
C dot(Grad grad, const T* probabilities, RowRange visible, int64_t cols) {
  const Tile<C> sum = fold_visible<T>(
      visible, cols, Broadcast(C(0)),
      [&](Tile<C> so_far, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
        const Tile<C> product = grad.at(col, part) * load(probabilities + col, part);
        return so_far + filled<T>(product, seen, C(0));
      });
  return C(sum_of(sum, Broadcast(C(0))));
}

template <class In, class Out>
struct GradRow {
  using C = Compute<Out>;
  const Out* probabilities;
  In* result;
  const Out *next_grad, *next_probabilities;  // prefetched while this row is written
  C scale, sum;
  RowRange visible;
  int64_t cols;

  // Writes the gradient of the row, with 0 in the columns that are not visible or that the mask
  // hides.
  template <class Grad, class BoolMask>
  FUSEDOPS_INLINE void write(Grad grad, BoolMask mask, StoreMode mode) const {
    fold_visible<Out>(
        visible, cols, NoOperand{},
        [&](NoOperand none, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
          if (mode.streams) {  // otherwise prefetching costs more than it gains (RowsAhead)
            prefetch_tile<Cache::kL2>(next_grad + col);
            prefetch_tile<Cache::kL2>(next_probabilities + col);
          }
          const Tile<C> p = load(probabilities + col, part);
          const Tile<C> all = (grad.at(col, part) - sum) * p * scale;
          const Tile<C> unmasked = with_operand<Out>(all, mask, col, part, C(0));
          mode.store(result + col, part, in_order<Out, In>(filled<Out>(unmasked, seen, C(0))));
          return none;
        });
    write_zeros_around<Out>(result, columns_computed<Out>(visible, cols), cols, mode);
  }
};

// Writes the gradient of a row, and returns the sum of grad * probabilities.
template <class In, class Out, class Grad>
FUSEDOPS_INLINE Compute<Out> masked_softmax_backward_row(
    GradRow<In, Out> row, RowRange summed, Grad grad, const Bool* mask, StoreMode mode) {
  row.sum = dot<Out>(grad, row.probabilities, summed, row.cols);
  if (mask != nullptr) {
    row.write(grad, mask, mode);
  } else {
    row.write(grad, NoOperand{}, mode);
  }
  return row.sum;
}

template <class In, class Out>
FUSEDOPS_INLINE void masked_softmax_backward_rows(
    const MaskedSoftmaxBackward& args, RowRange range, void* memory, StoreMode mode) {
  using C = Compute<Out>;
  C* scratch = static_cast<C*>(memory);
  const Scores& scores = args.scores;
  const bool drops = args.dropout.seed != nullptr;
  const double kept_scale = drops ? args.dropout.scale : 1.0;
  const C scale = C(scores.scale * kept_scale);
  OperandRows operands(scores, range.begin);
  for (int64_t index = range.begin; index < range.end; ++index, operands.next()) {
    const Out* grad = start_of<Out>(args.grad_output, index);
    const Out* probabilities = start_of<Out>(args.probabilities, index);
    In* result = start_of<In>(args.grad_input, index);
    const auto [visible, all] = operands.visible(args.cols);
    // The probabilities of hidden columns are all equal. If that of one is 0, only visible columns
    // are summed.
    const int64_t outside = visible.end < args.cols ? args.cols - 1 : 0;
    const bool is_rest_zero = load(probabilities + outside, Tail{1}).v[0][0] == 0;
    const RowRange summed = is_rest_zero ? visible : RowRange{0, args.cols};
    const Bool* mask = all ? nullptr : static_cast<const Bool*>(operands.mask());
    const bool fits = args.cols * int64_t(sizeof(Out)) <= kPrefetchedRowBytes;
    const GradRow<In, Out> row{
        probabilities,
        result,
        grad + (fits ? args.grad_output.spacing.stride : 0),
        probabilities + (fits ? args.probabilities.spacing.stride : 0),
        scale,
        C(0),
        visible,
        args.cols};
    C sum;
    if (drops) {
      const int64_t first = summed.begin / kTile<float> * kTile<float>;
      for_columns<Out>(summed.end - first, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
        store(scratch + first + col, load(grad + first + col, part));
      });
      drop_columns<Out>(
          DropoutRow(args.dropout, index), scratch + first, first, summed.end - first);
      sum = masked_softmax_backward_row(row, summed, FromScratch<C>{scratch}, mask, mode);
    } else {
      sum = masked_softmax_backward_row(row, summed, FromMemory<Out>{grad}, mask, mode);
    }
    if (args.grad_sinks != nullptr) {
      const C sink = static_cast<const C*>(args.sink_probabilities)[index];
      static_cast<C*>(args.grad_sinks)[index] = -sink * (sum * C(kept_scale));
    }
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
