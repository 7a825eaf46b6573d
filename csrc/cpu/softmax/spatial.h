// Computes spatial softmax and log_softmax on the CPU. In this file, "rows" and "columns" are those
// of the matrix [dim_size, inner] that each outer index has: a row is contiguous, and each column
// is one softmax. A vector holds several columns, one in each lane, and nothing moves between
// lanes.
//
// The results of a column have the same bits as if rows.h had computed it as a row, whichever
// columns are beside it. Its chunks are the same. For each lane of an accumulator in rows.h there
// is an accumulator here: rows are added to accumulators in the order of fold_columns(), and
// accumulators are added up in the tree of sum_of().
//
// Forward: columns are computed in groups, whose accumulators stay in the L1 cache, and whose input
// stays in L2 for a chunk of rows. One pass computes the maximum and one the sum; a last pass over
// all columns of a segment writes the results. Each element costs two exps, the input is read from
// memory once if the segment fits in the cache, and each chunk of a column saves a few numbers
// only.
#pragma once

#include "cpu/softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// for_tiles() takes this many rows at once. Their accumulators are consecutive.
template <class T>
constexpr int kRowsAtOnce = kTile<T> < 16 ? kTile<T> : 16;

// --- accumulators -------------------------------------------------------------------------------

// A column has an accumulator for each lane of the two accumulator tiles of fold_columns().
template <class T>
constexpr int64_t kAccumulators = 2 * kTile<T>;

// Returns the number of the accumulator to which fold_columns() would add element `row` of a row of
// `rows` elements. A partial tile at the end is added to the even accumulator tile, the first one.
template <class T>
FUSEDOPS_INLINE int64_t accumulator_of(int64_t row, int64_t rows) {
  return row / kTile<T> == rows / kTile<T> ? row % kTile<T> : row % kAccumulators<T>;
}

// Returns how many of a column's accumulators hold any of its `rows` rows. These are the first
// ones.
template <class T>
FUSEDOPS_INLINE int64_t accumulators_used(int64_t rows) {
  if (rows >= kAccumulators<T>) return kAccumulators<T>;
  return rows < kTile<T> ? rows : kTile<T>;
}

// sum_of() first adds lanes that are half a vector of floats, a vector and a tile apart. This
// leaves one vector of doubles, whose lanes it adds up last. In this file, the accumulators that
// stand for two neighbouring lanes of that vector are kLaneAccumulators apart, and those for all of
// its lanes span kSummedAccumulators.
template <class T>
constexpr int64_t kLaneAccumulators = column_of<T>(0, 1);
template <class T>
constexpr int64_t kSummedAccumulators = kLanes<double> * kLaneAccumulators<T>;

// Returns how many accumulators are added up: four, or a multiple of kSummedAccumulators. Those
// that are not used are 0.
template <class T>
FUSEDOPS_INLINE int64_t accumulators_read(int64_t rows) {
  if (rows <= 4) return 4;
  return ceil_div(accumulators_used<T>(rows), kSummedAccumulators<T>) * kSummedAccumulators<T>;
}

// Returns how many columns have accumulators that fit into kAccumulatorBytes, for chunks of at most
// `rows` rows.
template <class T>
FUSEDOPS_INLINE int64_t group_cols(int64_t rows) {
  constexpr int64_t kLeast = InnerSegments::kMinCols, kBytes = kLeast * sizeof(Compute<T>);
  static_assert(kAccumulators<T> * kBytes <= kAccumulatorBytes);
  return kAccumulatorBytes / (accumulators_read<T>(rows) * kBytes) * kLeast;
}

// Points to the accumulators of one tile of columns, which are `stride` tiles apart in memory.
template <class C>
struct TileAccumulators {
  const Tile<C>* first;
  int64_t stride, count;  // `count` is accumulators_read()
};

// Converts some lanes of an accumulator to double: those in vector `index` of a WideTile.
FUSEDOPS_INLINE Vec<double> promoted_vector(const Tile<float>& accumulator, int index) {
  return PromoteFloats(reinterpret_cast<const float*>(&accumulator) + index * kLanes<double>);
}
FUSEDOPS_INLINE Vec<double> promoted_vector(const Tile<double>& accumulator, int index) {
  return accumulator.v[index];
}

// Adds up accumulators, each of which stands for a lane of rows.h, in the order in which
// promoted_sum() and sum_of() add those lanes. These two functions arrive at one vector of doubles,
// and sums[i] becomes what lane i of that vector holds: accumulator a = begin + i *
// kLaneAccumulators, plus the accumulators of the lanes that the two functions add to that lane.
// kFirst and kRest list how far these are from `a`, that of the last addition first. Without them,
// sums[i] is accumulator `a` alone. `index` chooses the columns, as in promoted_vector().
template <class T>
FUSEDOPS_INLINE void add_up(
    TileAccumulators<Compute<T>> accumulators, int64_t begin, int index,
    Vec<double> (&sums)[kLanes<double>]) {
  for (int i = 0; i < kLanes<double>; ++i) {
    const int64_t accumulator = begin + i * kLaneAccumulators<T>;
    sums[i] = promoted_vector(accumulators.first[accumulator * accumulators.stride], index);
  }
}
template <class T, int64_t kFirst, int64_t... kRest>
FUSEDOPS_INLINE void add_up(
    TileAccumulators<Compute<T>> accumulators, int64_t begin, int index,
    Vec<double> (&sums)[kLanes<double>]) {
  add_up<T, kRest...>(accumulators, begin, index, sums);
  if (begin + kFirst >= accumulators.count) return;
  Vec<double> more[kLanes<double>];
  add_up<T, kRest...>(accumulators, begin + kFirst, index, more);
  for (int i = 0; i < kLanes<double>; ++i) sums[i] += more[i];
}

// Returns the sum of the first four accumulators. It is used if all others are 0.
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Vec<double> sum_of_four(TileAccumulators<C> accumulators, int index) {
  const auto at = [=](int64_t accumulator) {
    return promoted_vector(accumulators.first[accumulator * accumulators.stride], index);
  };
  constexpr int kNext = kEvenOdd<T> ? 1 : 2;
  return (at(0) + at(kNext)) + (at(3 - kNext) + at(3));
}

// Adds up all `count` accumulators, in the tree of sum_of().
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Vec<double> sum_of_all(TileAccumulators<C> accumulators, int index) {
  Vec<double> sums[kLanes<double>];
  constexpr int64_t kTileApart = kTile<T>, kVectorApart = column_of<T>(1, 0);
  if constexpr (sizeof(C) == sizeof(double)) {
    add_up<T, kTileApart, kVectorApart>(accumulators, 0, index, sums);
  } else {
    constexpr int64_t kHalfApart = column_of<T>(0, kLanes<double>);
    add_up<T, kTileApart, kVectorApart, kHalfApart>(accumulators, 0, index, sums);
  }
  for (int width = kLanes<double> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

template <class T, class C = Compute<T>>
FUSEDOPS_NOINLINE WideTile<C> sum_of_accumulators(TileAccumulators<C> accumulators) {
  WideTile<C> result;
  for (int index = 0; index < kWideVectors<C>; ++index) {
    vector_of(result, index) = accumulators.count == 4 ? sum_of_four<T>(accumulators, index)
                                                       : sum_of_all<T>(accumulators, index);
  }
  return result;
}

// Calls body(row, count, col, part) for each tile of columns of each group of rows. A group is the
// `count` rows from `row` on: kRowsAtOnce, or fewer in the last group.
template <class T, class Body>
FUSEDOPS_INLINE void for_tiles(RowRange rows, int64_t cols, Body body) {
  for (int64_t row = rows.begin; row < rows.end; row += kRowsAtOnce<T>) {
    const int64_t count = rows.end - row < kRowsAtOnce<T> ? rows.end - row : kRowsAtOnce<T>;
    for_columns<T>(
        cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA { body(row, count, col, part); });
  }
}

// Describes a group of a segment's columns, and the accumulators of its tiles.
template <class T>
struct ColumnGroup {
  using C = Compute<T>;
  Tile<C>* accumulators;
  RowRange cols;
  bool is_last;  // whether it is the last group of the segment

  FUSEDOPS_INLINE int64_t size() const { return cols.end - cols.begin; }
  FUSEDOPS_INLINE int64_t tiles() const { return ceil_div(size(), kTile<T>); }

  // Adds a chunk of rows to the accumulators, which it also initializes. of_tile(col, part) returns
  // a function from a row to its tile.
  template <class Source>
  FUSEDOPS_INLINE void add(RowRange rows, Source of_tile) const {
    const int64_t all = rows.end - rows.begin, stride = tiles();
    for_tiles<T>(
        rows, size(), [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
          const auto value = of_tile(col, part);
          const int64_t accumulator = accumulator_of<T>(row - rows.begin, all);
          Tile<C>* tile = accumulators + accumulator * stride + col / kTile<T>;
          if (accumulator == row - rows.begin) {  // these rows are the first in their accumulators
            for (int64_t r = row; r < row + count; ++r, tile += stride)
              *tile = Broadcast(C(0)) + value(r);
          } else {
            for (int64_t r = row; r < row + count; ++r, tile += stride) *tile = *tile + value(r);
          }
        });
  }

  // Adds up the accumulators of a chunk of `rows` rows, for the tile at column `col` of the group.
  // Those that add() left out are first set to 0.
  FUSEDOPS_INLINE WideTile<C> sum(int64_t col, int64_t rows) const {
    Tile<C>* const first = accumulators + col / kTile<T>;
    const int64_t stride = tiles(), count = accumulators_read<T>(rows);
    for (int64_t i = accumulators_used<T>(rows); i < count; ++i)
      first[i * stride] = Broadcast(C(0));
    return sum_of_accumulators<T>(TileAccumulators<C>{first, stride, count});
  }

  // Prefetches the columns of the next group that correspond to those at `at`.
  FUSEDOPS_INLINE void prefetch(const T* at) const {
    if (!is_last) prefetch_tile<Cache::kL2>(at + size());
  }
};

// Calls body(group) for each group of a segment's columns.
template <class T, class Body>
FUSEDOPS_INLINE void for_column_groups(
    Tile<Compute<T>>* accumulators, int64_t rows, int64_t cols, Body body) {
  const int64_t each = group_cols<T>(rows);
  for (int64_t begin = 0; begin < cols; begin += each) {
    const bool is_last = cols - begin <= each;
    body(ColumnGroup<T>{accumulators, {begin, is_last ? cols : begin + each}, is_last});
  }
}

// Describes some columns of one outer index.
template <class T>
struct Segment {
  T* data;
  int64_t dim_stride;

  template <class Slices>
  Segment(const Slices& slices, int64_t outer, RowRange cols)
      : data(static_cast<T*>(slices.data) + outer * slices.outer_stride + cols.begin),
        dim_stride(slices.dim_stride) {}

  FUSEDOPS_INLINE T* row(int64_t index) const { return data + index * dim_stride; }
};

// Calls body(outer, columns) for the segments of all outer indices whose numbers are in `range`. A
// counter replaces a division per segment, because there may be many small segments.
template <class Body>
FUSEDOPS_INLINE void for_segments(const InnerSegments& segments, RowRange range, Body body) {
  int64_t outer = range.begin / segments.count, segment = range.begin % segments.count;
  for (int64_t i = range.begin; i < range.end; ++i) {
    body(outer, segments[segment]);
    if (++segment == segments.count) ++outer, segment = 0;
  }
}

// --- forward ------------------------------------------------------------------------------------

// Holds the maximum and the sum of a chunk of rows, for a tile of columns.
template <class C>
struct ColumnMaxSum {
  Tile<C> max;
  WideTile<C> sum;  // the sum of exp(input - max), scaled (exp.h) except for a logarithm
};

// Holds, for a tile of columns, what turns exp(input - shift) into probabilities, as Divisor does
// for a row. For floats the exponential, which is scaled (exp.h), is multiplied by high + low, the
// reciprocal of the sum in two parts; for doubles it is multiplied by high and divided by low. An
// exponential between 0 and least would lose bits in these operations, and is divided in steps that
// begin with `scale`. For a logarithm, high is subtracted from input - shift.
template <class C>
struct ColumnFactors {
  Tile<C> shift, high, low, least;
  WideTile<C> scale;
};

template <class C>
union ColumnPartials {
  ColumnMaxSum<C> sums;
  ColumnFactors<C> factors;
};
static_assert(sizeof(ColumnPartials<double>) / kTile<double> <= kColumnPartialBytes);
static_assert(sizeof(ColumnPartials<float>) / kTile<float> <= kColumnPartialBytes);

// Points into the scratch memory of one segment, which has the accumulators of a group and then the
// partials of every chunk and tile.
template <class T>
struct SpatialScratch {
  using C = Compute<T>;
  Tile<C>* accumulators;
  ColumnPartials<C>* partials;
  int64_t tiles;  // the tiles of a chunk of rows

  SpatialScratch(void* memory, int64_t cols)
      : accumulators(static_cast<Tile<C>*>(memory)),
        partials(
            reinterpret_cast<ColumnPartials<C>*>(static_cast<char*>(memory) + kAccumulatorBytes)),
        tiles(ceil_div(cols, kTile<T>)) {}

  // Returns the partial of the chunk that contains row `row`, for the tile that contains `col`.
  FUSEDOPS_INLINE ColumnPartials<C>& partial(int64_t row, int64_t col) const {
    return partials[row / kSoftmaxChunk<C> * tiles + col / kTile<T>];
  }
};

template <class C>
FUSEDOPS_INLINE Tile<C> shift_of(Tile<C> max) {
  for (auto& vec : max.v) vec = vec == -kInfinity<C> ? Vec<C>{} : vec;
  return max;
}

// Computes the maximum of a chunk, for a group of columns.
template <class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void reduce_max(
    Segment<const In> input, RowRange rows, ColumnGroup<In> group, SpatialScratch<In> scratch) {
  const In* const from = input.data + group.cols.begin;
  for_tiles<In>(
      rows, group.size(), [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        Tile<C>& so_far = scratch.partial(rows.begin, group.cols.begin + col).sums.max;
        Tile<C> max = row == rows.begin ? Broadcast(-kInfinity<C>) : so_far;
        for (int64_t r = row; r < row + count; ++r) {
          const In* at = from + r * input.dim_stride + col;
          group.prefetch(at);
          max = Max(max, load(at, part));  // ignores a NaN; exp(NaN - max) will be NaN
        }
        so_far = max;
      });
}

// Computes the sum of the exponentials of a chunk, for a group of columns.
template <bool Log, class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void sum_chunk(
    Segment<const In> input, RowRange rows, ColumnGroup<In> group, SpatialScratch<In> scratch) {
  const auto sums_of = [&](int64_t col) -> ColumnMaxSum<C>& {
    return scratch.partial(rows.begin, group.cols.begin + col).sums;
  };
  const In* const from = input.data + group.cols.begin;
  group.add(rows, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return [=, shift = shift_of(sums_of(col).max)](int64_t row) FUSEDOPS_LAMBDA {
      Vec<C> unused = {};
      return softmax_exp<Log, Out>(load(from + row * input.dim_stride + col, part) - shift, unused);
    };
  });
  for (int64_t col = 0; col < group.size(); col += kTile<In>) {
    sums_of(col).sum = group.sum(col, rows.end - rows.begin);
  }
}

// Computes exp_difference() for each column of a tile.
template <class C>
WideTile<C> exp_difference(Tile<C> a, Tile<C> b) {
  WideTile<C> result;
  for (int half = 0; half < 2; ++half) {
    C from[kLanes<C>], to[kLanes<C>];
    double each[kLanes<C>];
    Store(from, a.v[half]);
    Store(to, b.v[half]);
    for (int i = 0; i < kLanes<C>; ++i) each[i] = exp_difference(from[i], to[i]);
    result.v[half] = Load<Wide<C>>(each);
  }
  return result;
}

// Returns for each column of a tile what Divisor holds for a row of float or 16-bit results.
// `scale` is factor / sum, and `inverse` is sum / factor.
template <class Out>
FUSEDOPS_INLINE ColumnFactors<float> scale_factors(
    Tile<float> shift, WideTile<float> scale, WideTile<float> inverse) {
  const auto zero = promoted(Broadcast(0.0f));
  scale = each(scale, zero, [](auto all, auto none) {
    return all <= 0x1p-150 / kExpScale<float> ? none : all;
  });
  const auto unless_denormal = [](auto size, auto value) {
    return size < kLeastFloat ? Vec<double>{} : value;
  };
  const Tile<float> high = demoted(each(scale, scale, unless_denormal));
  const auto rest = each(scale, promoted(high), [](auto all, auto high) {
    return kTwoParts<Out> ? all - high : Vec<double>{};
  });
  // A result is the sum of an exponential's products with `high` and `rest`. `last_term` gives the
  // smaller product: it is the magnitude of `rest` or, if `rest` is 0, the scale.
  const auto last_term = each(scale, rest, [](auto all, auto rest) {
    return rest == 0 ? all : rest < 0 ? -rest : rest;
  });
  // Exponentials below `exact` give a denormal product (with FMA, a denormal result) and are
  // divided in steps. If `last_term` itself is denormal, all exponentials are divided in steps.
  const auto exact = each(inverse, last_term, [](auto inverse, auto term) {
    return kLeastFloat * 1.0001 * (kFusesProducts ? inverse : 1.0 / term);
  });
  const auto some = each(exact, last_term, [](auto exact, auto term) {
    return term < kLeastFloat ? Set(kInfinity<double>) : exact;
  });
  const auto least =
      each(scale, some, [](auto all, auto some) { return all == 0 ? Vec<double>{} : some; });
  return {shift, high, demoted(each(last_term, rest, unless_denormal)), demoted(least), scale};
}

// Returns for each column of a tile what Divisor<double> holds for a row.
FUSEDOPS_INLINE ColumnFactors<double> scale_factors(
    Tile<double> shift, Tile<double> factor, Tile<double> sum) {
  ColumnFactors<double> result{shift, /*high=*/factor, /*low=*/sum, /*least=*/{}, /*scale=*/{}};
  for (int half = 0; half < 2; ++half) {
    for (int lane = 0; lane < kLanes<double>; ++lane) {
      const Divisor<double> by(factor.v[half][lane], sum.v[half][lane]);
      result.least.v[half][lane] = by.least;
    }
  }
  return result;
}

// Returns the factors of a chunk. `rescale` is exp(chunk_max - the maximum of all chunks), by which
// the chunk's exponentials are multiplied for the sum of all chunks. The factors of a logarithm are
// the maximum of all chunks and the logarithm of their sum. The factors of double results are
// `rescale` and that sum; the factors of other results are made from the quotient of the two.
template <bool Log, class Out, class C>
FUSEDOPS_INLINE ColumnFactors<C> column_factors(
    Tile<C> chunk_max, WideTile<C> rescale, const ColumnMaxSum<C>& whole) {
  const auto quotient = [](auto a, auto b) { return a / b; };
  if constexpr (Log) {
    const auto log = [](Vec<double> sum, Vec<double>) { return log_of_sum<Out>(sum); };
    return {/*shift=*/whole.max, /*high=*/demoted(each(whole.sum, whole.sum, log)), /*low=*/{},
            /*least=*/{}, /*scale=*/{}};
  } else if constexpr (sizeof(Out) == sizeof(double)) {
    return scale_factors(shift_of(chunk_max), demoted(rescale), demoted(whole.sum));
  } else {
    const auto scale = each(rescale, whole.sum, quotient);
    return scale_factors<Out>(shift_of(chunk_max), scale, each(whole.sum, rescale, quotient));
  }
}

// Returns the factors if there is a single chunk. `rescale` is 1 then, so nothing is divided by it.
template <bool Log, class Out, class C>
FUSEDOPS_INLINE ColumnFactors<C> column_factors(const ColumnMaxSum<C>& whole) {
  if constexpr (Log || sizeof(Out) == sizeof(double)) {
    return column_factors<Log, Out>(whole.max, promoted(Broadcast(C(1))), whole);
  } else {
    const auto scale = each(whole.sum, whole.sum, [](auto sum, auto) { return 1.0 / sum; });
    return scale_factors<Out>(shift_of(whole.max), scale, whole.sum);
  }
}

// Replaces the maximum and sum of each chunk by its factors, for a tile of columns. The maxima and
// sums of all chunks are combined as combine() does it for a row.
template <bool Log, class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void compute_factors(SpatialScratch<In> scratch, int64_t rows, int64_t col) {
  constexpr int64_t kChunk = kSoftmaxChunk<C>;
  const auto chunk = [&](int64_t row) -> ColumnPartials<C>& { return scratch.partial(row, col); };
  const auto ones = promoted(Broadcast(C(1)));
  const auto to_whole = [&](int64_t row, Tile<C> max) {
    return rows <= kChunk ? ones : exp_difference(chunk(row).sums.max, max);
  };
  ColumnMaxSum<C> whole{Broadcast(-kInfinity<C>), {}};
  for (int64_t row = 0; row < rows; row += kChunk) {
    whole.max = Max(whole.max, chunk(row).sums.max);
  }
  for (int64_t row = 0; row < rows; row += kChunk) {
    const auto products =
        each(chunk(row).sums.sum, to_whole(row, whole.max), [](auto a, auto b) { return a * b; });
    whole.sum = whole.sum + products;
  }
  for (int64_t row = 0; row < rows; row += kChunk) {
    const Tile<C> max = chunk(row).sums.max;
    chunk(row).factors = column_factors<Log, Out>(max, to_whole(row, whole.max), whole);
  }
}

template <class Out, class C>
FUSEDOPS_NOINLINE Tile<C> divided_in_steps(Tile<C> e, const ColumnFactors<C>& factors) {
  for (int half = 0; half < 2; ++half) {
    if constexpr (sizeof(C) == sizeof(double)) {
      e.v[half] = InSteps<Out>{factors.high.v[half], factors.low.v[half]}(e.v[half]);
    } else {
      Wide<C> scale = factors.scale.v[half];
      for (auto& vec : scale.v) vec = vec * double(kExpScale<C>);
      e.v[half] = InSteps<Out>{scale}(e.v[half]);
    }
  }
  return e;
}

// Turns scaled exponentials into probabilities by the factors of their columns, in steps if any of
// the tile's exponentials requires it.
template <class Out, class C>
FUSEDOPS_INLINE Tile<C> divided_as_needed(Tile<C> e, const ColumnFactors<C>& factors) {
  const bool needs_steps = any_between(e, factors.least);
  if (__builtin_expect(needs_steps, false)) return divided_in_steps<Out>(e, factors);
  return divided<Out>(e, factors);
}

// Returns the softmax of a tile or, with Log, its logarithm.
template <bool Log, class Out, class C>
FUSEDOPS_INLINE Tile<C> normalized(Tile<C> x, const ColumnFactors<C>& factors) {
  const Tile<C> shifted = x - factors.shift;
  if constexpr (Log) return shifted - factors.high;
  return divided_as_needed<Out>(scaled_exp<Out>(shifted), factors);
}

template <bool Log, class In, class Out, class C = Compute<In>>
FUSEDOPS_INLINE void softmax_segment(
    Segment<const In> input, Segment<Out> output, int64_t rows, int64_t cols,
    SpatialScratch<In> scratch, StoreMode mode) {
  constexpr int64_t kChunk = kSoftmaxChunk<C>;
  static_assert(kChunk % kRowsAtOnce<In> == 0);
  const int64_t longest = rows < kChunk ? rows : kChunk;
  for_column_groups<In>(scratch.accumulators, longest, cols, [&](ColumnGroup<In> group) {
    for_parts(RowRange{0, rows}, kChunk, [&](RowRange chunk) {
      reduce_max(input, chunk, group, scratch);
      sum_chunk<Log, Out>(input, chunk, group, scratch);
    });
  });
  for (int64_t col = 0; col < cols; col += kTile<In>) {
    compute_factors<Log, Out>(scratch, rows, col);
  }
  for_tiles<In>(
      RowRange{0, rows}, cols,
      [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const ColumnFactors<C> factors = scratch.partial(row, col).factors;
        for (int64_t r = row; r < row + count; ++r) {
          const Tile<C> result = normalized<Log, Out>(load(input.row(r) + col, part), factors);
          mode.store(output.row(r) + col, part, in_order<In, Out>(result));
        }
      });
}

template <bool Log, class In, class Out>
FUSEDOPS_INLINE void softmax_segments(
    const SpatialSoftmaxForward& args, RowRange range, void* memory, StoreMode mode) {
  for_segments(inner_segments(args), range, [&](int64_t outer, RowRange at) FUSEDOPS_LAMBDA {
    const int64_t cols = at.end - at.begin;
    softmax_segment<Log, In, Out>(
        {args.input, outer, at}, {args.output, outer, at}, args.dim_size, cols,
        SpatialScratch<In>(memory, cols), mode);
  });
}

// --- backward -----------------------------------------------------------------------------------

// Returns after how many rows sums are converted to double: all rows of a short column, as in
// rows.h, or a chunk of a long one, as in long_rows.h.
template <class C>
FUSEDOPS_INLINE int64_t gradient_chunk(int64_t rows) {
  return is_long_row(rows) ? kSoftmaxChunk<C> : rows;
}

// Holds the sums of grad_output * output, or of grad_output for a logarithm, for a tile of columns:
// as doubles while they are added up, and then rounded.
template <class C>
union ColumnGradSums {
  WideTile<C> wide;
  Tile<C> total;
};
static_assert(sizeof(ColumnGradSums<float>) / kTile<float> <= kColumnPartialBytes);

// Computes the sums of a group of columns.
template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_NOINLINE void sum_grad_group(
    Segment<const Out> grad, Segment<const Out> output, int64_t rows, ColumnGroup<Out> group,
    ColumnGradSums<C>* sums) {
  const Out* const grads = grad.data + group.cols.begin;
  const Out* const outputs = output.data + group.cols.begin;
  const auto terms = [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return [=](int64_t row) FUSEDOPS_LAMBDA {
      const Out* const g = grads + row * grad.dim_stride + col;
      group.prefetch(g);
      if constexpr (Log) {
        return load(g, part);
      } else {
        const Out* const y = outputs + row * output.dim_stride + col;
        group.prefetch(y);
        return load(g, part) * load(y, part);
      }
    };
  };
  for (int64_t i = 0; i < group.tiles(); ++i) sums[i].wide = {};
  for_parts(RowRange{0, rows}, gradient_chunk<C>(rows), [&](RowRange chunk) {
    group.add(chunk, terms);
    for (int64_t i = 0; i < group.tiles(); ++i) {
      const WideTile<C> more = group.sum(i * kTile<Out>, chunk.end - chunk.begin);
      sums[i].wide = sums[i].wide + more;
    }
  });
  for (int64_t i = 0; i < group.tiles(); ++i) sums[i].total = demoted(sums[i].wide);
}

template <bool Log, class In, class Out, class C = Compute<Out>>
FUSEDOPS_INLINE void softmax_backward_segment(
    Segment<const Out> grad, Segment<const Out> output, Segment<In> result, int64_t rows,
    int64_t cols, void* memory, StoreMode mode) {
  auto* accumulators = static_cast<Tile<C>*>(memory);
  auto* sums = reinterpret_cast<ColumnGradSums<C>*>(static_cast<char*>(memory) + kAccumulatorBytes);
  for_column_groups<Out>(accumulators, gradient_chunk<C>(rows), cols, [&](ColumnGroup<Out> group) {
    sum_grad_group<Log>(grad, output, rows, group, sums + group.cols.begin / kTile<Out>);
  });
  for_tiles<Out>(
      RowRange{0, rows}, cols,
      [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> sum = sums[col / kTile<Out>].total;
        for (int64_t r = row; r < row + count; ++r) {
          const Tile<C> g = load(grad.row(r) + col, part), y = load(output.row(r) + col, part);
          mode.store(
              result.row(r) + col, part, in_order<Out, In>(softmax_gradient<Log, In>(g, y, sum)));
        }
      });
}

template <bool Log, class In, class Out>
FUSEDOPS_INLINE void softmax_backward_segments(
    const SpatialSoftmaxBackward& args, RowRange range, void* memory, StoreMode mode) {
  for_segments(inner_segments(args), range, [&](int64_t outer, RowRange at) FUSEDOPS_LAMBDA {
    softmax_backward_segment<Log, In, Out>(
        {args.grad_output, outer, at}, {args.output, outer, at}, {args.grad_input, outer, at},
        args.dim_size, at.end - at.begin, memory, mode);
  });
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
