// Computes the scores of chunks of a row, their maximum, and their exponentials.
#pragma once

#include <type_traits>

#include "cpu/masked_softmax/operands.h"
#include "cpu/simd/tanh.h"
#include "cpu/softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// The range of scores that are computed twice is found, for narrow_exp(), where at least this many
// columns are visible. For 128 columns it takes as many instructions as it saves, and so it does
// for scores with operands, or of 32 bits. Of scores in scratch memory write_scores() finds it.
constexpr int64_t kLeastRangeCols = 256;

// Holds a bool mask that is not applied to the scores: the exponentials of the columns that it
// hides become 0, whatever the mask value.
struct HidingBools {
  const Bool* at;
};

// Computes the scores of a chunk, scale * input with one operand applied. Columns are counted from
// the chunk's first one.
template <class In, class OperandValues>
struct ChunkScores {
  using C = Compute<In>;
  const In* input;
  OperandValues operand;
  C scale, mask_value;

  static constexpr bool kHides = std::is_same_v<OperandValues, HidingBools>;
  using Added = std::remove_const_t<std::remove_pointer_t<OperandValues>>;
  static constexpr bool kAdds = std::is_pointer_v<OperandValues> && !std::is_same_v<Added, Bool>;

  // A product is rounded once with what is added to it, and by itself if nothing is: the compiler
  // would decide for each loop, and fuse it into the subtraction of the maximum.
  template <bool kScales = true, class Part>
  FUSEDOPS_INLINE Tile<C> at(int64_t col, Part part) const {
    const Tile<C> x = load(input + col, part);
    if constexpr (kAdds) {
      return MulAdd(x, Broadcast(scale), in_order<Added, In>(load(operand + col, part)));
    } else if constexpr (kHides) {
      return kScales ? unfused(x * scale) : x;
    } else {
      return with_operand<In>(kScales ? unfused(x * scale) : x, operand, col, part, mask_value);
    }
  }

  // Returns which columns of the tile at `col` have exponentials, as far as HidingBools say so.
  template <class Part>
  FUSEDOPS_INLINE auto counted(int64_t col, Part part) const {
    if constexpr (kHides) {
      return bits_of<In>(operand.at + col, part);
    } else {
      return AllLanes{};
    }
  }
  FUSEDOPS_INLINE auto counted(int64_t col, int64_t cols) const {
    const bool is_whole = col + kTile<In> <= cols;
    return is_whole ? counted(col, Full{}) : counted(col, Tail{static_cast<int>(cols - col)});
  }

  // Prefetches the operand of a tile of a later row, which is `ahead` elements further on.
  FUSEDOPS_INLINE void prefetch_operand(int64_t col, int64_t ahead) const {
    if constexpr (kAdds) prefetch_tile<Cache::kL2>(operand + ahead + col);
    if constexpr (kHides) {  // a tile's bools are half of a cache line
      const Bool* later = operand.at + ahead + col;
      __builtin_prefetch(later, /*is_write=*/0, static_cast<int>(Cache::kL2));
    }
  }

  // Returns the range in each lane of the visible scores, of which there is no operand. For rows of
  // which fewer columns are visible, the minimum is -inf.
  FUSEDOPS_INLINE LanesOfRange<C> lanes_of_range(RowRange visible, int64_t cols) const {
    const int64_t count = visible.end - visible.begin;
    if (scale > 0 && count >= kLeastRangeCols) {
      const LanesOfRange<C> range = lanes_of_word_range(input + visible.begin, count);
      return {range.max * scale, range.min * scale};
    }
    return {lanes_of_max(visible, cols), Set(-kInfinity<C>)};
  }

  // Returns the maximum of the visible scores, from that of lanes_of_range(). If this is NaN, NaNs
  // are left out.
  FUSEDOPS_INLINE C without_nan(C max, RowRange visible, int64_t cols) const {
    if (__builtin_expect(max == max, true)) return max;
    return ReduceLanes<C>(lanes_of_max(visible, cols), Maximum{});
  }

  // Returns the maximum in each lane of the visible scores. If nothing is added to the scaled
  // input, that is the maximum of the input, times the scale, unless the scale is negative.
  FUSEDOPS_INLINE Vec<C> lanes_of_max(RowRange visible, int64_t cols) const {
    if constexpr (kHides || std::is_same_v<OperandValues, NoOperand>) {
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
      return MaskedMax(counted(col, part), so_far, score);
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

// Holds the maximum of scores. `is_narrow` says whether narrow_exp() may compute the exponentials
// of whole tiles of them.
template <class C>
struct ScoreRange {
  C max;
  bool is_narrow;
};

// Writes the scores at(col, part) to `scratch`. The columns that are not visible, but in a tile
// with one that is, get -inf. Returns the range, which is not narrow if it is not looked for.
template <bool kFindsRange, class In, class Source, class C = Compute<In>>
FUSEDOPS_INLINE ScoreRange<C> write_scores(Source at, C* scratch, RowRange visible, int64_t cols) {
  constexpr bool kFindsMin = kFindsRange && kMayBeNarrow</*Log=*/false, C>;
  const TileRange<C> none{Broadcast(-kInfinity<C>), Broadcast(kInfinity<C>)};
  const TileRange<C> range = fold_visible<In>(
      visible, cols, none,
      [=](TileRange<C> so_far, int64_t col, auto part, auto seen) FUSEDOPS_LAMBDA {
        const Tile<C> score = filled<In>(at(col, part), seen, -kInfinity<C>);
        store(scratch + col, score);
        so_far.max = Max(so_far.max, score);
        constexpr bool kIsWhole = std::is_same_v<decltype(seen), Full>;
        if constexpr (kFindsMin && kIsWhole) so_far.min = Min(so_far.min, score);
        return so_far;
      });
  const C max = max_of(range.max, range.max);
  return {max, kFindsMin && is_narrow(Min(range.min.v[0], range.min.v[1]), max)};
}

// Writes the scores of a chunk to `scratch`, and returns their range. The fields of ChunkScores are
// separate arguments, because they are then passed in registers.
template <bool kFindsRange, class In, class OperandValues, class C = Compute<In>>
FUSEDOPS_NOINLINE ScoreRange<C> write_chunk_scores(
    const In* input, OperandValues operand, C scale, C mask_value, C* scratch, RowRange visible,
    int64_t cols) {
  const ChunkScores<In, OperandValues> scores{input, operand, scale, mask_value};
  const auto at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA { return scores.at(col, part); };
  return write_scores<kFindsRange, In>(at, scratch, visible, cols);
}

// Writes soft-capped scores, tanh(scale * input / cap) * cap, and returns their range.
template <class In, class C = Compute<In>>
FUSEDOPS_NOINLINE ScoreRange<C> capped_scores_of(
    const In* input, C scale, C cap, C* scratch, RowRange visible, int64_t cols) {
  const C inverse = C(1) / cap;
  const auto at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return tanh_of(load(input + col, part) * scale * inverse) * cap;
  };
  return write_scores</*kFindsRange=*/true, In>(at, scratch, visible, cols);
}

// Applies one more operand to the scores in scratch memory, and returns their maximum. The range is
// not looked for.
template <class In, class OperandValues, class C = Compute<In>>
FUSEDOPS_NOINLINE ScoreRange<C> scores_with(
    OperandValues operand, C* scratch, C mask_value, RowRange visible, int64_t cols) {
  const auto at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return with_operand<In>(load(scratch + col), operand, col, part, mask_value);
  };
  return write_scores</*kFindsRange=*/false, In>(at, scratch, visible, cols);
}

// In all tiles with a column in `range`, writes `value` to the columns that are not visible, and
// -inf to those from `cols` on.
template <class In, class C = Compute<In>>
void hide_columns(C* scratch, C value, RowRange visible, RowRange range, int64_t cols) {
  for (int64_t col = range.begin / kTile<In> * kTile<In>; col < range.end; col += kTile<In>) {
    const Tile<C> seen = filled<In>(load(scratch + col), part_of_tile(visible, col), value);
    const Between in_row = part_of_tile(RowRange{0, cols}, col);
    store(scratch + col, filled<In>(seen, in_row, -kInfinity<C>));
  }
}

// fold_columns() adds tiles to two accumulators in turn. The columns of a row that are computed
// begin at a multiple of this number, so that each tile goes to the same accumulator as if the
// whole row were computed.
constexpr int64_t kFoldedCols = 2 * kTile<float>;

// Returns the `visible` columns if narrow_exp() may compute their exponentials, and else none.
// `min` is from ChunkScores::lanes_of_range(), if it was called, and `max` is subtracted from the
// scores.
template <bool kFindsRange, class C>
FUSEDOPS_INLINE RowRange narrow_columns(const Vec<C>& min, C max, RowRange visible) {
  return kFindsRange && is_narrow(min, max) ? visible : RowRange{};
}

// Writes exp(score - max) of the scores at(col) to `scratch`, for all tiles with a column in
// `cols`. Scratch memory is padded to full tiles. Columns outside of counted(col) get 0. Those in
// `narrow` take narrow_exp(). Sets `least`, and returns the lanes of the sum.
template <class Out, bool kHasNarrow, class Source, class Counted, class C>
FUSEDOPS_INLINE Vec<double> write_exponentials(
    Source at, Counted counted, C* scratch, C max, Vec<C>& least, RowRange cols, RowRange narrow) {
  const C shift = shift_of(max);
  const int64_t end_of_tiles = columns_computed<C>(cols, padded_cols(cols.end)).end;
  const auto sums = fold_columns<C>(
      end_of_tiles - cols.begin, no_exp_sum(kHasNarrow ? kNarrowLeast<C> : kInfinity<C>),
      [=](ExpSum<C> so_far, int64_t offset, auto) FUSEDOPS_LAMBDA {
        const int64_t col = cols.begin + offset;
        const Tile<C> x = at(col) - shift;
        Tile<C> e;
        if (kHasNarrow && col >= narrow.begin && col + kTile<C> <= narrow.end) {
          e = narrow_exp<Out, kExpScaleBits<C>>(x);
        } else {
          e = scaled_exp<Out>(x, so_far.least, counted(col));
        }
        store(scratch + col, e);
        so_far.sum = so_far.sum + e;
        return so_far;
      });
  // The number of columns, on which the order of additions depends, is counted from column 0, so
  // that the sum has the same bits whether hidden columns at the start are computed or skipped.
  return lanes_of_exp_sum<C>(sums, end_of_tiles, least);
}
template <class Out, class Source, class Counted, class C>
FUSEDOPS_INLINE Vec<double> write_exponentials(
    Source at, Counted counted, C* scratch, C max, Vec<C>& least, RowRange cols, RowRange narrow) {
  if (narrow.begin < narrow.end) {
    return write_exponentials<Out, true>(at, counted, scratch, max, least, cols, narrow);
  }
  return write_exponentials<Out, false>(at, counted, scratch, max, least, cols, narrow);
}

// Writes the exponentials of a chunk whose maximum is set, and sets the chunk's other fields.
template <class Out, class Source, class Counted, class C>
FUSEDOPS_INLINE void write_chunk_exponentials(
    Source at, Counted counted, C* scratch, SoftmaxChunk<C>& chunk, RowRange cols,
    RowRange narrow) {
  const auto lanes =
      write_exponentials<Out>(at, counted, scratch, chunk.max, chunk.least, cols, narrow);
  chunk.sum = ReduceLanes<double>(lanes, Add{});
}

// Replaces the scores in `cols` by their exponentials. The scores after `cols`, up to the end of
// its last tile, have to be -inf.
template <class Out, bool kHasNarrow, class C>
FUSEDOPS_NOINLINE void exponentials_in_scratch(
    C* scratch, SoftmaxChunk<C>& chunk, RowRange cols, RowRange narrow) {
  const auto at = [=](int64_t col) FUSEDOPS_LAMBDA { return load(scratch + col); };
  const auto all = [](int64_t) FUSEDOPS_LAMBDA { return AllLanes{}; };
  const auto lanes =
      write_exponentials<Out, kHasNarrow>(at, all, scratch, chunk.max, chunk.least, cols, narrow);
  chunk.sum = ReduceLanes<double>(lanes, Add{});
}

// Returns the scores of a tile with hidden columns, which have the score `hidden` before the
// visible columns and -inf after them.
template <class In, class Values, class C>
FUSEDOPS_INLINE Tile<C> scores_at_edge(
    ChunkScores<In, Values> scores, int64_t col, RowRange visible, int64_t cols, C hidden) {
  const Between seen = part_of_tile(visible, col);
  const Tile<C> all = col + kTile<In> <= cols ? scores.at(col, Full{})
                                              : scores.at(col, Tail{static_cast<int>(cols - col)});
  return filled<In>(
      filled<In>(all, Between{0, seen.end}, -kInfinity<C>), Between{seen.begin, kTile<In>}, hidden);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
