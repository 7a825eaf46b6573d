// softmax and log_softmax over the rows of planes on the CPU: a lane of a vector for each column of
// a plane, nothing moves between lanes.
//
// Forward: one pass over a strip of lanes gives maximum and sum of each, a few rows at a time;
// where a maximum grows, the sum so far is scaled. A second pass writes. So a lane costs two exps
// for each row, its input is read twice, once from memory where the strip fits in the cache, and
// nothing is kept of it but four numbers.
#pragma once

#include "fusedops/cpu/exp.h"
#include "fusedops/cpu/kernels.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// Rows taken at once: their sum is formed in C, and carried on in double.
constexpr int kPlaneRows = 16;

template <class C>
struct WideTile {
  Wide<C> v[2];
};

template <class C>
FUSEDOPS_INLINE WideTile<C> operator+(WideTile<C> a, Tile<C> b) {
  for (int half = 0; half < 2; ++half) {
    const Wide<C> wide = widened(b.v[half]);
    for (int i = 0; i < int(sizeof(wide) / kVectorBytes); ++i) a.v[half].v[i] += wide.v[i];
  }
  return a;
}

template <class C>
FUSEDOPS_INLINE Tile<C> narrowed(WideTile<C> wide) {
  return {{narrowed(wide.v[0]), narrowed(wide.v[1])}};
}

template <class C, class Body>
FUSEDOPS_INLINE WideTile<C> each(WideTile<C> wide, Body body) {
  for (auto& half : wide.v) {
    for (auto& vec : half.v) vec = body(vec);
  }
  return wide;
}

// What the first pass finds for a tile of lanes.
template <class C>
struct LaneSums {
  Tile<C> max;
  WideTile<C> sum;  // of exp(input - max)
};

// What the second pass needs: exp(input - max) is multiplied by high + low, or is divided by high
// where C is double. Of a logarithm, high is subtracted.
template <class C>
struct LaneFactors {
  Tile<C> max, high, low;
};

template <class C>
union LaneStatistics {
  LaneSums<C> sums;
  LaneFactors<C> factors;
};
static_assert(
    sizeof(LaneStatistics<double>) * PlaneStrips::kMaxLanes / kTile<double> <= kPlanesScratchBytes);

// The sums as of a maximum that is larger: exactly as they were where it is the same, infinities
// included.
template <class C>
FUSEDOPS_NOINLINE void raise_max(LaneSums<C>& lanes, const Tile<C>& max) {
  for (int half = 0; half < 2; ++half) {
    const Wide<C> before = widened(lanes.max.v[half]), after = widened(max.v[half]);
    for (int i = 0; i < int(sizeof(before) / kVectorBytes); ++i) {
      const Vec<double> from = before.v[i], to = after.v[i];
      const Vec<double> change = from == to ? Vec<double>{} : from - to;
      lanes.sum.v[half].v[i] *= exp_nonpositive<double>(change);
    }
  }
  lanes.max = max;
}

// A few more rows of a tile of lanes. They are read twice, the second time from the L1 cache.
template <class Out, class In, class Part, class C = Compute<In>>
FUSEDOPS_INLINE void add_rows(
    LaneSums<C>& lanes, const In* input, int64_t row_stride, int64_t rows, Part part) {
  Tile<C> max = lanes.max;
  for (int64_t r = 0; r < rows; ++r) {
    max = larger(max, load(input + r * row_stride, part));  // drops a NaN; exp(NaN - max) has it
  }
  if (any(max.v[0] != lanes.max.v[0]) || any(max.v[1] != lanes.max.v[1])) raise_max(lanes, max);
  // All -inf so far: nothing to subtract, and exp(-inf) = 0 lets a lane stay finite.
  Tile<C> shift = max;
  for (auto& vec : shift.v) vec = vec == -kInfinity<C> ? Vec<C>{} : vec;
  Tile<C> sum = both(C(0));
  for (int64_t r = 0; r < rows; ++r) {
    sum = sum + exp_nonpositive<Out>(load(input + r * row_stride, part) - shift);
  }
  lanes.sum = lanes.sum + sum;
}

template <bool Log, class Out, class C>
FUSEDOPS_INLINE LaneFactors<C> factors_of(const LaneSums<C>& lanes) {
  if constexpr (Log) {
    const auto log = [](Vec<double> sum) {
      for (int i = 0; i < kLanes<double>; ++i) sum[i] = __builtin_log(sum[i]);
      return sum;
    };
    return {lanes.max, narrowed(each(lanes.sum, log)), {}};
  } else if constexpr (sizeof(Out) == sizeof(double)) {
    return {lanes.max, narrowed(lanes.sum), {}};
  } else {
    const WideTile<C> scale = each(lanes.sum, [](Vec<double> sum) { return 1.0 / sum; });
    const Tile<C> high = narrowed(scale);
    return {lanes.max, high, narrowed(scale + high * C(-1))};
  }
}

template <bool Log, class Out, class C>
FUSEDOPS_INLINE Tile<C> normalized(Tile<C> x, const LaneFactors<C>& lanes) {
  const Tile<C> shifted = x - lanes.max;
  if constexpr (Log) {
    return shifted - lanes.high;
  } else {
    const Tile<C> e = exp_nonpositive<Out>(shifted);
    if constexpr (sizeof(Out) == sizeof(double)) {
      return {{e.v[0] / lanes.high.v[0], e.v[1] / lanes.high.v[1]}};
    } else if constexpr (sizeof(Out) == sizeof(float)) {
      return e * lanes.high + e * lanes.low;
    } else {
      return e * lanes.high;
    }
  }
}

// body(row, count, col, part) over all tiles, kPlaneRows rows of one at a time.
template <class T, class Body>
FUSEDOPS_INLINE void for_tiles(int64_t rows, int64_t cols, Body body) {
  for (int64_t row = 0; row < rows; row += kPlaneRows) {
    const int64_t count = rows - row < kPlaneRows ? rows - row : kPlaneRows;
    for_columns<T>(
        cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA { body(row, count, col, part); });
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

template <class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void sum_strip(
    Strip<const In> input, int64_t rows, int64_t cols, LaneStatistics<C>* lanes) {
  for (int64_t i = 0; i * kTile<In> < cols; ++i) lanes[i].sums = {both(-kInfinity<C>), {}};
  for_tiles<In>(
      rows, cols, [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        LaneSums<C>& sums = lanes[col / kTile<In>].sums;
        add_rows<Out>(sums, input.row(row) + col, input.row_stride, count, part);
      });
}

template <bool Log, class In, class Out, class Store, class C = Compute<In>>
FUSEDOPS_INLINE void softmax_strip(
    Strip<const In> input, Strip<Out> output, int64_t rows, int64_t cols, LaneStatistics<C>* lanes,
    Store put) {
  sum_strip<Out>(input, rows, cols, lanes);
  for (int64_t i = 0; i * kTile<In> < cols; ++i) {
    lanes[i].factors = factors_of<Log, Out>(lanes[i].sums);
  }
  for_tiles<In>(
      rows, cols, [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const LaneFactors<C> factors = lanes[col / kTile<In>].factors;
        for (int64_t r = 0; r < count; ++r) {
          const Tile<C> result =
              normalized<Log, Out>(load(input.row(row + r) + col, part), factors);
          put(output.row(row + r) + col, part, in_order<In, Out>(result));
        }
      });
}

template <bool Log, class In, class Out, class Store>
FUSEDOPS_INLINE void softmax_strips(
    const SoftmaxPlanesForward& args, RowRange range, void* scratch, Store put) {
  const PlaneStrips strips = plane_strips(args);
  auto* lanes = static_cast<LaneStatistics<Compute<In>>*>(scratch);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t plane = i / strips.count;
    const RowRange at = strips[i % strips.count];
    softmax_strip<Log, In, Out>(
        {args.input, plane, at}, {args.output, plane, at}, args.rows, at.end - at.begin, lanes,
        put);
  }
}

// Sums of grad_output * output, or of grad_output for a logarithm, for a tile of lanes.
template <class C>
union LaneGradSums {
  WideTile<C> wide;
  Tile<C> total;
};

template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_NOINLINE void sum_grad_strip(
    Strip<const Out> grad, Strip<const Out> output, int64_t rows, int64_t cols,
    LaneGradSums<C>* lanes) {
  for (int64_t i = 0; i * kTile<Out> < cols; ++i) lanes[i].wide = {};
  for_tiles<Out>(
      rows, cols, [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        Tile<C> sum = both(C(0));
        for (int64_t r = 0; r < count; ++r) {
          const Tile<C> g = load(grad.row(row + r) + col, part);
          sum = sum + (Log ? g : g * load(output.row(row + r) + col, part));
        }
        WideTile<C>& sums = lanes[col / kTile<Out>].wide;
        sums = sums + sum;
      });
  for (int64_t i = 0; i * kTile<Out> < cols; ++i) lanes[i].total = narrowed(lanes[i].wide);
}

template <bool Log, class In, class Out, class Store, class C = Compute<Out>>
FUSEDOPS_INLINE void softmax_backward_strip(
    Strip<const Out> grad, Strip<const Out> output, Strip<In> result, int64_t rows, int64_t cols,
    LaneGradSums<C>* lanes, Store put) {
  sum_grad_strip<Log>(grad, output, rows, cols, lanes);
  for_tiles<Out>(
      rows, cols, [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> sum = lanes[col / kTile<Out>].total;
        for (int64_t r = 0; r < count; ++r) {
          const Tile<C> g = load(grad.row(row + r) + col, part);
          const Tile<C> y = load(output.row(row + r) + col, part);
          const Tile<C> grad_input = Log ? g - exp_nonpositive<In>(y) * sum : (g - sum) * y;
          put(result.row(row + r) + col, part, in_order<Out, In>(grad_input));
        }
      });
}

template <bool Log, class In, class Out, class Store>
FUSEDOPS_INLINE void softmax_backward_strips(
    const SoftmaxPlanesBackward& args, RowRange range, void* scratch, Store put) {
  const PlaneStrips strips = plane_strips(args);
  auto* lanes = static_cast<LaneGradSums<Compute<Out>>*>(scratch);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t plane = i / strips.count;
    const RowRange at = strips[i % strips.count];
    softmax_backward_strip<Log, In, Out>(
        {args.grad_output, plane, at}, {args.output, plane, at}, {args.grad_input, plane, at},
        args.rows, at.end - at.begin, lanes, put);
  }
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
