// Computes the norms of rows on the CPU.
//
// Statistics: one pass sums the deviations of the values from a number near their mean, the shift,
// and the squares of the deviations. The mean and the variance follow from the two sums and the
// shift (Chan, Golub, LeVeque 1983). If the shift is further from the mean than one standard
// deviation, the pass is repeated with the mean as the shift. Neither a large mean nor a long row
// then costs digits. The mean is represented as a rounded number and the remainder that the
// rounding drops, and both are subtracted. Norms without a mean sum the squares of the values.
//
// With a residual, each chunk (common.h) of input + residual is computed just before it is summed,
// so that every tensor is read or written once, and dropout is computed once.
#pragma once

#include "cpu/norm/common.h"
#include "cpu/simd/philox.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// --- rows ---------------------------------------------------------------------------------------

// Describes rows that are normalized as they are in memory.
template <class T, int kCount>
struct PlainRows {
  const T* row[kCount];
  int64_t ahead;  // distance to the rows to prefetch (prefetch_distance())

  FUSEDOPS_INLINE PlainRows(const NormForward& args, int64_t first, void*, bool)
      : ahead(prefetch_distance<T>(args.input.spacing, args.cols, kCount)) {
    for (int r = 0; r < kCount; ++r) row[r] = start_of<T>(args.input, first + r);
  }

  FUSEDOPS_INLINE void compute(int64_t, int64_t) const {}
  FUSEDOPS_INLINE void prefetch(int64_t col) const {
    for (int r = 0; r < kCount; ++r) prefetch_tile<Cache::kL2>(row[r] + ahead + col);
  }
  template <class Part>
  FUSEDOPS_INLINE void copy(int, int64_t, Part, Tile<Compute<T>>, StoreMode) const {}
};

// Describes rows that are dropout(input) + residual. They are computed in the memory of args.sum,
// or in scratch memory if args.sum is not wanted or is written past the cache (`streams`). The code
// for the input's dtype is chosen once a chunk.
template <class T, int kCount>
struct AddedRows {
  using C = Compute<T>;
  const T* row[kCount];
  const NormForward& args;
  int64_t first;
  C* chunk;  // room for a chunk of one row, to which dropout is applied
  T* computed[kCount];
  T* sum[kCount];          // where copy() stores rows, or null if they are not copied
  const char* next_input;  // the row to prefetch, prefetch_distance() after the first row
  const T* next_residual;

  FUSEDOPS_INLINE AddedRows(const NormForward& args_, int64_t first_, void* scratch, bool streams)
      : args(args_), first(first_), chunk(static_cast<C*>(scratch)) {
    T* rows = static_cast<T*>(scratch) + kNormChunkBytes / sizeof(T);
    for (int r = 0; r < kCount; ++r) {
      T* wanted = args.sum.data == nullptr ? nullptr : start_of<T>(args.sum, first + r);
      const bool in_place = wanted != nullptr && !streams;
      computed[r] = in_place ? wanted : rows + r * padded_cols(args.cols);
      sum[r] = in_place ? nullptr : wanted;
      row[r] = computed[r];
    }
    prefetch_from(
        prefetch_distance<T>(args.input.spacing, args.cols, kCount),
        prefetch_distance<T>(args.residual.spacing, args.cols, kCount));
  }

  // Describes a single row, which compute() writes to `to`.
  FUSEDOPS_INLINE AddedRows(const NormForward& args_, int64_t first_, T* to, void* scratch)
      : args(args_), first(first_), chunk(static_cast<C*>(scratch)), computed{to}, sum{nullptr} {
    static_assert(kCount == 1);
    row[0] = to;
    prefetch_from(/*input_ahead=*/0, /*residual_ahead=*/0);
  }

  // Computes `cols` columns of dropout(input) + residual, from `begin` on, for each row. The caller
  // then finds them in row[r].
  FUSEDOPS_INLINE void compute(int64_t begin, int64_t cols) const {
    with_branch<T>(args.input.dtype, [&](auto tag) FUSEDOPS_LAMBDA {
      using Branch = decltype(tag);
      for (int r = 0; r < kCount; ++r) {
        if (args.dropout.seed != nullptr) {
          add_dropped<Branch>(r, begin, cols);
        } else if constexpr (std::is_same_v<Branch, T>) {
          add_in_memory<T>(r, begin, cols);
        } else {
          add_converted<Branch>(r, begin, cols);
        }
      }
    });
  }

  FUSEDOPS_INLINE void prefetch(int64_t col) const {
    for (int r = 0; r < kCount; ++r) {
      const int64_t input = r * args.input.spacing.stride + col;
      prefetch_tile<Cache::kL2>(reinterpret_cast<const T*>(next_input + input * branch_bytes()));
      prefetch_tile<Cache::kL2>(next_residual + r * args.residual.spacing.stride + col);
    }
  }

  template <class Part>
  FUSEDOPS_INLINE void copy(int r, int64_t col, Part part, Tile<C> value, StoreMode mode) const {
    if (sum[r] != nullptr) mode.store(sum[r] + col, part, value);
  }

 private:
  FUSEDOPS_INLINE int64_t branch_bytes() const {
    return std::is_same_v<T, float> ? size_of(args.input.dtype) : sizeof(T);
  }

  FUSEDOPS_INLINE void prefetch_from(int64_t input_ahead, int64_t residual_ahead) {
    const int64_t input = args.input.spacing.offset(first) + input_ahead;
    next_input = static_cast<const char*>(args.input.data) + input * branch_bytes();
    next_residual = start_of<T>(args.residual, first) + residual_ahead;
  }

  template <class Branch>
  FUSEDOPS_INLINE void add_in_memory(int r, int64_t begin, int64_t cols) const {
    const Branch* input = start_of<Branch>(args.input, first + r) + begin;
    add<Branch>(r, begin, cols, FromMemory<Branch, T>{input}, C(1));
  }

  // The function is not inlined, so that the loop for an input of type T has all registers.
  template <class Branch>
  FUSEDOPS_NOINLINE void add_converted(int r, int64_t begin, int64_t cols) const {
    add_in_memory<Branch>(r, begin, cols);
  }

  template <class Branch>
  FUSEDOPS_NOINLINE void add_dropped(int r, int64_t begin, int64_t cols) const {
    const FromMemory<Branch, T> input{start_of<Branch>(args.input, first + r) + begin};
    for_columns<T>(cols, [=, to = chunk](int64_t col, auto part) FUSEDOPS_LAMBDA {
      store(to + col, input.at(col, part));
    });
    drop_columns<T>(DropoutRow(args.dropout, first + r), chunk, begin, cols);
    add<Branch>(r, begin, cols, FromScratch<C>{chunk}, C(args.dropout.scale));
  }

  // Writes branch * scale + residual for a chunk of row `r`. It prefetches the columns after the
  // chunk, because the hardware prefetcher starts anew at each chunk.
  template <class Branch, class Source>
  FUSEDOPS_INLINE void add(int r, int64_t begin, int64_t cols, Source branch, C scale) const {
    const bool last = begin + kNormChunk<T> >= args.cols;
    const Branch* input = start_of<Branch>(args.input, first + r) + begin;
    const T* residual = start_of<T>(args.residual, first + r) + begin;
    T* to = computed[r] + begin;
    for_columns<T>(cols, [=](int64_t col, auto part) FUSEDOPS_LAMBDA {
      if (!last) {
        prefetch_tile<Cache::kL2>(input + kNormChunk<T> + col);
        prefetch_tile<Cache::kL2>(residual + kNormChunk<T> + col);
      }
      store(to + col, part, branch.at(col, part) * scale + load(residual + col, part));
    });
  }
};

// Holds a row that is already computed.
template <class T>
struct OneRow {
  const T* row[1];
  FUSEDOPS_INLINE void compute(int64_t, int64_t) const {}
};

// --- sums ---------------------------------------------------------------------------------------

// This is the square root of the smallest normal number: squares of smaller values are denormal or
// 0.
template <class C>
constexpr C kTinyRoot = sizeof(C) == sizeof(double) ? C(0x1p-511) : C(0x1p-63);

// These structs read the tiles of a row that a pass sums. Unscaled leaves them unchanged. Scaled
// multiplies them by a power of two: by a small one so that no finite value's square overflows, or
// by a large one so that no significant square underflows. Squares of values below `tiny` are
// denormal or 0.
template <class T>
struct Unscaled {
  static constexpr Compute<T> tiny = kTinyRoot<Compute<T>>;
  template <class Rows, class Part>
  FUSEDOPS_INLINE Tile<Compute<T>> at(const Rows& rows, int r, int64_t col, Part part) const {
    return load(rows.row[r] + col, part);
  }
};
template <class T>
struct Scaled {
  Compute<T> factor, tiny = factor < 1 ? kTinyRoot<Compute<T>> : Compute<T>(0);
  template <class Rows, class Part>
  FUSEDOPS_INLINE Tile<Compute<T>> at(const Rows& rows, int r, int64_t col, Part part) const {
    return load(rows.row[r] + col, part) * factor;
  }
};

// Adds a square to a sum without producing a denormal. With FMA the square is never a separate
// value, so it is enough that sums start at the square of `tiny`, which is normal, and that
// sum_of_starts() is subtracted from them later. Without FMA, values nearer to 0 than `tiny` are
// ignored.
template <class C>
FUSEDOPS_INLINE Tile<C> plus_square(Tile<C> sum, Tile<C> x, C tiny) {
  for (auto& vec : x.v) {
    if (!kFusesProducts) vec = (vec < tiny) & (vec > -tiny) ? Vec<C>{} : vec;
  }
  return sum + x * x;
}
template <class C>
constexpr C start_of_squares(C tiny) {
  return kFusesProducts ? tiny * tiny : C(0);
}

// Returns the tile at which a chunk's sum starts: start_of_squares() in lanes with a column of the
// row, and 0 in all others.
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Tile<C> start_of_chunk(C tiny, int64_t cols) {
  const Tile<C> start = Broadcast(start_of_squares(tiny));
  return cols < kTile<T> ? filled<T>(start, Tail{static_cast<int>(cols)}, C(0)) : start;
}

// Returns the part of a row's sum of squares that is not from its elements but from the starts of
// its chunks.
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Wider<T> sum_of_starts(C tiny, int64_t cols) {
  const int64_t chunks = ceil_div(cols, kNormChunk<T>);
  const int64_t lanes = cols < kTile<T> ? cols : kTile<T>;
  return Wider<T>(start_of_squares(tiny)) * (chunks * lanes);
}

// A row is multiplied by one of these powers of two if its squares overflow or underflow.
template <class C>
constexpr C kDown = sizeof(C) == sizeof(double) ? C(0x1p-520) : C(0x1p-80);
template <class C>
constexpr C kUp = sizeof(C) == sizeof(double) ? C(0x1p600) : C(0x1p100);

// Sums of squares in this range are exact. Below `lowest` they have lost digits to underflow; if
// they are not finite, they have overflowed, or the row contains a NaN or an infinity.
template <class Wide>
struct SquaresRange {
  Wide lowest;

  FUSEDOPS_INLINE bool holds(Wide squares) const {
    return squares >= lowest && squares < kInfinity<Wide>;
  }
  // Returns the factor for a row whose sum of squares is outside the range.
  template <class C>
  FUSEDOPS_INLINE C factor(Wide squares) const {
    return squares < lowest ? kUp<C> : kDown<C>;
  }
};

// Returns the range of exact sums. Where eps dominates what underflow loses, the range begins at 0,
// so that rows of zeros need no second pass. Elsewhere, the squares that plus_square() ignores are
// at most 2^-34 of the sum.
template <class T>
FUSEDOPS_INLINE SquaresRange<Wider<T>> squares_range(NormFormula norm) {
  constexpr bool kIsDouble = sizeof(T) == sizeof(double);
  constexpr double kCovers = kIsDouble ? 0x1p-840 : 0x1p-70;
  const Wider<T> lowest = kIsDouble ? Wider<T>(0x1p-900)
      : kFusesProducts              ? 0x1p-100
                                    : norm.cols * 0x1p-92;
  return {squared_eps(norm) >= kCovers ? 0 : lowest};
}

// Adds up the sums of a row's chunks, which are in Compute<T>. The total is in Wider<T>.
template <class C>
struct LongSum;
template <>
struct LongSum<float> {
  Vec<double> lanes = {};
  FUSEDOPS_INLINE void add(Tile<float> chunk) { lanes += promoted_sum(chunk.v[0] + chunk.v[1]); }
};
// Elsewhere than on x86 a long double is computed in software, or is a double. There the sum of a
// row is two doubles, `total` and `rest`, which adds up what rounding has dropped from `total`
// (Knuth's TwoSum).
template <bool kInHardware>
struct ExtendedSum {
  long double total = 0;
  FUSEDOPS_INLINE void add(double more) { total += more; }
  FUSEDOPS_INLINE long double value() const { return total; }
};
template <>
struct ExtendedSum<false> {
  double total = 0, rest = 0;
  FUSEDOPS_INLINE void add(double more) {
    const double sum = total + more, added = sum - total;
    rest += (total - (sum - added)) + (more - added);
    total = sum;
  }
  // Returns the sum. It leaves out a rest that is NaN, which it is if the total is infinite.
  FUSEDOPS_INLINE long double value() const {
    return rest == rest ? static_cast<long double>(total) + rest : total;
  }
};
template <>
struct LongSum<double> {
  ExtendedSum<__LDBL_MANT_DIG__ == 64> sum;
  FUSEDOPS_INLINE void add(Tile<double> chunk) { sum.add(sum_of(chunk, Broadcast(0.0))); }
};

template <int kCount>
FUSEDOPS_INLINE void totals(const LongSum<float> (&sums)[kCount], double (&result)[kCount]) {
  Vec<double> lanes[kCount];
  for (int i = 0; i < kCount; ++i) lanes[i] = sums[i].lanes;
  sums_over_lanes<double>(lanes, result);
}
template <int kCount>
FUSEDOPS_INLINE void totals(const LongSum<double> (&sums)[kCount], long double (&result)[kCount]) {
  for (int i = 0; i < kCount; ++i) result[i] = sums[i].sum.value();
}

// --- statistics ---------------------------------------------------------------------------------

// Holds the sum of squared deviations from the mean, and the mean as shift + away. These two are
// kept apart, because the mean of doubles that differ little has more digits than a long double.
// For a norm without a mean, holds the sum of the squared values, and zeros.
template <class Wide>
struct Moments {
  Wide squares, shift = 0, away = 0;

  FUSEDOPS_INLINE Wide mean() const { return shift + away; }
  FUSEDOPS_INLINE Wide mean_from(Wide origin) const { return (shift - origin) + away; }
};

// Computes the moments of every row from its deviations from a shift. If rows are sums (AddedRows),
// it computes them too, except for their first chunk, which the caller has computed.
template <class T, class At, int kCount, class Rows, class C = Compute<T>>
FUSEDOPS_INLINE void moments_around(
    const C (&shift)[kCount], At source, const Rows& rows, int64_t cols,
    Moments<Wider<T>> (&moments)[kCount]) {
  LongSum<C> sums[2 * kCount];
  for_parts<kNormChunk<T>>(RowRange{0, cols}, [&](int64_t begin, int64_t count) FUSEDOPS_LAMBDA {
    if (begin != 0) rows.compute(begin, count);
    Tile<C> deviations[kCount], squares[kCount];
    for (int r = 0; r < kCount; ++r) {
      deviations[r] = Broadcast(C(0));
      squares[r] = start_of_chunk<T>(source.tiny, cols);
    }
    for_columns<T>(count, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      for (int r = 0; r < kCount; ++r) {
        const Tile<C> x = source.at(rows, r, begin + col, part);
        const Tile<C> deviation = filled<T>(x - shift[r], part, C(0));
        deviations[r] = deviations[r] + deviation;
        squares[r] = plus_square(squares[r], deviation, source.tiny);
      }
    });
    for (int r = 0; r < kCount; ++r) {
      sums[2 * r].add(deviations[r]);
      sums[2 * r + 1].add(squares[r]);
    }
  });
  Wider<T> total[2 * kCount];
  totals(sums, total);
  for (int r = 0; r < kCount; ++r) {
    const Wider<T> away = total[2 * r] / cols;
    const Wider<T> around = total[2 * r + 1] - sum_of_starts<T>(source.tiny, cols);
    const Wider<T> squares = around - total[2 * r] * away;
    moments[r] = {squares < 0 ? 0 : squares, shift[r], away};  // below 0 if squares underflow
  }
}

// Returns a value near the mean: the mean of the first tile. Values are divided before they are
// added, so that the sum does not overflow.
template <class T, class At, class Rows, class C = Compute<T>>
FUSEDOPS_INLINE C shift_near_mean(At source, const Rows& rows, int r, int64_t cols) {
  const bool whole = cols >= kTile<T>;
  const Tile<C> tile =
      whole ? source.at(rows, r, 0, Full{}) : source.at(rows, r, 0, Tail{static_cast<int>(cols)});
  const C share = whole ? C(1) / kTile<T> : C(1) / C(cols);
  const Tile<C> shares = unfused(tile * share);
  return ReduceLanes<C>(shares.v[0] + shares.v[1], Add{});
}

// Whether the shift is within a standard deviation of the mean, and the sum of squares is in range.
template <class Wide>
FUSEDOPS_INLINE bool are_exact(
    const Moments<Wide>& moments, int64_t cols, SquaresRange<Wide> range) {
  const Wide squares = moments.squares;
  return moments.away * moments.away * cols <= squares && range.holds(squares);
}

template <class T, class At, class C = Compute<T>>
Moments<Wider<T>> moments_of_one(C shift, At source, const OneRow<T>& row, int64_t cols) {
  const C shifts[] = {shift};
  Moments<Wider<T>> moments[1];
  moments_around<T>(shifts, source, row, cols, moments);
  return moments[0];
}

// Computes the moments again, with the approximate mean as the shift. If the sum of squares is not
// in `range`, computes them once more, for the row multiplied by a power of two.
template <class T, class C = Compute<T>>
FUSEDOPS_NOINLINE Moments<Wider<T>> exact_moments(
    C mean, const T* memory, int64_t cols, SquaresRange<Wider<T>> range) {
  const OneRow<T> row{{memory}};
  const Moments<Wider<T>> moments = moments_of_one<T>(mean, Unscaled<T>{}, row, cols);
  if (range.holds(moments.squares)) return moments;
  // With a mean beyond 1 or -1, the squared deviations of values that differ at all are in the
  // range. So all values here are equal, and might overflow if they were scaled.
  if (moments.squares < range.lowest && (mean > 1 || mean < -1)) return moments;
  const Scaled<T> by{range.template factor<C>(moments.squares)};
  const C shift = shift_near_mean<T>(by, row, 0, cols);
  const C scaled_mean = C(moments_of_one<T>(shift, by, row, cols).mean());
  const Moments<Wider<T>> scaled = moments_of_one<T>(scaled_mean, by, row, cols);
  const Wider<T> factor = by.factor;
  return {scaled.squares / factor / factor, scaled.shift / factor, scaled.away / factor};
}

// Returns the moments of a row in memory. They are computed again if one pass is not exact.
template <class T>
Moments<Wider<T>> moments_of_one(const T* memory, int64_t cols, SquaresRange<Wider<T>> range) {
  const OneRow<T> row{{memory}};
  const auto shift = shift_near_mean<T>(Unscaled<T>{}, row, 0, cols);
  const Moments<Wider<T>> moments = moments_of_one<T>(shift, Unscaled<T>{}, row, cols);
  if (are_exact(moments, cols, range)) return moments;
  return exact_moments(Compute<T>(moments.mean()), memory, cols, range);
}

// Computes the sum of squares of every row. Rows of dropout(input) + residual (AddedRows) are
// computed on the way.
template <class T, class At, int kCount, class Rows, class C = Compute<T>>
FUSEDOPS_INLINE void sums_of_squares(
    At source, const Rows& rows, int64_t cols, Wider<T> (&total)[kCount]) {
  LongSum<C> sums[kCount];
  for_parts<kNormChunk<T>>(RowRange{0, cols}, [&](int64_t begin, int64_t count) FUSEDOPS_LAMBDA {
    rows.compute(begin, count);
    Tile<C> squares[kCount];
    for (int r = 0; r < kCount; ++r) squares[r] = start_of_chunk<T>(source.tiny, cols);
    for_columns<T>(count, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      for (int r = 0; r < kCount; ++r) {
        const Tile<C> x = source.at(rows, r, begin + col, part);  // 0 past the end of the row
        squares[r] = plus_square(squares[r], x, source.tiny);
      }
    });
    for (int r = 0; r < kCount; ++r) sums[r].add(squares[r]);
  });
  totals(sums, total);
  for (auto& squares : total) squares -= sum_of_starts<T>(source.tiny, cols);
}

// Computes again a sum of squares that overflowed, or lost bits of small squares. The row is
// multiplied by a power of two, so that the sum is within its range.
template <class T>
FUSEDOPS_NOINLINE Wider<T> exact_sum_of_squares(
    Wider<T> squares, const T* memory, int64_t cols, SquaresRange<Wider<T>> range) {
  const Scaled<T> by{range.template factor<Compute<T>>(squares)};
  Wider<T> scaled[1];
  sums_of_squares<T>(by, OneRow<T>{{memory}}, cols, scaled);
  const Wider<T> factor = by.factor;
  return scaled[0] / factor / factor;
}

// Returns the sum of squares of a row in memory. The sum is computed again if it is not in `range`.
template <class T>
Wider<T> sum_of_squares_of_one(const T* memory, int64_t cols, SquaresRange<Wider<T>> range) {
  Wider<T> squares[1];
  sums_of_squares<T>(Unscaled<T>{}, OneRow<T>{{memory}}, cols, squares);
  return range.holds(squares[0]) ? squares[0]
                                 : exact_sum_of_squares(squares[0], memory, cols, range);
}

// Normalizes a tile by NormStatistics. `S` is one number, or one for each lane.
template <bool kCenters, class T, class C, class S>
FUSEDOPS_INLINE Tile<C> normalized(Tile<C> x, S mean, S rstd, S remainder) {
  if constexpr (kCenters) return MulSub(x - mean, rstd, remainder);
  if constexpr (sizeof(T) == 2) return x * rstd;
  return x * rstd + x * remainder;
}

// Converts a value that is used in every column. A denormal becomes 0, because it would slow down
// every column and is too small to matter.
template <class C, class Wide>
FUSEDOPS_INLINE C unless_denormal(Wide value) {
  constexpr Wide least = Wide(kTinyRoot<C>) * kTinyRoot<C>;
  return value < least && value > -least ? C(0) : C(value);
}

template <bool kCenters, class T>
struct NormStatistics;

// Holds the statistics of a row, which is normalized as (x - mean) * rstd - remainder.
template <class T>
struct NormStatistics<true, T> {
  using C = Compute<T>;
  C mean, rstd, remainder;

  // Computes the statistics of the rows and, if these are sums (AddedRows), first the rows.
  template <int kCount, class Rows>
  static FUSEDOPS_INLINE void compute(
      const Rows& rows, const NormForward& args, NormStatistics (&result)[kCount]) {
    const int64_t cols = args.cols;
    rows.compute(0, cols < kNormChunk<T> ? cols : kNormChunk<T>);
    C shift[kCount];
    for (int r = 0; r < kCount; ++r) shift[r] = shift_near_mean<T>(Unscaled<T>{}, rows, r, cols);
    Moments<Wider<T>> moments[kCount];
    moments_around<T>(shift, Unscaled<T>{}, rows, cols, moments);
    const SquaresRange<Wider<T>> range = squares_range<T>(args);
    for (int r = 0; r < kCount; ++r) {
      if (!are_exact(moments[r], cols, range)) {
        moments[r] = exact_moments(C(moments[r].mean()), rows.row[r], cols, range);
      }
      result[r] = from_moments(args, moments[r]);
    }
  }

  static FUSEDOPS_INLINE NormStatistics from_moments(NormFormula norm, Moments<Wider<T>> moments) {
    const Wider<T> rstd = rstd_of(norm, moments.squares);
    const C mean = C(moments.mean());
    return {mean, C(rstd), unless_denormal<C>(moments.mean_from(mean) * rstd)};
  }

  FUSEDOPS_INLINE void save(const NormForward& args, int64_t row) const {
    if (args.rstd == nullptr) return;
    static_cast<C*>(args.mean)[row] = mean;
    static_cast<C*>(args.rstd)[row] = rstd;
  }
  FUSEDOPS_INLINE Tile<C> normalize(Tile<C> x) const {
    return normalized<true, T>(x, mean, rstd, remainder);
  }
};

// Holds the statistics of a row, which is normalized as x * (rstd + remainder), where remainder is
// what the rounding of rstd has dropped. normalized() leaves the remainder out for 16-bit results,
// whose own rounding error is far larger.
template <class T>
struct NormStatistics<false, T> {
  using C = Compute<T>;
  C rstd, remainder;

  // Computes the statistics of the rows and, if these are sums (AddedRows), first the rows.
  template <int kCount, class Rows>
  static FUSEDOPS_INLINE void compute(
      const Rows& rows, const NormForward& args, NormStatistics (&result)[kCount]) {
    Wider<T> squares[kCount];
    sums_of_squares<T>(Unscaled<T>{}, rows, args.cols, squares);
    const SquaresRange<Wider<T>> range = squares_range<T>(args);
    for (int r = 0; r < kCount; ++r) {
      if (!range.holds(squares[r])) {
        squares[r] = exact_sum_of_squares(squares[r], rows.row[r], args.cols, range);
      }
      result[r] = from_moments(args, {squares[r]});
    }
  }

  static FUSEDOPS_INLINE NormStatistics from_moments(NormFormula norm, Moments<Wider<T>> moments) {
    const Wider<T> rstd = rstd_of(norm, moments.squares);
    const C high = C(rstd);
    return {high, high < kInfinity<C> ? C(rstd - high) : C(0)};
  }

  FUSEDOPS_INLINE void save(const NormForward& args, int64_t row) const {
    if (args.rstd != nullptr) static_cast<C*>(args.rstd)[row] = rstd;
  }
  FUSEDOPS_INLINE Tile<C> normalize(Tile<C> x) const {
    return normalized<false, T>(x, C(0), rstd, remainder);
  }
};

// --- forward ------------------------------------------------------------------------------------

// Computes norms of rows, several of them interleaved. `Rows` is PlainRows or AddedRows.
template <bool kCenters, class T, template <class, int> class Rows>
struct Norm {
  using C = Compute<T>;
  const NormForward& args;
  StoreMode mode;
  ColumnValues<T> weight, bias;  // bias is null if there is none
  void* scratch;

  // Normalizes and writes row 0 by `statistics`, which it does not compute or save.
  void write_one(const NormStatistics<kCenters, T>& statistics) const {
    const NormStatistics<kCenters, T> stats[] = {statistics};
    write(/*first=*/0, Rows<T, 1>(args, /*first=*/0, scratch, mode.streams), stats);
  }

  void run(RowRange range) const {
    int64_t row = range.begin;
    if (interleaved_rows(args) >= kInterleavedRows) row = steps<kInterleavedRows>(row, range.end);
    row = steps<2>(row, range.end);
    steps<1>(row, range.end);
  }

 private:
  using Statistics = NormStatistics<kCenters, T>;

  // Computes as many steps of kCount rows as there are. Returns the first row that is left.
  template <int kCount>
  FUSEDOPS_INLINE int64_t steps(int64_t row, int64_t end) const {
    for (; row + kCount <= end; row += kCount) step<kCount>(row);
    return row;
  }

  template <int kCount>
  FUSEDOPS_INLINE void step(int64_t first) const {
    const Rows<T, kCount> rows(args, first, scratch, mode.streams);
    Statistics stats[kCount];
    Statistics::compute(rows, args, stats);
    for (int r = 0; r < kCount; ++r) stats[r].save(args, first + r);
    write(first, rows, stats);
  }

  template <int kCount>
  FUSEDOPS_INLINE void write(
      int64_t first, const Rows<T, kCount>& rows, const Statistics (&stats)[kCount]) const {
    if constexpr (kCenters) {  // norms without a mean have no bias
      if (args.bias.data != nullptr) return write_biased<true>(first, rows, stats);
    }
    write_biased<false>(first, rows, stats);
  }

  template <bool kBias, int kCount>
  FUSEDOPS_INLINE void write_biased(
      int64_t first, const Rows<T, kCount>& rows, const Statistics (&stats)[kCount]) const {
    if constexpr (!kCenters && sizeof(T) == 2) {
      if (args.rounds_normalized) return write_rows<kBias, /*kRounds=*/true>(first, rows, stats);
    }
    write_rows<kBias, /*kRounds=*/false>(first, rows, stats);
  }

  // Normalizes and writes kCount rows. Pointers are copied to locals, because members would be read
  // again after each store. A tile of every row is read before any is written: if rows are whole
  // pages apart, a load would wait for the preceding store, whose address has the same low bits,
  // which cost 20 % of the time at 4096 x 1024 floats.
  template <bool kBias, bool kRounds, int kCount>
  FUSEDOPS_INLINE void write_rows(
      int64_t first, Rows<T, kCount> rows, const Statistics (&statistics)[kCount]) const {
    const int64_t ahead = prefetch_distance<T>(args.output.spacing, args.cols, kCount);
    T* to[kCount];
    Statistics stats[kCount];
    for (int r = 0; r < kCount; ++r) {
      to[r] = start_of<T>(args.output, first + r);
      stats[r] = statistics[r];
    }
    for_columns<T>(
        args.cols, [=, mode = mode, w = weight, b = bias](int64_t col, auto part) FUSEDOPS_LAMBDA {
          rows.prefetch(col);
          const Tile<C> factor = w.at(col, part);
          const Tile<C> added = kBias ? b.at(col, part) : Broadcast(C(0));
          Tile<C> result[kCount];
          for_each_of<T, kCount>([&](auto r) FUSEDOPS_LAMBDA {
            const Tile<C> x = load(rows.row[r] + col, part);
            rows.copy(r, col, part, x, mode);
            result[r] = stats[r].normalize(x);
            if constexpr (kRounds) result[r] = rounded<T>(result[r]);
            result[r] = kBias ? MulAdd(result[r], factor, added) : result[r] * factor;
          });
          mode.store_rows(to, col, part, result, ahead);
        });
  }
};

template <bool kCenters, class T>
FUSEDOPS_INLINE void norm_rows(
    const NormForward& args, RowRange range, void* memory, StoreMode mode) {
  using C = Compute<T>;
  C* scratch = static_cast<C*>(memory);
  const int64_t width = padded_cols(args.cols);
  const ColumnValues<T> weight = weight_values<T>(args, scratch);
  const ColumnValues<T> bias = bias_values<T>(args, scratch + width);
  scratch += 2 * width;
  if (args.residual.data != nullptr) {
    return Norm<kCenters, T, AddedRows>{args, mode, weight, bias, scratch}.run(range);
  }
  Norm<kCenters, T, PlainRows>{args, mode, weight, bias, scratch}.run(range);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
