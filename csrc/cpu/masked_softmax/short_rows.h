// Computes the masked softmax of groups of short rows, whose scores have at most one operand. A
// group has as many rows as a vector has doubles. Every step is computed for all rows of a group
// before the next step, and the rows' reductions over lanes are computed together, as in
// softmax_row_group(). Results have the bits of rows.h.
#pragma once

#include "cpu/masked_softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds a row of a group. `seen` is the columns that its interval and its mask leave visible.
// `computed` begins at the last multiple of kFoldedCols that is not past the start of `seen`.
template <class In, class Values>
struct ShortRow {
  const In* input;
  Values values;
  RowRange seen, computed;
  bool hides;  // whether any column of the row is hidden, other than by an added mask
};

template <class In, class Values>
class ShortRows {
 public:
  using C = Compute<In>;
  static constexpr int kRows = kLanes<double>;

  ShortRows(const MaskedSoftmaxForward& args, RowRange rows, char* memory, StoreMode mode)
      : args_(args),
        operands_(args.scores, rows.begin),
        padding_(args.scores, args.input.dtype, args.cols),
        scratch_(reinterpret_cast<C*>(memory)),
        mode_(mode) {}

  // Computes the rows from `first` on. Returns false, and writes nothing, if hidden columns may
  // affect a row's results: if the row has no visible column, if the mask value does not make the
  // probabilities of its hidden columns 0, or if it has a NaN. It also does so if one row has a
  // padding mask and another one does not share it.
  FUSEDOPS_INLINE bool compute(int64_t first) {
    if (!describe(first)) return false;
    if constexpr (!std::is_same_v<Values, NoOperand>) {
      if (needing_values_ == 0) return compute_visible(first);
      if (kAdds && needing_values_ < kRows) return false;
    }
    if constexpr (std::is_same_v<Values, NoOperand>) {
      return compute_visible(first);
    } else {
      return compute_described<Values>(first);
    }
  }

 private:
  static constexpr bool kHides = ChunkScores<In, Values>::kHides;
  static constexpr bool kAdds = ChunkScores<In, Values>::kAdds;

  // Computes the rows that compute() has described, if each row's mask hides what is not in `seen`
  // and does nothing else.
  FUSEDOPS_INLINE bool compute_visible(int64_t first) {
    if constexpr (kHasWordRange<In>) {
      if (args_.cols >= kLeastRangeCols) return compute_with_range(first);
    }
    return compute_described<NoOperand>(first);
  }
  // The function is not inlined, because rows of 128 columns would take a tenth more time.
  FUSEDOPS_NOINLINE bool compute_with_range(int64_t first) {
    return compute_described<NoOperand, /*kFindsRange=*/true>(first);
  }

  // Computes the rows that compute() has described. `Used` is NoOperand for compute_visible().
  template <class Used, bool kFindsRange = false>
  FUSEDOPS_INLINE bool compute_described(int64_t first) {
    C max[kRows];
    Vec<C> min[kRows], least[kRows];
    find_ranges<Used, kFindsRange>(max, min);
    double sums[kRows];
    write_scaled_exponentials<Used, kFindsRange>(first, max, min, least, sums);
    C least_max = max[0];
    double total = 0;
    bool hides = false;
    for (int r = 0; r < kRows; ++r) {
      least_max = Min(least_max, max[r]), total += sums[r], hides |= rows_[r].hides;
    }
    if (args_.zero_masked_rows && !(least_max > C(args_.scores.mask_value))) return false;
    if (hides && !is_mask_value_zero(least_max, total)) return false;
    if constexpr (kAdds && !std::is_same_v<Used, Values>) {
      const PaddedRows<In> rows{args_.input, first, kRows, args_.cols, rows_[0].seen};
      if (total != total || !rows.vanish(args_.scores.scale, least_max)) return false;
    }
#pragma GCC unroll 1
    for (int r = 0; r < kRows; ++r) {
      In* output = start_of<In>(args_.output, first + r);
      const RowRange written = columns_computed<In>(rows_[r].computed, args_.cols);
      write_divided<In>(
          output, FromScratch<C>{saved(r)}, C(0), least[r], /*factor=*/1.0, sums[r], written,
          mode_);
      write_zeros_around<In>(output, written, args_.cols, mode_);
    }
    return true;
  }

  FUSEDOPS_INLINE C* saved(int row) const { return scratch_ + row * padded_cols(args_.cols); }

  // Describes the rows from `first` on, and returns whether each has a visible column. Rows with
  // the same operands are described once, which saves a tenth of the time of rows of 128 columns.
  FUSEDOPS_INLINE bool describe(int64_t first) {
    needing_values_ = 0;
    if (operands_.are_alike(kRows)) {
      const ShortRow<In, Values>& same = rows_[0] = described(first, 0, kRows);
      for (int r = 1; r < kRows; ++r) {
        rows_[r] = {
            start_of<In>(args_.input, first + r), same.values, in_registers(same.seen),
            in_registers(same.computed), same.hides};
      }
      operands_.next(kRows);
      return same.seen.begin < same.seen.end;
    }
    bool all_see = true;
    for (int r = 0; r < kRows; ++r, operands_.next()) {
      rows_[r] = described(first, r, 1);
      all_see &= rows_[r].seen.begin < rows_[r].seen.end;
    }
    return all_see;
  }

  // Returns the description of row `r` of a group, which `alike` rows have, but for their input.
  FUSEDOPS_INLINE ShortRow<In, Values> described(int64_t first, int r, int alike) {
    ShortRow<In, Values> row;
    row.input = start_of<In>(args_.input, first + r);
    auto [seen, all] = operands_.visible(args_.cols);
    row.hides = seen.begin > 0 || seen.end < args_.cols;
    if constexpr (kHides) {
      row.values = {static_cast<const Bool*>(operands_.mask())};
      row.hides |= !all;
      needing_values_ += !all * alike;
    } else if constexpr (kAdds) {
      const bool is_bias = args_.scores.bias.data != nullptr;
      row.values = static_cast<Values>(is_bias ? operands_.bias() : operands_.mask());
      const RowRange unpadded = padding_.visible(operands_.mask());
      const bool pads = unpadded.begin < unpadded.end && (r == 0 || row.values == rows_[0].values);
      needing_values_ += !pads * alike;
      if (pads) seen = unpadded;
    }
    row.seen = seen;
    row.computed = RowRange{seen.begin / kFoldedCols * kFoldedCols, seen.end};
    return row;
  }

  template <class Used>
  FUSEDOPS_INLINE ChunkScores<In, Used> scores_of(int row) const {
    Used values{};
    if constexpr (std::is_same_v<Used, Values>) values = rows_[row].values;
    return {rows_[row].input, values, C(args_.scores.scale), C(args_.scores.mask_value)};
  }

  // Sets the maximum of each row's scores and, with kFindsRange, the minimum of each lane.
  template <class Used, bool kFindsRange>
  FUSEDOPS_INLINE void find_ranges(C (&max)[kRows], Vec<C> (&min)[kRows]) const {
    Vec<C> lanes[kRows];
#pragma GCC unroll 1
    for (int r = 0; r < kRows; ++r) {
      const auto scores = scores_of<Used>(r);
      if constexpr (kFindsRange) {
        const LanesOfRange<C> range = scores.lanes_of_range(rows_[r].seen, args_.cols);
        lanes[r] = range.max;
        min[r] = range.min;
      } else {
        lanes[r] = scores.lanes_of_max(rows_[r].seen, args_.cols);
      }
    }
    reduce_lanes_of<C>(lanes, max, Maximum{});
    if constexpr (kFindsRange) {
      for (int r = 0; r < kRows; ++r) {
        max[r] = scores_of<Used>(r).without_nan(max[r], rows_[r].seen, args_.cols);
      }
    }
  }

  template <class Used, bool kFindsRange>
  FUSEDOPS_INLINE void write_scaled_exponentials(
      int64_t first, const C (&max)[kRows], const Vec<C> (&min)[kRows], Vec<C> (&least)[kRows],
      double (&sums)[kRows]) const {
    const int64_t cols = args_.cols, stride = kRows * args_.input.spacing.stride;
    const int64_t operand_ahead = kRows * operand_stride(args_.scores);
    Vec<double> lanes[kRows];
#pragma GCC unroll 1
    for (int r = 0; r < kRows; ++r) {
      const auto scores = scores_of<Used>(r);
      const int64_t begin = rows_[r].seen.begin, end = rows_[r].seen.end;
      const In* next = rows_[r].input + stride;
      const In* written = mode_.prefetched(start_of<In>(args_.output, first + r), saved(r));
      const auto at = [=](int64_t col) FUSEDOPS_LAMBDA {
        prefetch_tile<Cache::kL1>(next + col);
        prefetch_tile<Cache::kL2>(written + col);
        scores.prefetch_operand(col, operand_ahead);
        const bool inside = col >= begin && col + kTile<In> <= end;
        if (__builtin_expect(inside, true)) return scores.at(col, Full{});
        return scores_at_edge(scores, col, RowRange{begin, end}, cols, -kInfinity<C>);
      };
      const auto counted = [=](int64_t col) FUSEDOPS_LAMBDA { return scores.counted(col, cols); };
      lanes[r] = write_exponentials<In>(
          at, counted, saved(r), max[r], least[r], rows_[r].computed,
          narrow_columns<kFindsRange>(min[r], max[r], rows_[r].seen));
    }
    sums_over_lanes<double>(lanes, sums);
  }

  // Whether the mask value gives hidden columns a probability of 0 in all rows.
  FUSEDOPS_INLINE bool is_mask_value_zero(C least_max, double total) const {
    const C mask_value = C(args_.scores.mask_value);
    return mask_value < double(least_max) + ExpFor<C>::type::kLowest && total == total;
  }

  const MaskedSoftmaxForward& args_;
  OperandRows operands_;
  PaddingMasks<In> padding_;
  C* scratch_;
  StoreMode mode_;
  ShortRow<In, Values> rows_[kRows];
  int needing_values_;  // the number of rows whose masks do more than to hide what is not seen
};

template <class In, class Values>
FUSEDOPS_NOINLINE RowRange masked_softmax_groups_of(
    const MaskedSoftmaxForward& args, RowRange rows, void* memory, StoreMode mode) {
  ShortRows<In, Values> groups(args, rows, static_cast<char*>(memory), mode);
  for (; rows.begin + groups.kRows <= rows.end; rows.begin += groups.kRows) {
    if (groups.compute(rows.begin)) continue;
    const RowRange group{rows.begin, rows.begin + groups.kRows};
    masked_softmax_rows<In, In>(args, group, memory, mode);
  }
  return rows;
}

// Whether groups can compute the softmax: its scores have at most one operand and no soft cap, it
// has no sinks and no dropout, and the output is its only result.
inline bool is_simple(const MaskedSoftmaxForward& args) {
  const Scores& scores = args.scores;
  return (scores.bias.data == nullptr || scores.mask.data == nullptr) && scores.softcap == 0 &&
      scores.sinks.data == nullptr && args.probabilities.data == nullptr &&
      args.dropout.seed == nullptr;
}

// Computes as many whole groups of `rows` as there are, if rows of this length are faster in
// groups, and returns the rows that remain. Groups of more than 256 floats read and write memory in
// turn, which takes a tenth more time where the results bypass the cache.
template <class In, class Out>
RowRange masked_softmax_groups(
    const MaskedSoftmaxForward& args, RowRange rows, void* memory, StoreMode mode) {
  static_assert(kMaxSoftmaxGroupRows * kMaxSoftmaxGroupCols * sizeof(float) <= kRepeatedBytes);
  if constexpr (MaskedSoftmax<In, Out>::kComputesTwice) {
    const int64_t limit = mode.streams && sizeof(In) > 2 ? 256 : kMaxSoftmaxGroupCols;
    if (args.cols > limit || !is_simple(args)) return rows;
    const Operand& bias = args.scores.bias;
    const Operand& operand = bias.data != nullptr ? bias : args.scores.mask;
    if (operand.data == nullptr) {
      return masked_softmax_groups_of<In, NoOperand>(args, rows, memory, mode);
    }
    if (operand.col_stride == 0) return rows;
    if (operand.is_bool) {
      return masked_softmax_groups_of<In, HidingBools>(args, rows, memory, mode);
    }
    if (operand.dtype == args.input.dtype) {
      return masked_softmax_groups_of<In, const In*>(args, rows, memory, mode);
    }
  }
  return rows;
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
