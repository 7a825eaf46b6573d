// Computes softmax and log_softmax of rows on the CPU.
//
// Forward: a row is processed in chunks that stay in the L1 cache. Each chunk has its own maximum
// and sum, so that memory is read once, and each element costs one exp however long the row is. The
// chunks are combined at the end. Rows that are all -inf, or contain NaN or +inf, become NaN, as in
// PyTorch.
#pragma once

#include "cpu/simd/exp_division.h"
#include "cpu/simd/log.h"
#include "cpu/simd/range.h"
#include "cpu/softmax/scratch.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// A chunk is at most 16 KiB. Each lane of its sum adds at most 64 values, which limits its rounding
// error.
template <class C>
constexpr int64_t kSoftmaxChunk = 256 * kLanes<C>;
static_assert(kSoftmaxChunk<double> >= kShortestSoftmaxChunk);

// A backward does not prefetch rows of more bytes than this. At this size two rows, grad_output's
// and output's, take a quarter of an L2 cache of 1 MiB.
constexpr int64_t kPrefetchedRowBytes = int64_t(1) << 17;

// A backward computes rows of up to this many columns in groups, whose sums over lanes overlap.
// Longer rows take less time one by one, since a group reads and writes memory in turn: a quarter
// less for 256 floats and a tenth for 1024 columns of 16 bits, on a Zen 4 and where tensors exceed
// the caches.
template <class Out>
constexpr int64_t kMaxGradGroupCols = sizeof(Out) == 2 ? 512 : 512 / sizeof(Out);

template <class C>
constexpr int64_t softmax_chunk_count(int64_t cols) {
  return ceil_div(cols, kSoftmaxChunk<C>);
}

// Holds a chunk's maximum, its sum of exp(input - max), and for each lane the smallest exponential
// that is not 0. The exponentials are scaled (exp.h), except in a log_softmax.
template <class C>
struct SoftmaxChunk {
  Vec<C> least;  // the smallest exponential of each lane
  C max;
  double sum;
};
static_assert(sizeof(SoftmaxChunk<double>) <= kSoftmaxChunkBytes);

// Returns what is subtracted from a chunk: its maximum, or 0 if the chunk is all -inf, so that its
// exponentials are 0 and not NaN.
template <class C>
FUSEDOPS_INLINE C shift_of(C chunk_max) {
  return chunk_max == -kInfinity<C> ? C(0) : chunk_max;
}

// Whether exponentials may be those of narrow_exp(). To find the minimum of the columns takes half
// of the instructions that these save, or as many for a log_softmax of floats and with SSE2.
template <bool Log, class In>
constexpr bool kMayBeNarrow = kHasWordRange<In> || (!Log && kVectorBytes > 16);

// Returns exponentials: scaled (exp.h) for a softmax, which divides them, and unscaled for a
// log_softmax, which only adds them up. For a softmax it also lowers `least` to the smallest
// exponential of each lane that is not 0.
template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_INLINE Tile<C> softmax_exp(Tile<C> x, Vec<C>& least) {
  if constexpr (Log) return exp_or_zero<Out>(x);
  return scaled_exp<Out>(x, least);
}
// The same for arguments of at least kNarrow (exp.h). Does not lower `least`.
template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_INLINE Tile<C> softmax_narrow_exp(Tile<C> x) {
  return narrow_exp<Out, Log ? 0 : kExpScaleBits<C>>(x);
}

template <class C>
struct ExpSum {
  Tile<C> sum;
  Vec<C> least;
};
template <class C>
FUSEDOPS_INLINE ExpSum<C> no_exp_sum(C least = kInfinity<C>) {
  return {Broadcast(C(0)), Set(least)};
}

// Returns the lanes of the sum of `cols` exponentials, and sets `least` to the smallest one of each
// lane.
template <class In, class C>
FUSEDOPS_INLINE Vec<double> lanes_of_exp_sum(
    Accumulators<ExpSum<C>> sums, int64_t cols, Vec<C>& least) {
  least = Min(sums.even.least, sums.odd.least);
  return lanes_of_sum<In>(Accumulators<Tile<C>>{sums.even.sum, sums.odd.sum}, cols);
}

// Says where exponentials are saved: nowhere, in scratch memory, which is padded to full tiles, or
// in a row of memory.
enum class Save { kNot, kInScratch, kInRow };

// Loads the columns of a row at `col`, with -inf after the end of the row.
template <class In, class Part, class C = Compute<In>>
FUSEDOPS_INLINE Tile<C> load_logits(const In* input, int64_t col, Part part) {
  return filled<In>(load(input + col, part), part, -kInfinity<C>);
}

template <class C>
struct TileRange {
  Tile<C> max, min;
};

// Returns the range of the columns of each lane or, without kFindsMin, a minimum of infinity. A NaN
// is ignored here, but exp(NaN - max) is NaN and makes the row's results NaN.
template <bool kFindsMin, class In, class C = Compute<In>>
FUSEDOPS_INLINE LanesOfRange<C> lanes_of_range(const In* input, int64_t cols) {
  const TileRange<C> none{Broadcast(-kInfinity<C>), Broadcast(kInfinity<C>)};
  const auto range = fold_columns<In>(
      cols, none, [=](TileRange<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> x = load(input + col, part);
        so_far.max = Max(so_far.max, filled<In>(x, part, -kInfinity<C>));
        if (kFindsMin) so_far.min = Min(so_far.min, filled<In>(x, part, kInfinity<C>));
        return so_far;
      });
  const Tile<C> max = Max(range.even.max, range.odd.max), min = Min(range.even.min, range.odd.min);
  return {Max(max.v[0], max.v[1]), Min(min.v[0], min.v[1])};
}

// Returns the range of the columns of each lane for a softmax, in which a NaN may count as
// infinity.
template <bool Log, class In>
FUSEDOPS_INLINE LanesOfRange<Compute<In>> softmax_range(const In* input, int64_t cols) {
  if constexpr (kHasWordRange<In>) {
    if (cols >= kTile<In>) return lanes_of_word_range(input, cols);
  }
  return lanes_of_range<kMayBeNarrow<Log, In>>(input, cols);
}

// Returns the maximum of the columns, from that of softmax_range(). If this is NaN, NaNs are left
// out.
template <class In, class C>
FUSEDOPS_INLINE C without_nan(C max, const In* input, int64_t cols) {
  if (!kHasWordRange<In> || __builtin_expect(max == max, true)) return max;
  return ReduceLanes<C>(lanes_of_range</*kFindsMin=*/false>(input, cols).max, Maximum{});
}

// Whether no minimum of a lane is below the maximum by more than -kNarrow (exp.h).
template <class C>
FUSEDOPS_INLINE bool is_narrow(Vec<C> min, C max) {
  return max > -kInfinity<C> && !any_below(min, max + kNarrow<C>);
}

// Computes exp(input - shift), saves these exponentials to `saved` as `save` says, and returns the
// sums of the exponentials. Meanwhile `next`, the columns that are read afterwards, are prefetched.
// So is `written`, to which the results are written later, if the exponentials are in scratch
// memory: rows from 2048 floats on take up to a fifth less time where the tensors exceed the L2
// cache.
template <bool Log, Save save, bool kIsNarrow, class Out, class In, class C = Compute<In>>
FUSEDOPS_INLINE Accumulators<ExpSum<C>> save_exponentials(
    const In* input, const In* next, const Out* written, C* saved, C shift, int64_t cols) {
  return fold_columns<In>(
      cols, no_exp_sum<C>(kIsNarrow ? kNarrowLeast<C> : kInfinity<C>),
      [=](ExpSum<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        prefetch_tile<Cache::kL1>(next + col);
        if constexpr (save == Save::kInScratch) prefetch_tile<Cache::kL2>(written + col);
        const Tile<C> x = load_logits(input, col, part) - shift;
        const bool is_tail = std::is_same_v<decltype(part), Tail>;
        Tile<C> e;
        if constexpr (kIsNarrow && !is_tail) {
          e = softmax_narrow_exp<Log, Out>(x);
        } else {
          e = softmax_exp<Log, Out>(x, so_far.least);
        }
        if constexpr (save == Save::kInScratch) store(saved + col, e);
        if constexpr (save == Save::kInRow) store(saved + col, part, e);
        so_far.sum = so_far.sum + e;
        return so_far;
      });
}
template <bool Log, Save save, class Out, class In, class C = Compute<In>>
FUSEDOPS_INLINE Accumulators<ExpSum<C>> save_exponentials(
    const In* input, const In* next, const Out* written, C* saved, Vec<C> min, C max,
    int64_t cols) {
  const auto with = [&](auto narrow) FUSEDOPS_LAMBDA {
    return save_exponentials<Log, save, narrow.value>(
        input, next, written, saved, shift_of(max), cols);
  };
  if constexpr (kMayBeNarrow<Log, In>) {
    if (is_narrow(min, max)) return with(Constant<true>{});
  }
  return with(Constant<false>{});
}

// Computes and saves the exponentials of a chunk, and sets the fields of `chunk`.
template <bool Log, Save save, class Out, class In, class C = Compute<In>>
FUSEDOPS_INLINE void softmax_chunk(
    const In* input, const In* next, const Out* written, C* saved, SoftmaxChunk<C>& chunk,
    int64_t cols) {
  const LanesOfRange<C> range = softmax_range<Log>(input, cols);
  const C max = without_nan(ReduceLanes<C>(range.max, Maximum{}), input, cols);
  const auto sums = save_exponentials<Log, save>(input, next, written, saved, range.min, max, cols);
  // The fields are set one by one. A copy of the whole struct would wait for the stores of its
  // fields, which takes as long as 64 columns.
  chunk.max = max;
  chunk.sum = ReduceLanes<double>(lanes_of_exp_sum<In>(sums, cols, chunk.least), Add{});
}

// Before partial sums are added up, each is multiplied by exp(its own maximum - the largest one).
// Below this difference every such product, as a number of type C, rounds to 0, and the exponential
// is not computed.
template <class C>
constexpr double kLowestDifference = sizeof(C) == sizeof(double) ? ExpDouble::kLowest : -200;

template <class C>
FUSEDOPS_INLINE double exp_or_zero(double difference) {
  const bool vanishes = difference < kLowestDifference<C>;
  const double e = __builtin_exp(Opaque(vanishes ? 0.0 : difference));
  return vanishes ? 0.0 : e;
}

// Returns exp(a - b) for a <= b. Most rows have one chunk, with a == b, and compute nothing.
template <class C>
FUSEDOPS_INLINE double exp_difference(C a, C b) {
  return a == b ? 1.0 : exp_or_zero<C>(double(a) - double(b));
}

struct SoftmaxRow {
  double max, sum;
};

// Returns the row's maximum, and the sum of exp(input - maximum), scaled if the chunks' sums are.
template <class C>
FUSEDOPS_INLINE SoftmaxRow combine(const SoftmaxChunk<C>* chunks, int64_t count) {
  if (count == 1) return {double(chunks->max), chunks->sum};  // nearly every row has one chunk
  C max = -kInfinity<C>;
  for (int64_t i = 0; i < count; ++i) max = Max(max, chunks[i].max);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double to_row = exp_difference(chunks[i].max, max);
    // The product is fused as in spatial.h, so that both files give the same bits.
    sum = kFusesProducts ? __builtin_fma(chunks[i].sum, to_row, sum) : sum + chunks[i].sum * to_row;
  }
  return {double(max), sum};
}

// Calls softmax_chunk() for each chunk of the columns `cols`, which begin at a multiple of
// kSoftmaxChunk. `after`, the input that is read after the row, is prefetched with the last chunk.
template <bool Log, Save save, class Out, class In, class C>
FUSEDOPS_INLINE void softmax_chunks(
    const In* input, const In* after, const Out* written, C* saved, SoftmaxChunk<C>* chunks,
    RowRange cols) {
  for (int64_t begin = cols.begin; begin < cols.end; begin += kSoftmaxChunk<C>) {
    const bool last = cols.end - begin <= kSoftmaxChunk<C>;
    const int64_t count = last ? cols.end - begin : kSoftmaxChunk<C>;
    const In* next = last ? after : input + begin + count;
    softmax_chunk<Log, save>(
        input + begin, next, written + begin, saved + begin, chunks[begin / kSoftmaxChunk<C>],
        count);
  }
}

// Returns tiles of a row's exponentials exp(input - shift), where each chunk has a shift of its
// own, with the bits of saved ones, which FromScratch and FromMemory load.
template <class In, class Out>
struct Recomputed {
  const In* input;
  template <class Part>
  FUSEDOPS_INLINE Tile<Compute<In>> at(int64_t col, Part part, Compute<In> shift) const {
    return scaled_exp<Out>(load(input + col, part) - shift);
  }
};

// Writes columns of a chunk of which some exponentials may have to be divided in steps
// (exp_division.h), because a result or an intermediate value would otherwise be denormal and lose
// bits. DivisionAsNeeded decides this for each tile, since with ALiBi most rows have such
// exponentials, but only in few of their tiles.
template <class In, class Out, class C, class Exponentials>
FUSEDOPS_NOINLINE void write_as_needed(
    Out* output, Exponentials exponentials, C shift, double factor, double sum, RowRange cols) {
  const DivisionAsNeeded<Out> divide(Divisor<Out>(factor, sum));
  for_columns<In>(cols.end - cols.begin, [&](int64_t offset, auto part) {
    const int64_t col = cols.begin + offset;
    store(output + col, part, in_order<In, Out>(divide(exponentials.at(col, part, shift))));
  });
}

// Writes columns of a chunk: the exponentials, of which `least` are the smallest, times `factor`,
// divided by the sum of the row.
template <class In, class Out, class C, class Exponentials>
FUSEDOPS_INLINE void write_divided(
    Out* output, Exponentials exponentials, C shift, Vec<C> least, double factor, double sum,
    RowRange cols, StoreMode mode) {
  const Divisor<Out> by(factor, sum);
  if (__builtin_expect(any_below(least, by.least), false)) {
    return write_as_needed<In>(output, exponentials, shift, factor, sum, cols);
  }
  for_columns<In>(cols.end - cols.begin, [=](int64_t offset, auto part) FUSEDOPS_LAMBDA {
    const int64_t col = cols.begin + offset;
    const Tile<C> e = divided<Out>(exponentials.at(col, part, shift), by);
    mode.store(output + col, part, NormalTile<C>{in_order<In, Out>(e)});
  });
}

// Writes a range of columns: the exponentials of each chunk, divided by the sum of the row.
template <class In, class Out, class C, class Exponentials>
FUSEDOPS_INLINE void write_softmax(
    Out* output, Exponentials exponentials, const SoftmaxChunk<C>* chunks, SoftmaxRow row,
    RowRange cols, StoreMode mode) {
  int64_t end;
  for (int64_t begin = cols.begin; begin < cols.end; begin = end) {
    const int64_t index = begin / kSoftmaxChunk<C>, whole = (index + 1) * kSoftmaxChunk<C>;
    end = whole < cols.end ? whole : cols.end;
    const SoftmaxChunk<C>& chunk = chunks[index];
    const double factor = exp_difference(chunk.max, C(row.max));
    write_divided<In>(
        output, exponentials, shift_of(chunk.max), chunk.least, factor, row.sum,
        RowRange{begin, end}, mode);
  }
}

template <class Out, class In, class C = Compute<In>>
FUSEDOPS_INLINE void write_log_softmax(
    Out* output, const In* input, SoftmaxRow row, RowRange cols, StoreMode mode) {
  const C max = C(row.max), log_sum = C(log_of_sum<Out>(row.sum));
  for_columns<In>(cols.end - cols.begin, [=](int64_t offset, auto part) FUSEDOPS_LAMBDA {
    const int64_t col = cols.begin + offset;
    mode.store(output + col, part, in_order<In, Out>((load(input + col, part) - max) - log_sum));
  });
}

// Computes a row of any length.
template <bool Log, class In, class Out, class C = Compute<In>>
FUSEDOPS_INLINE void softmax_row(
    const SoftmaxForward& args, int64_t row, C* scratch, StoreMode mode) {
  const In* input = start_of<In>(args.input, row);
  Out* output = start_of<Out>(args.output, row);
  auto* chunks = reinterpret_cast<SoftmaxChunk<C>*>(scratch + padded_cols(args.cols));
  const RowRange cols{0, args.cols};
  constexpr Save save = Log ? Save::kNot : Save::kInScratch;
  softmax_chunks<Log, save>(
      input, input + args.input.spacing.stride, mode.prefetched(output, scratch), scratch, chunks,
      cols);
  const SoftmaxRow whole = combine(chunks, softmax_chunk_count<C>(args.cols));
  if constexpr (Log) {
    write_log_softmax(output, input, whole, cols, mode);
  } else {
    write_softmax<In>(output, FromScratch<C>{scratch}, chunks, whole, cols, mode);
  }
}

// Computes a group of rows that have one chunk each. Every step is computed for all rows before the
// next step, so that their reductions over lanes overlap and take nearly the time of one row's.
template <bool Log, class In, class Out, class C = Compute<In>>
FUSEDOPS_INLINE void softmax_row_group(
    const SoftmaxForward& args, int64_t first, C* scratch, StoreMode mode) {
  constexpr int kRows = kLanes<double>;
  const int64_t cols = args.cols, padded = padded_cols(cols);
  Vec<C> lanes[kRows], min[kRows], least[kRows];
  for (int r = 0; r < kRows; ++r) {
    const auto range = softmax_range<Log>(start_of<In>(args.input, first + r), cols);
    lanes[r] = range.max;
    min[r] = range.min;
  }
  C max[kRows];
  reduce_lanes_of<C>(lanes, max, Maximum{});
  Vec<double> sum_lanes[kRows];
#pragma GCC unroll 1
  for (int r = 0; r < kRows; ++r) {
    const In* input = start_of<In>(args.input, first + r);
    const In* next = input + kRows * args.input.spacing.stride;
    C* saved = scratch + r * padded;
    const Out* written = mode.prefetched(start_of<Out>(args.output, first + r), saved);
    constexpr Save save = Log ? Save::kNot : Save::kInScratch;
    max[r] = without_nan(max[r], input, cols);
    const auto sums =
        save_exponentials<Log, save>(input, next, written, saved, min[r], max[r], cols);
    sum_lanes[r] = lanes_of_exp_sum<In>(sums, cols, least[r]);
  }
  double sum[kRows];
  sums_over_lanes<double>(sum_lanes, sum);
#pragma GCC unroll 1
  for (int r = 0; r < kRows; ++r) {
    Out* output = start_of<Out>(args.output, first + r);
    const RowRange all{0, cols};
    if constexpr (Log) {
      const In* input = start_of<In>(args.input, first + r);
      write_log_softmax(output, input, SoftmaxRow{double(max[r]), sum[r]}, all, mode);
    } else {
      const FromScratch<C> saved{scratch + r * padded};
      write_divided<In>(output, saved, C(0), least[r], /*factor=*/1.0, sum[r], all, mode);
    }
  }
}

// Whether rows may be computed in groups. Vectors of 16 bytes are excluded because their groups
// would have only two rows, and doubles because they are rare.
template <class In>
constexpr bool kHasRowGroups = kVectorBytes > 16 && sizeof(In) < sizeof(double);

// Returns the largest number of columns for which rows are faster in groups. A group of 16-bit rows
// saves 4 % of the time at 512 columns, and 20 % at 128. Groups of more than 128 floats read and
// write memory in turn, which takes up to a sixth more time where the results bypass the cache.
template <class In>
FUSEDOPS_INLINE int64_t max_group_cols(StoreMode mode) {
  return mode.streams && sizeof(In) > 2 ? 128 : kMaxSoftmaxGroupCols;
}

// Computes as many whole groups of `rows` as there are, if rows of this length are faster in
// groups. Returns the rows that remain.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE RowRange softmax_row_groups(
    const SoftmaxForward& args, RowRange rows, Compute<In>* scratch, StoreMode mode) {
  if constexpr (kHasRowGroups<In>) {
    constexpr int kRows = kLanes<double>;
    static_assert(kRows <= kMaxSoftmaxGroupRows);
    if (args.cols > max_group_cols<In>(mode)) return rows;
    for (; rows.begin + kRows <= rows.end; rows.begin += kRows) {
      softmax_row_group<Log, In, Out>(args, rows.begin, scratch, mode);
    }
  }
  return rows;
}

template <bool Log, class In, class Out>
FUSEDOPS_INLINE void softmax_rows(
    const SoftmaxForward& args, RowRange range, void* scratch_memory, StoreMode mode) {
  auto* scratch = static_cast<Compute<In>*>(scratch_memory);
  range = softmax_row_groups<Log, In, Out>(args, range, scratch, mode);
  for (int64_t row = range.begin; row < range.end; ++row) {
    softmax_row<Log, In, Out>(args, row, scratch, mode);
  }
}

// --- backward -----------------------------------------------------------------------------------

template <class Out>
struct SoftmaxGradRow {
  const Out *grad, *output;

  FUSEDOPS_INLINE SoftmaxGradRow(const Out* grad_, const Out* output_)
      : grad(grad_), output(output_) {}
  FUSEDOPS_INLINE SoftmaxGradRow(const SoftmaxBackward& args, int64_t row)
      : grad(start_of<Out>(args.grad_output, row)), output(start_of<Out>(args.output, row)) {}
};

// Returns the sum of grad_output * output, or of grad_output for a logarithm, over columns of a
// row. The lanes remain to be added.
template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_INLINE Vec<double> softmax_backward_lanes(SoftmaxGradRow<Out> row, RowRange cols) {
  const auto sums = fold_columns<Out>(
      cols.end - cols.begin, Broadcast(C(0)),
      [=](Tile<C> so_far, int64_t offset, auto part) FUSEDOPS_LAMBDA {
        const int64_t col = cols.begin + offset;
        const Tile<C> g = load(row.grad + col, part);
        return so_far + (Log ? g : g * load(row.output + col, part));
      });
  return lanes_of_sum<Out>(sums, cols.end - cols.begin);
}

template <bool Log, class Out>
FUSEDOPS_INLINE double softmax_backward_sum(SoftmaxGradRow<Out> row, RowRange cols) {
  return ReduceLanes<double>(softmax_backward_lanes<Log>(row, cols), Add{});
}

// Returns the gradient of the input. V is a tile or a vector, and `sum` is one number, or one for
// each lane.
template <bool Log, class In, class V, class Sum>
FUSEDOPS_INLINE V softmax_gradient(V grad, V output, Sum sum) {
  return Log ? grad - exp_nonpositive<In>(output) * sum : (grad - sum) * output;
}

// Holds the distances from a row to the rows that are prefetched while it is written.
struct RowsAhead {
  int64_t grad = 0, output = 0;

  RowsAhead() = default;
  // The backward pass is 10 % faster with prefetching `rows` rows ahead if the data exceeds the
  // cache, and 20 % slower if it does not. Nothing is prefetched if the rows would not stay in the
  // cache.
  FUSEDOPS_INLINE RowsAhead(
      const ConstRows& grads, const ConstRows& outputs, int64_t row_bytes, int64_t rows) {
    const bool fits = row_bytes <= kPrefetchedRowBytes;
    grad = fits ? rows * grads.spacing.stride : 0;
    output = fits ? rows * outputs.spacing.stride : 0;
  }

  // Returns how many rows ahead is best for rows that are computed one by one. On a Zen 4, two rows
  // ahead of one take 10 % less time for 4096 columns of 16 bits, and 20 % more for 1024 floats.
  template <class Out>
  static constexpr int64_t of_single_rows() {
    return sizeof(Out) == 2 ? 2 : 1;
  }
};

// Writes a gradient, and prefetches the rows ahead if the results bypass the cache (`streams`).
template <bool Log, class In, class Out, class C = Compute<Out>>
FUSEDOPS_INLINE void write_softmax_backward(
    In* result, SoftmaxGradRow<Out> row, C sum, RowRange cols, RowsAhead ahead, StoreMode mode) {
  for_columns<Out>(cols.end - cols.begin, [=](int64_t offset, auto part) FUSEDOPS_LAMBDA {
    const int64_t col = cols.begin + offset;
    if (mode.streams) {
      prefetch_tile<Cache::kL2>(row.grad + ahead.grad + col);
      prefetch_tile<Cache::kL2>(row.output + ahead.output + col);
    }
    const Tile<C> g = load(row.grad + col, part), y = load(row.output + col, part);
    mode.store(result + col, part, in_order<Out, In>(softmax_gradient<Log, In>(g, y, sum)));
  });
}

template <bool Log, class In, class Out>
FUSEDOPS_NOINLINE void softmax_backward_row(
    const SoftmaxBackward& args, int64_t row, StoreMode mode) {
  const RowRange cols{0, args.cols};
  const SoftmaxGradRow<Out> grad_row(args, row);
  const auto sum = Compute<Out>(softmax_backward_sum<Log>(grad_row, cols));
  In* result = start_of<In>(args.grad_input, row);
  const RowsAhead ahead(
      args.grad_output, args.output, args.cols * int64_t(sizeof(Out)),
      RowsAhead::of_single_rows<Out>());
  write_softmax_backward<Log>(result, grad_row, sum, cols, ahead, mode);
}

// A group of the backward has this many rows.
constexpr int kGradGroupRows = kLanes<double>;

// Computes a group of evenly spaced rows. The loops over rows are not unrolled: three addresses for
// each row exceed the registers, which costs a fifth of the time at 64 columns.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE void softmax_backward_row_group(
    const SoftmaxBackward& args, int64_t first, RowRange cols, RowsAhead ahead, StoreMode mode) {
  using C = Compute<Out>;
  Vec<double> lanes[kGradGroupRows];
  const SoftmaxGradRow<Out> first_row(args, first);
  SoftmaxGradRow<Out> row = first_row;
  const int64_t grad_stride = args.grad_output.spacing.stride;
  const int64_t output_stride = args.output.spacing.stride;
#pragma GCC unroll 1
  for (int r = 0; r < kGradGroupRows; ++r) {
    lanes[r] = softmax_backward_lanes<Log>(row, cols);
    row = {row.grad + grad_stride, row.output + output_stride};
  }
  double sums[kGradGroupRows];
  sums_over_lanes<double>(lanes, sums);
  C totals[kGradGroupRows];
  for (int r = 0; r < kGradGroupRows; ++r) totals[r] = C(sums[r]);
  row = first_row;
  In* result = start_of<In>(args.grad_input, first);
#pragma GCC unroll 1
  for (int r = 0; r < kGradGroupRows; ++r) {
    write_softmax_backward<Log>(result, row, totals[r], cols, ahead, mode);
    row = {row.grad + grad_stride, row.output + output_stride};
    result += args.grad_input.spacing.stride;
  }
}

// Computes as many whole groups as there are. Returns the remaining rows.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE RowRange
softmax_backward_groups(const SoftmaxBackward& args, RowRange rows, int64_t cols, StoreMode mode) {
  const RowsAhead ahead(args.grad_output, args.output, cols * int64_t(sizeof(Out)), kGradGroupRows);
  const auto are_evenly_spaced = [&](const auto& tensor) FUSEDOPS_LAMBDA {
    return are_even(tensor, rows.begin, kGradGroupRows);
  };
  for (; rows.begin + kGradGroupRows <= rows.end; rows.begin += kGradGroupRows) {
    if (are_evenly_spaced(args.grad_output) && are_evenly_spaced(args.output) &&
        are_evenly_spaced(args.grad_input)) {
      softmax_backward_row_group<Log, In, Out>(args, rows.begin, RowRange{0, cols}, ahead, mode);
    } else {
      for (int r = 0; r < kGradGroupRows; ++r) {
        softmax_backward_row<Log, In, Out>(args, rows.begin + r, mode);
      }
    }
  }
  return rows;
}

// Computes groups unless rows have more than kMaxGradGroupCols columns, and returns the remaining
// rows. In the branches of short rows the number of whole tiles is a constant, and the compiler
// omits the loops over tiles, which cost such short rows as much as the arithmetic. Where a tile
// has 8 floats, the branches would be for too few columns to be worth their size.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE RowRange
softmax_backward_groups(const SoftmaxBackward& args, RowRange rows, StoreMode mode) {
  constexpr int64_t kOne = kTile<Out>, kOneAndAHalf = kOne + kOne / 2, kTwo = 2 * kOne;
  const auto groups = [&](int64_t cols) FUSEDOPS_LAMBDA {
    return softmax_backward_groups<Log, In, Out>(args, rows, cols, mode);
  };
  const int64_t cols = args.cols;
  if constexpr (kVectorBytes > 16) {
    if (cols == kOne) return groups(kOne);
    if (cols == kOneAndAHalf) return groups(kOneAndAHalf);
    if (cols == kTwo) return groups(kTwo);
    if (cols < kOne) return groups(cols);
    if (cols < kTwo) return groups(cols);
  }
  if (cols <= kMaxGradGroupCols<Out>) return groups(cols);
  return rows;
}

template <bool Log, class In, class Out>
FUSEDOPS_INLINE void softmax_backward_rows(
    const SoftmaxBackward& args, RowRange range, StoreMode mode) {
  range = softmax_backward_groups<Log, In, Out>(args, range, mode);
  for (int64_t row = range.begin; row < range.end; ++row) {
    softmax_backward_row<Log, In, Out>(args, row, mode);
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
