// softmax and log_softmax over the rows of planes on the CPU: a lane of a vector for each column of
// a plane, nothing moves between lanes.
//
// A lane gets the bits that its values would get as a row (softmax.h), so it does not matter how
// many lanes lie beside it. Rows are taken in the same chunks. What is a lane of an accumulator
// there is a place here: rows are added to places in the order of fold_columns(), and places are
// added up in the tree of sum_of().
//
// Forward: lanes are taken in groups, whose places stay in the L1 cache and a chunk of whose rows
// in L2. One pass finds the maximum, one the sum; one over all lanes of a strip writes. So a lane
// costs two exps for each row, its input is read from memory once where the strip fits in the
// cache, and nothing is kept of it but four numbers for each chunk.
#pragma once

#include "fusedops/cpu/softmax.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// Rows taken at once.
constexpr int kPlaneRows = 16;

template <class C>
struct WideTile {
  Wide<C> v[2];
};

template <class C>
FUSEDOPS_INLINE WideTile<C> widened(Tile<C> tile) {
  return {{widened(tile.v[0]), widened(tile.v[1])}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> narrowed(WideTile<C> wide) {
  return {{narrowed(wide.v[0]), narrowed(wide.v[1])}};
}

template <class C, class Body>
FUSEDOPS_INLINE WideTile<C> each(WideTile<C> a, WideTile<C> b, Body body) {
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < int(sizeof(a.v[half]) / kVectorBytes); ++i) {
      a.v[half].v[i] = body(a.v[half].v[i], b.v[half].v[i]);
    }
  }
  return a;
}
template <class C>
FUSEDOPS_INLINE WideTile<C> operator+(WideTile<C> a, WideTile<C> b) {
  return each(a, b, Add{});
}

// --- places -------------------------------------------------------------------------------------

constexpr int64_t kGroupLanes = PlaneStrips::kMinLanes;
template <class T>
constexpr int64_t kGroupTiles = kGroupLanes / kTile<T>;

// fold_columns() has two tiles of sums.
template <class T>
constexpr int64_t kPlaces = 2 * kTile<T>;

// What fold_columns() adds element `row` of a row of `rows` to: the tile at the end that is not
// whole goes to the even sums.
template <class T>
FUSEDOPS_INLINE int64_t place_of(int64_t row, int64_t rows) {
  return row / kTile<T> == rows / kTile<T> ? row % kTile<T> : row % kPlaces<T>;
}

// The first of them, that something is added to.
template <class T>
FUSEDOPS_INLINE int64_t places_used(int64_t rows) {
  if (rows >= kPlaces<T>) return kPlaces<T>;
  return rows < kTile<T> ? rows : kTile<T>;
}

// How far apart lie the places whose sums sum_of() adds in step `step` of so many, the last one
// first: lanes of a vector of doubles, even and odd tiles, halves of a tile and, of floats, halves
// of a vector.
template <class C>
constexpr int kLaneSteps = __builtin_ctz(kLanes<double>);
template <class T>
constexpr int kPlaceSteps = kLaneSteps<Compute<T>> + (sizeof(T) == sizeof(double) ? 2 : 3);
template <class T>
constexpr int64_t place_distance(int step) {
  constexpr int kLane = kLaneSteps<Compute<T>>;
  return step < kLane     ? column_of<T>(0, 1 << step)
      : step == kLane     ? kTile<T>
      : step == kLane + 1 ? column_of<T>(1, 0)
                          : column_of<T>(0, kLanes<double>);
}

// Of the places `place` and on, as far as they are used, that are added up in steps kStep and
// after.
template <class T, int kStep = 0, class C = Compute<T>>
WideTile<C> sum_of_places(const Tile<C>* places, int64_t place, int64_t used) {
  if constexpr (kStep == kPlaceSteps<T>) {
    return widened(places[place * kGroupTiles<T>]);
  } else {
    constexpr int64_t kDistance = place_distance<T>(kStep);
    const WideTile<C> sum = sum_of_places<T, kStep + 1>(places, place, used);
    if (place + kDistance >= used) return sum;
    return sum + sum_of_places<T, kStep + 1>(places, place + kDistance, used);
  }
}

// body(row, count, col, part) over all tiles, kPlaneRows rows of one at a time.
template <class T, class Body>
FUSEDOPS_INLINE void for_tiles(RowRange rows, int64_t cols, Body body) {
  for (int64_t row = rows.begin; row < rows.end; row += kPlaneRows) {
    const int64_t count = rows.end - row < kPlaneRows ? rows.end - row : kPlaneRows;
    for_columns<T>(
        cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA { body(row, count, col, part); });
  }
}

// Adds the rows of a group to its places: of_tile(col, part) gives what gives the tile of a row.
template <class T, class Source, class C = Compute<T>>
FUSEDOPS_INLINE void fill_places(Tile<C>* places, RowRange rows, int64_t cols, Source of_tile) {
  const int64_t all = rows.end - rows.begin;
  for_tiles<T>(
      rows, cols, [&](int64_t first, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const auto value = of_tile(col, part);
        Tile<C>* const own = places + col / kTile<T>;
        for (int64_t row = first; row < first + count; ++row) {
          const int64_t at = row - rows.begin, place = place_of<T>(at, all);
          Tile<C>& sum = own[place * kGroupTiles<T>];
          if (place == at) {
            sum = both(C(0)) + value(row);
          } else {
            sum = sum + value(row);
          }
        }
      });
}

// body(lanes) for each group of the lanes of a strip.
template <class Body>
FUSEDOPS_INLINE void for_groups(int64_t lanes, Body body) {
  for (int64_t begin = 0; begin < lanes; begin += kGroupLanes) {
    body(RowRange{begin, lanes - begin < kGroupLanes ? lanes : begin + kGroupLanes});
  }
}

// body(rows) for each chunk of some rows.
template <class Body>
FUSEDOPS_INLINE void for_row_chunks(int64_t rows, int64_t chunk, Body body) {
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    body(RowRange{begin, rows - begin < chunk ? rows : begin + chunk});
  }
}

// Some lanes of one plane.
template <class T>
struct Strip {
  T* data;
  int64_t row_stride;

  template <class Planes>
  Strip(const Planes& planes, int64_t plane, RowRange lanes)
      : data(static_cast<T*>(planes.data) + plane * planes.stride + lanes.begin),
        row_stride(planes.row_stride) {}

  FUSEDOPS_INLINE T* row(int64_t index) const { return data + index * row_stride; }
};

// --- forward ------------------------------------------------------------------------------------

// What a chunk of a tile of lanes comes to.
template <class C>
struct LaneSums {
  Tile<C> max;
  WideTile<C> sum;  // of exp(input - max)
};

// What writes its results: exp(input - shift) is multiplied by high + low or, where C is double, by
// high, and divided by low. Of a logarithm, high is subtracted.
template <class C>
struct LaneFactors {
  Tile<C> shift, high, low;
};

template <class C>
union LaneNotes {
  LaneSums<C> sums;
  LaneFactors<C> factors;
};
static_assert(sizeof(LaneNotes<double>) / kTile<double> <= kLaneNoteBytes);
static_assert(sizeof(LaneNotes<float>) / kTile<float> <= kLaneNoteBytes);
static_assert(kPlaces<float> * kGroupLanes * sizeof(float) <= kPlacesBytes);
static_assert(kPlaces<double> * kGroupLanes * sizeof(double) <= kPlacesBytes);

// Scratch memory of one strip: the places of a group, then the notes of every chunk and tile.
template <class T>
struct PlaneScratch {
  using C = Compute<T>;
  Tile<C>* places;
  LaneNotes<C>* notes;
  int64_t tiles;  // of a chunk

  PlaneScratch(void* memory, int64_t lanes)
      : places(static_cast<Tile<C>*>(memory)),
        notes(reinterpret_cast<LaneNotes<C>*>(static_cast<char*>(memory) + kPlacesBytes)),
        tiles((lanes + kTile<T> - 1) / kTile<T>) {}

  // Of the chunk that row `row` begins, or lies in.
  FUSEDOPS_INLINE LaneNotes<C>& note(int64_t row, int64_t lane) const {
    return notes[row / kSoftmaxChunk<C> * tiles + lane / kTile<T>];
  }
};

template <class C>
FUSEDOPS_INLINE Tile<C> shift_of(Tile<C> max) {
  for (auto& vec : max.v) vec = vec == -kInfinity<C> ? Vec<C>{} : vec;
  return max;
}

// The maximum of a chunk of a group. What lies beside it, in the next group, is on its way
// meanwhile.
template <class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void take_max(
    Strip<const In> input, RowRange rows, RowRange lanes, PlaneScratch<In> scratch) {
  const In* const from = input.data + lanes.begin;
  for_tiles<In>(
      rows, lanes.end - lanes.begin,
      [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        Tile<C>& so_far = scratch.note(rows.begin, lanes.begin + col).sums.max;
        Tile<C> max = row == rows.begin ? both(-kInfinity<C>) : so_far;
        for (int64_t r = row; r < row + count; ++r) {
          const In* at = from + r * input.row_stride + col;
          prefetch_tile<Cache::kL2>(at + kGroupLanes);
          max = larger(max, load(at, part));  // drops a NaN; exp(NaN - max) has it
        }
        so_far = max;
      });
}

template <class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void sum_chunk(
    Strip<const In> input, RowRange rows, RowRange lanes, PlaneScratch<In> scratch) {
  const In* const from = input.data + lanes.begin;
  const auto powers = [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<C> shift = shift_of(scratch.note(rows.begin, lanes.begin + col).sums.max);
    return [=](int64_t row) FUSEDOPS_LAMBDA {
      return exp_nonpositive<Out>(load(from + row * input.row_stride + col, part) - shift);
    };
  };
  fill_places<In>(scratch.places, rows, lanes.end - lanes.begin, powers);
  const int64_t used = places_used<In>(rows.end - rows.begin);
  for (int64_t lane = lanes.begin; lane < lanes.end; lane += kTile<In>) {
    const Tile<C>* const own = scratch.places + (lane - lanes.begin) / kTile<In>;
    scratch.note(rows.begin, lane).sums.sum = sum_of_places<In>(own, 0, used);
  }
}

// exp_difference() of a tile of lanes.
template <class C>
WideTile<C> exp_difference(Tile<C> a, Tile<C> b) {
  WideTile<C> result;
  for (int half = 0; half < 2; ++half) {
    C from[kLanes<C>], to[kLanes<C>];
    double each[kLanes<C>];
    write(from, a.v[half]);
    write(to, b.v[half]);
    for (int i = 0; i < kLanes<C>; ++i) each[i] = exp_difference(from[i], to[i]);
    result.v[half] = read<Wide<C>>(each);
  }
  return result;
}

template <class C>
FUSEDOPS_INLINE WideTile<C> log_of(WideTile<C> sum) {
  return each(sum, sum, [](Vec<double> vec, Vec<double>) {
    for (int i = 0; i < kLanes<double>; ++i) vec[i] = __builtin_log(vec[i]);
    return vec;
  });
}

// `factor`: of a chunk, to the maximum of all. In the words of scaled().
template <bool Log, class Out, class C>
FUSEDOPS_INLINE LaneFactors<C> factors_of(
    Tile<C> chunk_max, WideTile<C> factor, const LaneSums<C>& whole) {
  if constexpr (Log) {
    return {whole.max, narrowed(log_of(whole.sum)), {}};
  } else if constexpr (sizeof(Out) == sizeof(double)) {
    return {shift_of(chunk_max), narrowed(factor), narrowed(whole.sum)};
  } else {
    const auto scale = each(factor, whole.sum, [](auto a, auto b) { return a / b; });
    const Tile<C> high = narrowed(scale);
    const auto low = each(scale, widened(high), [](auto a, auto b) { return a - b; });
    return {shift_of(chunk_max), high, narrowed(low)};
  }
}

// From the sums of the chunks of a tile of lanes their factors, as combine() does it.
template <bool Log, class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void make_factors(PlaneScratch<In> scratch, int64_t rows, int64_t lane) {
  constexpr int64_t kChunk = kSoftmaxChunk<C>;
  const auto chunk = [&](int64_t row) -> LaneNotes<C>& { return scratch.note(row, lane); };
  const auto ones = widened(both(C(1)));
  const auto to_whole = [&](int64_t row, Tile<C> max) {
    return rows <= kChunk ? ones : exp_difference(chunk(row).sums.max, max);
  };
  LaneSums<C> whole{both(-kInfinity<C>), {}};
  for (int64_t row = 0; row < rows; row += kChunk) {
    whole.max = larger(whole.max, chunk(row).sums.max);
  }
  for (int64_t row = 0; row < rows; row += kChunk) {
    const auto products =
        each(chunk(row).sums.sum, to_whole(row, whole.max), [](auto a, auto b) { return a * b; });
    whole.sum = whole.sum + products;
  }
  for (int64_t row = 0; row < rows; row += kChunk) {
    const Tile<C> max = chunk(row).sums.max;
    chunk(row).factors = factors_of<Log, Out>(max, to_whole(row, whole.max), whole);
  }
}

template <bool Log, class Out, class C>
FUSEDOPS_INLINE Tile<C> normalized(Tile<C> x, const LaneFactors<C>& lanes) {
  const Tile<C> shifted = x - lanes.shift;
  if constexpr (Log) {
    return shifted - lanes.high;
  } else {
    const Tile<C> e = exp_nonpositive<Out>(shifted);
    if constexpr (sizeof(Out) == sizeof(double)) {
      const Tile<C> product = e * lanes.high;
      return {{product.v[0] / lanes.low.v[0], product.v[1] / lanes.low.v[1]}};
    } else if constexpr (sizeof(Out) == sizeof(float)) {
      return e * lanes.high + e * lanes.low;
    } else {
      return e * lanes.high;
    }
  }
}

template <bool Log, class In, class Out, class Store, class C = Compute<In>>
FUSEDOPS_INLINE void softmax_strip(
    Strip<const In> input, Strip<Out> output, int64_t rows, int64_t cols, PlaneScratch<In> scratch,
    Store put) {
  for_groups(cols, [&](RowRange lanes) {
    for_row_chunks(rows, kSoftmaxChunk<C>, [&](RowRange chunk) {
      take_max(input, chunk, lanes, scratch);
      sum_chunk<Out>(input, chunk, lanes, scratch);
    });
  });
  for (int64_t lane = 0; lane < cols; lane += kTile<In>) {
    make_factors<Log, Out>(scratch, rows, lane);
  }
  for_tiles<In>(
      RowRange{0, rows}, cols,
      [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        static_assert(kSoftmaxChunk<C> % kPlaneRows == 0);
        const LaneFactors<C> factors = scratch.note(row, col).factors;
        for (int64_t r = row; r < row + count; ++r) {
          const Tile<C> result = normalized<Log, Out>(load(input.row(r) + col, part), factors);
          put(output.row(r) + col, part, in_order<In, Out>(result));
        }
      });
}

template <bool Log, class In, class Out, class Store>
FUSEDOPS_INLINE void softmax_strips(
    const SoftmaxPlanesForward& args, RowRange range, void* memory, Store put) {
  const PlaneStrips strips = plane_strips(args);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t plane = i / strips.count;
    const RowRange at = strips[i % strips.count];
    const int64_t lanes = at.end - at.begin;
    softmax_strip<Log, In, Out>(
        {args.input, plane, at}, {args.output, plane, at}, args.rows, lanes,
        PlaneScratch<In>(memory, lanes), put);
  }
}

// --- backward -----------------------------------------------------------------------------------

// Rows whose sums are carried on in double: of a short row all, as in softmax.h, of a long one a
// chunk, as in long_softmax.h.
template <class C>
FUSEDOPS_INLINE int64_t gradient_chunk(int64_t rows) {
  return is_long_row(rows) ? kSoftmaxChunk<C> : rows;
}

// Sums of grad_output * output, or of grad_output for a logarithm, of a group of lanes.
template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_NOINLINE void sum_grad_group(
    Strip<const Out> grad, Strip<const Out> output, int64_t rows, RowRange lanes, Tile<C>* places,
    Tile<C>* sums) {
  const auto terms = [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const int64_t lane = lanes.begin + col;
    return [=](int64_t row) FUSEDOPS_LAMBDA {
      prefetch_tile<Cache::kL2>(grad.row(row) + lane + kGroupLanes);
      const Tile<C> g = load(grad.row(row) + lane, part);
      if constexpr (Log) {
        return g;
      } else {
        prefetch_tile<Cache::kL2>(output.row(row) + lane + kGroupLanes);
        return g * load(output.row(row) + lane, part);
      }
    };
  };
  WideTile<C> total[kGroupTiles<Out>] = {};
  for_row_chunks(rows, gradient_chunk<C>(rows), [&](RowRange chunk) {
    fill_places<Out>(places, chunk, lanes.end - lanes.begin, terms);
    const int64_t used = places_used<Out>(chunk.end - chunk.begin);
    for (int64_t i = 0; i * kTile<Out> < lanes.end - lanes.begin; ++i) {
      total[i] = total[i] + sum_of_places<Out>(places + i, 0, used);
    }
  });
  for (int64_t i = 0; i * kTile<Out> < lanes.end - lanes.begin; ++i) {
    sums[lanes.begin / kTile<Out> + i] = narrowed(total[i]);
  }
}

template <bool Log, class In, class Out, class Store, class C = Compute<Out>>
FUSEDOPS_INLINE void softmax_backward_strip(
    Strip<const Out> grad, Strip<const Out> output, Strip<In> result, int64_t rows, int64_t cols,
    Tile<C>* places, Store put) {
  auto* sums = reinterpret_cast<Tile<C>*>(reinterpret_cast<char*>(places) + kPlacesBytes);
  for_groups(
      cols, [&](RowRange lanes) { sum_grad_group<Log>(grad, output, rows, lanes, places, sums); });
  for_tiles<Out>(
      RowRange{0, rows}, cols,
      [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> sum = sums[col / kTile<Out>];
        for (int64_t r = row; r < row + count; ++r) {
          const Tile<C> g = load(grad.row(r) + col, part), y = load(output.row(r) + col, part);
          const Tile<C> grad_input = Log ? g - exp_nonpositive<In>(y) * sum : (g - sum) * y;
          put(result.row(r) + col, part, in_order<Out, In>(grad_input));
        }
      });
}

template <bool Log, class In, class Out, class Store>
FUSEDOPS_INLINE void softmax_backward_strips(
    const SoftmaxPlanesBackward& args, RowRange range, void* memory, Store put) {
  const PlaneStrips strips = plane_strips(args);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t plane = i / strips.count;
    const RowRange at = strips[i % strips.count];
    softmax_backward_strip<Log, In, Out>(
        {args.grad_output, plane, at}, {args.output, plane, at}, {args.grad_input, plane, at},
        args.rows, at.end - at.begin, static_cast<Tile<Compute<Out>>*>(memory), put);
  }
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
