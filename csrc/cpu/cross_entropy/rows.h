// Computes the forward of a cross entropy over rows.
//
// A row is read once, because its maximum is not searched first. The shift, which is subtracted
// from the logits before their exponential, is the maximum of the first columns. If the sum of a
// segment (kRowSegment columns) overflows nevertheless, the segment is computed again with its own
// maximum. Exponentials of logits far below the shift count as 0, as they would far below the
// maximum.
//
// The logit of the class is kept out of the sum, so that the loss of a confident row, log1p(sum of
// the others / exp(logit)), has all digits. The class's column is looked for in every tile of a
// segment of up to kMaxComparedCols columns. In longer segments it is looked for only in the pair
// of tiles that contains it, and in the columns after the last pair.
#pragma once

#include "cpu/cross_entropy/logits.h"
#include "cpu/cross_entropy/scratch.h"
#include "cpu/simd/exp_sum.h"
#include "cpu/simd/log.h"
#include "cpu/simd/reduce.h"
#include "cpu/softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// --- segments -----------------------------------------------------------------------------------

// Describes some columns of a row. class_col counts from the first one, and may lie outside.
template <class In>
struct Segment {
  const In* input;
  int64_t cols, class_col;
  bool wants_differences;  // whether the sum of logit - near is computed (LaneSums)
};

// Returns the maximum of the logits that are not NaN, or -inf if there are none.
template <class In, class AnyLogits, class C = Compute<In>>
FUSEDOPS_NOINLINE C max_of_logits(const In* input, int64_t cols, AnyLogits logits) {
  const auto max = fold_columns<In>(
      cols, Broadcast(-kInfinity<C>), [&](Tile<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> x = logits.minus(logits.base(load(input + col, part)), C(0));
        return Max(so_far, filled<In>(x, part, -kInfinity<C>));
      });
  return max_of(max.even, max.odd);
}

// Returns the maximum (max_of_logits()) of the first 64 columns or, if that is -inf, of the next
// 64, and so on. Returns 0 if the maximum is +inf, or if all columns are -inf.
template <class In, class AnyLogits, class C = Compute<In>>
FUSEDOPS_INLINE C shift_of_row(const In* input, int64_t cols, AnyLogits logits) {
  constexpr int64_t kCols = 64;
  for (; cols > 0; input += kCols, cols -= kCols) {
    const C max = max_of_logits(input, cols < kCols ? cols : kCols, logits);
    if (__builtin_expect(max > -kInfinity<C>, true)) return max < kInfinity<C> ? max : 0;
  }
  return 0;
}

// Computes exp(logit - shift()) from a logit's base, where logit = outer * base (LogitsOf). The
// shift is `near`, a number of type C.
template <class C, class AnyLogits>
struct ExpOfLogits {
  AnyLogits logits;
  C near;

  FUSEDOPS_INLINE double shift() const { return double(near); }

  template <class In, class Part>
  FUSEDOPS_INLINE Tile<C> of(Tile<C> base, Part part) const {
    return exp_or_infinity<C>(filled<In>(logits.minus(base, near), part, -kInfinity<C>));
  }
};

// Computes exp(logit - shift()) as 2^(in_base_2 - 0.5), where in_base_2 = log2(e) * logit -
// subtrahend. exp2_or_infinity() (exp_sum.h) subtracts the 0.5. log2(e) * outer is rounded to a
// float, which acts as if all logits were (1 + error) times as large. Logits near the maximum thus
// grow by about error * near, so shift() is smaller by that number.
template <class C, class AnyLogits>
struct Exp2OfLogits : ExpOfLogits<C, AnyLogits> {
  AnyLogits times_log2e;
  C subtrahend;
  double shift_;

  FUSEDOPS_INLINE Exp2OfLogits(AnyLogits logits, C near)
      : ExpOfLogits<C, AnyLogits>{logits, near}, times_log2e(logits.times(kLog2E)) {
    const double log2e = double(times_log2e.outer) / double(logits.outer);
    subtrahend = C(log2e * double(near) - 0.5);
    const double error = log2e / kLog2E - 1;
    shift_ = (double(subtrahend) + 0.5) / kLog2E - error * double(near);
  }
  FUSEDOPS_INLINE double shift() const { return shift_; }

  // Whether powers of 2 may be used: log2(e) times the factor of the logits is a normal number, and
  // the rounding error of the subtrahend is at most 2^5, so that no power of 2 near the maximum
  // leaves the range of floats.
  static FUSEDOPS_INLINE bool is_for(AnyLogits logits, C near) {
    constexpr C kLeast = C(0x1p-120), kMost = C(0x1p120), kMostShift = C(0x1p28);
    const C factor = magnitude(logits.outer);
    return factor > kLeast && factor < kMost && magnitude(near) < kMostShift;
  }

  template <class In, class Part>
  FUSEDOPS_INLINE Tile<C> of(Tile<C> base, Part part) const {
    const Tile<C> in_base_2 = times_log2e.minus(base, subtrahend);
    return exp2_or_infinity(filled<In>(in_base_2, part, -kInfinity<C>));
  }

 private:
  static constexpr double kLog2E = 1.44269504088896340736;
};

// Both structs hold two sums for each lane: that of the exponentials, without the class's column,
// and that of logit - near, where `near` (ExpOfLogits) is the shift or close to it. The lanes are
// those of a vector of doubles (LaneSums) or of a tile (TileSums).
struct LaneSums {
  Vec<double> exponentials, differences;
};
template <class C>
struct TileSums {
  Tile<C> exponentials, differences;
};

// In segments of up to this many columns every tile is compared with the class's column. In so few
// columns, a branch that depends on where the class is would cost more.
constexpr int64_t kMaxComparedCols = 256;

// Adds up a segment, and returns the sums of each lane. The order of operations depends on the
// number of columns alone. The sums of differences are 0 unless the segment wants them.
template <class In, class Exponential, class C = Compute<In>>
FUSEDOPS_NOINLINE LaneSums sums_of_lanes(const Segment<In>& segment, const Exponential& of_logits) {
  constexpr int64_t kPair = 2 * kTile<In>;
  const In* input = segment.input;
  const int64_t class_col = segment.class_col;
  const Exponential exponential = of_logits;
  const auto base_at = [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
    prefetch_ahead(input + col);
    return exponential.logits.base(load(input + col, part));
  };
  const auto add = [=](TileSums<C> sums, int64_t col, auto with_differences) FUSEDOPS_LAMBDA {
    const Tile<C> base = base_at(col, Full{});
    sums.exponentials = sums.exponentials + exponential.template of<In>(base, Full{});
    if constexpr (with_differences.value) {
      sums.differences = sums.differences + exponential.logits.minus(base, exponential.near);
    }
    return sums;
  };
  const auto add_compared = [=](TileSums<C> sums, int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<C> base = base_at(col, part);
    const Tile<C> d = exponential.logits.minus(base, exponential.near);
    const Tile<C> e = exponential.template of<In>(base, part);
    const Lanes<C> of_class = Lanes<C>{} + static_cast<int>(class_col - col);
    for (int half = 0; half < 2; ++half) {
      Vec<C>& sum = sums.exponentials.v[half];
      sum = columns_of_lanes<In>(half) == of_class ? sum : sum + e.v[half];
    }
    sums.differences = sums.differences + filled<In>(d, part, C(0));
    return sums;
  };
  // The loop adds the pairs of tiles before `end` without a comparison with the class, and then the
  // pair at `end` with one. `end` is first the start of the pair that contains the class, and then
  // pairs_end; without a class in a pair it is pairs_end at once. If all pairs are compared, `end`
  // is the start of each pair in turn.
  const int64_t pairs_end = segment.cols / kPair * kPair;
  const bool compares_all = segment.cols <= kMaxComparedCols;
  const bool has_class = 0 <= segment.class_col && segment.class_col < pairs_end;
  int64_t col = 0;
  int64_t end = compares_all ? 0 : has_class ? segment.class_col / kPair * kPair : pairs_end;
  TileSums<C> even{Broadcast(C(0)), Broadcast(C(0))}, odd = even;
  for (;; end = compares_all ? col : pairs_end) {
    with_bool(segment.wants_differences, [&](auto with_differences) FUSEDOPS_LAMBDA {
      for (; col < end; col += kPair) {
        even = add(even, col, with_differences);
        odd = add(odd, col + kTile<In>, with_differences);
      }
    });
    if (col >= pairs_end) break;
    even = add_compared(even, col, Full{});
    odd = add_compared(odd, col + kTile<In>, Full{});
    col += kPair;
  }
  if (col + kTile<In> <= segment.cols) {
    even = add_compared(even, col, Full{});
    col += kTile<In>;
  }
  if (col < segment.cols) {
    even = add_compared(even, col, Tail{static_cast<int>(segment.cols - col)});
  }
  LaneSums lanes{lanes_of_sum<In>({even.exponentials, odd.exponentials}, segment.cols), {}};
  if (segment.wants_differences) {
    lanes.differences = lanes_of_sum<In>({even.differences, odd.differences}, segment.cols);
  }
  return lanes;
}

// Returns the sums of `cols` columns. `differences` are from `near`, and not from the shift.
FUSEDOPS_INLINE LogitSums
sums_of(double shift, double exponentials, double differences, double near, int64_t cols) {
  return {shift, exponentials, differences + (near - shift) * double(cols), double(cols)};
}
FUSEDOPS_INLINE LogitSums sums_of(double shift, const LaneSums& lanes, double near, int64_t cols) {
  return sums_of(
      shift, ReduceLanes<double>(lanes.exponentials, Add{}),
      ReduceLanes<double>(lanes.differences, Add{}), near, cols);
}

// Adds up the exponentials of a row's segments: with Exp2OfLogits where it is as precise as
// ExpOfLogits, and otherwise with the latter.
template <class C, class AnyLogits>
class RowExponentials {
 public:
  FUSEDOPS_INLINE RowExponentials(AnyLogits logits, C near)
      : exp2_(logits, near), in_base_2_(kMayUseExp2 && exp2_.is_for(logits, near)) {}

  FUSEDOPS_INLINE double shift() const { return in_base_2_ ? exp2_.shift() : exp().shift(); }

  template <class In>
  FUSEDOPS_INLINE LaneSums lanes_of(const Segment<In>& segment) const {
    if constexpr (kMayUseExp2) {
      if (in_base_2_) return sums_of_lanes(segment, exp2_);
    }
    return sums_of_lanes(segment, exp());
  }
  template <class In>
  FUSEDOPS_INLINE LogitSums sums(const Segment<In>& segment) const {
    return sums_of(shift(), lanes_of(segment), exp2_.near, segment.cols);
  }

 private:
  static constexpr bool kMayUseExp2 = kHasExp2 && sizeof(C) == sizeof(float);
  FUSEDOPS_INLINE const ExpOfLogits<C, AnyLogits>& exp() const { return exp2_; }

  Exp2OfLogits<C, AnyLogits> exp2_;
  bool in_base_2_;
};

// Whether a sum of exponentials is finite. It is not if an exponential has overflowed, or if a
// logit is +inf or NaN.
FUSEDOPS_INLINE bool is_usable(double sum) { return sum >= 0 && sum < kInfinity<double>; }

// Returns the sums of a segment that has a logit of +inf or NaN, or whose sum overflows with the
// row's shift.
template <class In, class AnyLogits, class C = Compute<In>>
FUSEDOPS_NOINLINE LogitSums sums_of_special_segment(Segment<In> segment, AnyLogits logits) {
  const C max = max_of_logits(segment.input, segment.cols, logits);
  if (max < kInfinity<C>) {
    const ExpOfLogits<C, AnyLogits> exponential{logits, shift_of(max)};
    const LaneSums lanes = sums_of_lanes(segment, exponential);
    return sums_of(exponential.shift(), lanes, exponential.near, segment.cols);
  }
  // A logit is +inf, and so is the sum of the exponentials, unless another logit is NaN.
  const auto sums = fold_columns<In>(
      segment.cols, Broadcast(C(0)), [&](Tile<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        Tile<C> x = logits.minus(logits.base(load(segment.input + col, part)), C(0));
        for (auto& vec : x.v) vec = vec < kInfinity<C> ? Vec<C>{} : vec;
        return so_far + x;
      });
  return {kInfinity<double>, sum_of(sums.even, sums.odd), /*differences=*/0, double(segment.cols)};
}

// Returns the sums over two segments together, with the larger shift, to which both are converted.
FUSEDOPS_INLINE LogitSums combined(LogitSums a, LogitSums b) {
  const double cols = a.cols + b.cols;
  if (a.shift == b.shift) {  // the usual case
    return {a.shift, a.sum + b.sum, a.differences + b.differences, cols};
  }
  const double shift = a.shift < b.shift ? b.shift : a.shift;
  const double sum =
      a.sum * exp_difference(a.shift, shift) + b.sum * exp_difference(b.shift, shift);
  const double differences =
      (a.differences + (a.shift - shift) * a.cols) + (b.differences + (b.shift - shift) * b.cols);
  return {shift, sum, differences, cols};
}

// Calls body(index, sums) for the segments of the columns `cols`; kRowSegment divides cols.begin.
template <class In, class AnyLogits, class Body>
FUSEDOPS_INLINE void for_row_segments(Segment<In> row, AnyLogits logits, RowRange cols, Body body) {
  const RowExponentials exponentials(logits, shift_of_row(row.input, row.cols, logits));
  for_parts<kRowSegment>(cols, [&](int64_t begin, int64_t count) FUSEDOPS_LAMBDA {
    const Segment<In> segment{
        row.input + begin, count, row.class_col - begin, row.wants_differences};
    LogitSums sums = exponentials.sums(segment);
    if (__builtin_expect(!is_usable(sums.sum), false)) {
      sums = sums_of_special_segment(segment, logits);
    }
    body(begin / kRowSegment, sums);
  });
}

// --- losses -------------------------------------------------------------------------------------

// Holds the numbers from which the losses of a batch of rows are computed.
struct alignas(kVectorBytes) LossBatch {
  RowValue shift, sum, differences;
  RowValue logit;  // the class's logit, which `sum` leaves out; -inf if there is no class
  RowValue kind;   // 1 if there is a class; otherwise the loss, 0 or NaN

  // Sets the class of a row, and sums whose lse is 0. If the row is read, set() replaces these
  // sums.
  FUSEDOPS_INLINE void set_class(int index, RowClass target) {
    kind[index] = target.col >= 0 ? 1.0 : target.is_ignored ? 0.0 : kNaN;
    logit[index] = -kInfinity<double>;
    set(index, LogitSums{/*shift=*/0, /*sum=*/1, /*differences=*/0, /*cols=*/0});
  }
  FUSEDOPS_INLINE void set(int index, LogitSums sums) {
    shift[index] = sums.shift, sum[index] = sums.sum, differences[index] = sums.differences;
  }
};

FUSEDOPS_INLINE bool is_read(const CrossEntropyForward& args, RowClass target) {
  return args.reads_ignored || !target.is_ignored;
}

// Returns the values rounded to C, in the lower lanes of the result.
template <class C>
FUSEDOPS_INLINE Vec<C> narrowed(Vec<double> x) {
  Wide<C> wide;
  for (auto& vec : wide.v) vec = x;
  return demoted(wide);
}

// Writes `count` elements of an array, from `first` on.
template <class C>
FUSEDOPS_INLINE void store_batch(void* array, int64_t first, int count, Vec<C> values) {
  C* const to = static_cast<C*>(array) + first;
  if (count == kBatchRows) {  // a copy of constant size is one store
    std::memcpy(to, &values, kBatchRows * sizeof(C));
  } else {
    std::memcpy(to, &values, count * sizeof(C));
  }
}

// Writes the losses, lse and lse_error of `count` rows from `first` on. With x the class's logit
// and L = shift + log(sum) the logarithm of the sum of the other columns' exponentials, lse =
// max(L, x) + log1p(z) and the loss without label smoothing is max(L - x, 0) + log1p(z), where z =
// exp(-|L - x|). A z that C would hold as a denormal number counts as 0. No logarithm is added to
// the shift or to x before these are subtracted from each other or from lse: if they are large, as
// where all classes are masked with -1e30, its digits would be lost.
template <class C>
FUSEDOPS_NOINLINE void write_losses(
    const CrossEntropyForward& args, int64_t first, int count, const LossBatch& batch) {
  constexpr double kLowest = ExpFor<C>::type::kLowestNormal;
  constexpr double kLeast = sizeof(C) == sizeof(double) ? kLeastDouble : kLeastFloat;
  Vec<double> unused = {};
  const auto x = Load<Vec<double>>(batch.logit), kind = Load<Vec<double>>(batch.kind);
  const auto shift = Load<Vec<double>>(batch.shift);
  const Vec<double> log_sum = log_of_sum<C>(Load<Vec<double>>(batch.sum));
  const Vec<double> d = log_sum + (shift - x);
  const auto are_infinite = (log_sum + shift == x) & (d != d);
  const Vec<double> z =
      are_infinite ? Set(1.0) : exp_above<double, 0>(kLowest, -magnitude(d), unused);
  const Vec<double> rest = log1p_of_fraction<C>(z);
  const Vec<double> largest = d < 0.0 ? x : shift, logs = d < 0.0 ? rest : log_sum + rest;
  const Vec<double> lse = largest + logs;
  Vec<double> loss = Max(d, Vec<double>{}) + rest;
  if (const double e = args.label_smoothing; e != 0) {
    const Vec<double> mean = Load<Vec<double>>(batch.differences) / double(args.cols);
    loss = (1 - e) * loss + e * (((largest - shift) - mean) + logs);
  }
  loss = lse - lse == 0.0 ? loss : Set(kNaN);
  const Vec<C> rounded = narrowed<C>(lse);
  const Vec<double> error = (largest - promoted(rounded).v[0]) + logs;
  // The error is 0 where C would hold it as a denormal number, and where lse is infinite or NaN.
  const auto is_kept = (magnitude(error) >= kLeast) & (magnitude(error) < kInfinity<double>);
  store_batch<C>(args.losses, first, count, narrowed<C>(kind == 1.0 ? loss : kind));
  store_batch<C>(args.lse, first, count, rounded);
  store_batch<C>(args.lse_error, first, count, narrowed<C>(is_kept ? error : Vec<double>{}));
}

// Describes at most kBatchRows rows of a call, and which of them are read (reads_ignored in
// args.h).
template <class In>
struct RowBatch {
  Segment<In> rows[kBatchRows];
  bool is_read[kBatchRows];
  int count;

  // The constructor also sets the class, and the class's logit, of each row of `batch`.
  template <class AnyLogits>
  FUSEDOPS_INLINE RowBatch(
      const CrossEntropyForward& args, RowRange range, AnyLogits logits, LossBatch& batch)
      : count(static_cast<int>(range.end - range.begin)) {
    for (int i = 0; i < count; ++i) {
      const int64_t row = range.begin + i;
      const RowClass target = class_of(args.targets, row, args.cols);
      rows[i] = {
          start_of<In>(args.logits.input, row), args.cols, target.col, args.label_smoothing != 0};
      is_read[i] = FUSEDOPS_CPU_ISA::is_read(args, target);
      batch.set_class(i, target);
      if (target.col >= 0) {
        batch.logit[i] = logits.logit_of(logits.base_of(rows[i].input + target.col));
      }
    }
  }
};

FUSEDOPS_NOINLINE void add_lanes(const Vec<double> (&lanes)[kBatchRows], RowValue& sums) {
  sums_over_lanes<double>(lanes, sums);
}

// Sets `sums` for a batch of rows that have a single segment each. A row whose sum of exponentials
// is not usable is computed by sums_of_special_segment(). Each step runs for all rows before the
// next step, so that the rows' latencies overlap.
template <class In, class AnyLogits>
FUSEDOPS_INLINE void sum_short_rows(const RowBatch<In>& batch, AnyLogits logits, LossBatch& sums) {
  using C = Compute<In>;
  C near[kBatchRows];
  for (int i = 0; i < batch.count; ++i) {
    const Segment<In>& row = batch.rows[i];
    if (batch.is_read[i]) near[i] = shift_of_row(row.input, row.cols, logits);
  }
  Vec<double> exponentials[kBatchRows] = {}, differences[kBatchRows] = {};
  RowValue shifts;
  for (int i = 0; i < batch.count; ++i) {
    if (!batch.is_read[i]) continue;
    const RowExponentials of_row(logits, near[i]);
    const LaneSums lanes = of_row.lanes_of(batch.rows[i]);
    exponentials[i] = lanes.exponentials, differences[i] = lanes.differences;
    shifts[i] = of_row.shift();
  }
  RowValue of_exponentials, of_differences;
  add_lanes(exponentials, of_exponentials);
  add_lanes(differences, of_differences);
  for (int i = 0; i < batch.count; ++i) {
    if (!batch.is_read[i]) continue;
    const Segment<In>& row = batch.rows[i];
    if (__builtin_expect(is_usable(of_exponentials[i]), true)) {
      sums.set(i, sums_of(shifts[i], of_exponentials[i], of_differences[i], near[i], row.cols));
    } else {
      sums.set(i, sums_of_special_segment(row, logits));
    }
  }
}

// Adds up rows of several segments, one row after the other.
template <class In, class AnyLogits>
FUSEDOPS_INLINE void sum_rows(const RowBatch<In>& batch, AnyLogits logits, LossBatch& batch_sums) {
  for (int i = 0; i < batch.count; ++i) {
    if (!batch.is_read[i]) continue;
    LogitSums sums;
    for_row_segments(
        batch.rows[i], logits, RowRange{0, batch.rows[i].cols},
        [&](int64_t index, LogitSums part)
            FUSEDOPS_LAMBDA { sums = index == 0 ? part : combined(sums, part); });
    batch_sums.set(i, sums);
  }
}

template <class In, class AnyLogits>
FUSEDOPS_INLINE void cross_entropy_rows(
    const CrossEntropyForward& args, RowRange range, AnyLogits logits) {
  for_parts<kBatchRows>(range, [&](int64_t first, int count) FUSEDOPS_LAMBDA {
    LossBatch sums = {};
    const RowBatch<In> batch(args, RowRange{first, first + count}, logits, sums);
    if (args.cols <= kRowSegment) {
      sum_short_rows(batch, logits, sums);
    } else {
      sum_rows(batch, logits, sums);
    }
    write_losses<Compute<In>>(args, first, count, sums);
  });
}

// --- long rows ----------------------------------------------------------------------------------

template <class In, class AnyLogits>
FUSEDOPS_INLINE void long_cross_entropy_segments(
    const CrossEntropyForward& args, int64_t row, RowRange cols, LogitSums* partials,
    AnyLogits logits) {
  LossBatch unused;
  const RowBatch<In> batch(args, RowRange{row, row + 1}, logits, unused);
  if (!batch.is_read[0]) return;
  for_row_segments(batch.rows[0], logits, cols, [&](int64_t index, LogitSums sums) FUSEDOPS_LAMBDA {
    partials[index] = sums;
  });
}

template <class In, class AnyLogits>
FUSEDOPS_INLINE void write_long_losses(
    const CrossEntropyForward& args, int64_t row, const LogitSums* partials, AnyLogits logits) {
  using C = Compute<In>;
  LossBatch batch_sums = {};
  const RowBatch<In> batch(args, RowRange{row, row + 1}, logits, batch_sums);
  if (batch.is_read[0]) {
    LogitSums sums = partials[0];
    for (int64_t i = 1; i < row_segments(args.cols); ++i) sums = combined(sums, partials[i]);
    batch_sums.set(0, sums);
  }
  write_losses<C>(args, row, /*count=*/1, batch_sums);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
