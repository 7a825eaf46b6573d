// Computes the masked softmax of rows on the CPU, with and without dropout.
//
// With AVX-512, short_rows.h computes most short rows. In other rows, scores with at most
// one operand, a mask or a bias, are computed twice: for the maximum of a chunk (kSoftmaxChunk
// columns) and for its exponentials. All other scores, those of doubles and of mixed dtypes, and
// all scores without AVX-512, take several loops over a chunk, each of which writes the chunk's
// scores to scratch memory in the L1 cache: one loop for the first operand or the soft cap, and one
// for each further operand. The exponentials are in scratch memory in either case, and from there
// on all rows are alike.
//
// Columns outside the row's interval, and those that a bool mask hides at the start and at the end
// of the row, are skipped where their result is 0, and so are those that a shared padding mask
// hides (padding_masks.h). Chunks and tiles begin at the same columns whether others are skipped or
// not, so that results have the same bits whether an interval or a bool mask hides a column.
#pragma once

#include "cpu/masked_softmax/padding_masks.h"
#include "cpu/masked_softmax/scores.h"
#include "cpu/masked_softmax/scratch.h"
#include "cpu/simd/philox.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds a row in progress, and its operands.
template <class In>
struct MaskedRow {
  using C = Compute<In>;
  const Scores* scores;
  const In *input, *next;   // `next` is the row to prefetch
  const void* written;      // where the results are written, or what is prefetched in its place
  const void *bias, *mask;  // null if there is none, or if the mask hides no column of `visible`
  const Bool* hiding;       // the mask, if it makes exponentials 0 (HidingBools)
  const void* padding;      // the mask, if it is a padding mask that hides what is not `visible`
  RowRange visible;
  RowRange computed;  // the columns with exponentials: the visible ones and some before, or all
  int64_t cols;
  C sink;  // -inf if there is no sink
  C* scratch;
  SoftmaxChunk<C>* chunks;

  // Whether the columns outside of `visible` count, with the mask value as their score. If not, the
  // row is computed without them, and without the columns that `hiding` hides.
  FUSEDOPS_INLINE bool counts_hidden() const {
    return hiding == nullptr && padding == nullptr && computed.begin == 0 && computed.end == cols;
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

  // Writes the scores of the chunk at `begin` to scratch, and returns their range.
  FUSEDOPS_INLINE ScoreRange<C> write_chunk(int64_t begin, C mask_value) const {
    const RowRange computed_cols = chunk_cols(begin), seen = in_chunk(visible, begin);
    C* to = scratch + begin;
    const ScoreRange<C> range =
        scores->softcap != 0 ? write_capped(begin, mask_value) : write_plain(begin, mask_value);
    if (seen.begin == computed_cols.begin && seen.end == computed_cols.end) return range;
    const C hidden = hidden_score(mask_value);
    hide_columns<In>(
        to, hidden, seen, RowRange{computed_cols.begin, seen.begin}, computed_cols.end);
    hide_columns<In>(to, hidden, seen, RowRange{seen.end, computed_cols.end}, computed_cols.end);
    return {Max(range.max, hidden), range.is_narrow && hidden <= range.max};
  }

  // Returns the scores of the chunk at `begin`, which have one operand, of type `Values`, or none.
  template <class Values>
  FUSEDOPS_INLINE ChunkScores<In, Values> scores_at(int64_t begin, C mask_value) const {
    Values values{};
    if constexpr (std::is_same_v<Values, HidingBools>) {
      values = {hiding + begin};
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
  // and return their range, which is only looked for without a mask: scores that a mask hides are
  // seldom in a narrow range with others. The first loop of write_plain() applies the scale and one
  // operand, that of write_capped() the scale and the soft cap; each further operand has a loop of
  // its own.
  FUSEDOPS_INLINE ScoreRange<C> write_plain(int64_t begin, C mask_value) const {
    if (mask == nullptr) {
      if (bias == nullptr) return write_first<true>(NoOperand{}, begin, mask_value);
      return with_values<In>(scores->bias, bias, begin, [&](auto operand) {
        return write_first<true>(operand, begin, mask_value);
      });
    }
    const bool has_bias = bias != nullptr;
    const ScoreRange<C> range = with_values<In>(
        has_bias ? scores->bias : scores->mask, has_bias ? bias : mask, begin,
        [&](auto operand) { return write_first<false>(operand, begin, mask_value); });
    return has_bias ? add_to_scores(scores->mask, mask, begin, mask_value) : range;
  }

  template <bool kFindsRange, class OperandValues>
  FUSEDOPS_INLINE ScoreRange<C> write_first(
      OperandValues operand, int64_t begin, C mask_value) const {
    return write_chunk_scores<kFindsRange>(
        input + begin, operand, C(scores->scale), mask_value, scratch + begin,
        in_chunk(visible, begin), cols - begin);
  }

  FUSEDOPS_INLINE ScoreRange<C> write_capped(int64_t begin, C mask_value) const {
    ScoreRange<C> range = capped_scores_of<In>(
        input + begin, C(scores->scale), C(scores->softcap), scratch + begin,
        in_chunk(visible, begin), cols - begin);
    if (bias != nullptr) range = add_to_scores(scores->bias, bias, begin, mask_value);
    if (mask != nullptr) range = add_to_scores(scores->mask, mask, begin, mask_value);
    return range;
  }

  FUSEDOPS_INLINE ScoreRange<C> add_to_scores(
      const Operand& operand, const void* values, int64_t begin, C mask_value) const {
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
  bool is_narrow[kMaxMaskedGroupRows];
  for (int64_t begin = 0; begin < rows->cols; begin += kSoftmaxChunk<C>) {
    for (int64_t i = 0; i < count; ++i) {
      const MaskedRow<In>& row = rows[i];
      if (!row.has_chunk(begin)) continue;
      const ScoreRange<C> range = row.write_chunk(begin, mask_value);
      row.chunk_at(begin).max = range.max;
      is_narrow[i] = range.is_narrow;
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
      with_bool(kMayBeNarrow</*Log=*/false, C> && is_narrow[i], [&](auto has_narrow) {
        exponentials_in_scratch<Out, has_narrow.value>(
            row.scratch + begin, row.chunk_at(begin), cols, row.in_chunk(row.visible, begin));
      });
    }
  }
}

// Writes exponentials, maxima and sums as compute_exponentials() does, for rows whose scores have
// at most one operand (of type `Values`) and whose MaskedRow::computed ends where `visible` does.
// To compute such scores twice takes less time than to write them. All loops over columns are here:
// to pass a row's scores to functions takes as long as 128 columns.
template <class Out, class Values, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void compute_exponentials_of_one_operand(
    MaskedRow<In>* rows, int64_t count, C mask_value) {
  const int64_t operand_ahead = count * operand_stride(*rows->scores);
  constexpr bool kFindsRange = std::is_same_v<Values, NoOperand> && kHasWordRange<In>;
  Vec<C> min[kMaxMaskedGroupRows];
  for (int64_t begin = 0; begin < rows->cols; begin += kSoftmaxChunk<C>) {
    for (int64_t i = 0; i < count; ++i) {
      const MaskedRow<In>& row = rows[i];
      if (!row.has_chunk(begin)) continue;
      const auto scores = row.template scores_at<Values>(begin, mask_value);
      const RowRange seen = row.in_chunk(row.visible, begin);
      C max;
      if constexpr (kFindsRange) {
        const LanesOfRange<C> range = scores.lanes_of_range(seen, row.cols - begin);
        min[i] = range.min;
        max = ReduceLanes<C>(range.max, Maximum{});
        max = scores.without_nan(max, seen, row.cols - begin);
      } else {
        max = ReduceLanes<C>(scores.lanes_of_max(seen, row.cols - begin), Maximum{});
      }
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
        scores.prefetch_operand(col, operand_ahead);
        const bool inside = col >= seen.begin && col + kTile<In> <= seen.end;
        if (__builtin_expect(inside, true)) return scores.at(col, Full{});
        return scores_at_edge(scores, col, seen, left, hidden);
      };
      const auto counted = [=](int64_t col) FUSEDOPS_LAMBDA { return scores.counted(col, left); };
      SoftmaxChunk<C>& chunk = row.chunk_at(begin);
      write_chunk_exponentials<Out>(
          at, counted, row.scratch + begin, chunk, cols,
          narrow_columns<kFindsRange>(min[i], chunk.max, seen));
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
  bool has_bool_mask_alone;

  void run(RowRange range) const {
    MaskedRow<In> rows[kMaxMaskedGroupRows];
    OperandRows operands(args.scores, range.begin);
    PaddingMasks<In> padding(args.scores, args.input.dtype, args.cols);
    for (int64_t first = range.begin; first < range.end; first += group_rows) {
      const int64_t count = range.end - first < group_rows ? range.end - first : group_rows;
      for (int64_t i = 0; i < count; ++i, operands.next()) {
        describe(first + i, operands, i, padding, rows[i]);
      }
      compute(rows, count);
      for (int64_t i = 0; i < count; ++i) finish(first + i, rows[i]);
    }
  }

 private:
  FUSEDOPS_INLINE C mask_value() const { return C(args.scores.mask_value); }

  // Returns the visible columns of a row, and sets row.hiding and row.padding, to null if the row
  // has no such mask. The bounds are chosen one by one: to copy one of two ranges takes a load that
  // waits, as in in_registers(), a tenth of the time of 2048 floats.
  FUSEDOPS_INLINE VisibleColumns
  visible_columns(OperandRows& operands, PaddingMasks<In>& padding, MaskedRow<In>& row) const {
    const RowRange unpadded = padding.visible(operands.mask());
    const VisibleColumns seen = operands.visible(args.cols);
    const bool pads = unpadded.begin < unpadded.end;
    row.padding = pads ? operands.mask() : nullptr;
    const bool hides = kComputesTwice && has_bool_mask_alone && !seen.all;
    row.hiding = hides ? static_cast<const Bool*>(operands.mask()) : nullptr;
    const int64_t begin = pads ? unpadded.begin : seen.range.begin;
    const int64_t end = pads ? unpadded.end : seen.range.end;
    return {in_registers(RowRange{begin, end}), pads || seen.all};
  }

  // Describes row `index`, which has place `place` in its group, and thus in scratch memory. The
  // fields are set one by one: a load of several would wait for the stores of each.
  FUSEDOPS_INLINE void describe(
      int64_t index, OperandRows& operands, int64_t place, PaddingMasks<In>& padding,
      MaskedRow<In>& row) const {
    const Scores& scores = args.scores;
    const int64_t chunk = args.cols < kSoftmaxChunk<C> ? args.cols : kSoftmaxChunk<C>;
    char* copies = repeated + place * chunk * sizeof(C);
    const VisibleColumns seen = visible_columns(operands, padding, row);
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
        compute_exponentials_of_one_operand<Out, HidingBools>(rows, count, mask_value());
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
      if (row.hiding != nullptr ? whole.sum == 0 : is_nothing_visible<Out>(row)) {
        write_sink(index, /*probability=*/1);
        return write(index, row, whole, RowRange{0, 0});
      }
      if (row.hiding == nullptr) compute_exponentials<Out>(&row, /*count=*/1, mask_value());
    }
    whole = row.with_sink(whole);
    // If the probability of hidden columns is not 0, or is NaN, the whole row is computed.
    if (!row.is_rest_zero(whole, mask_value())) {
      row.computed = {0, args.cols};
      row.hiding = nullptr;
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

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
