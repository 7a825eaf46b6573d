// Computes the norms of groups of short rows on the CPU, forward and backward (simd/short_rows.h).
//
// Results have the same bits as those of forward.h and backward.h: for each lane of an accumulator
// there is a tile here, and tiles are added up as the lanes are. The root and the two divisions at
// the end of a row are computed for all rows of a group at once. The sums over rows are in one tile
// per column until all groups of a partition have been added to them.
//
// Doubles, whose sums use long double, and rows with dropout are not computed in groups.
#pragma once

#include "cpu/norm/backward.h"
#include "cpu/norm/tile_statistics.h"
#include "cpu/simd/short_rows.h"
#include "cpu/softmax/spatial.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

template <class T>
constexpr bool kComputedInGroups = sizeof(Compute<T>) == sizeof(float);
// A short row is a single chunk, so that each lane of an accumulator has a single sum in float.
static_assert(kShortRowCols <= kNormChunk<float>);

// Returns how many lanes of a vector hold any of `cols` columns, counting both halves of a tile of
// T: lane i counts if either half has a column there.
template <class T>
constexpr int64_t lanes_reached(int64_t cols) {
  const int64_t lanes = kEvenOdd<T> ? (cols + 1) / 2 : cols;
  return lanes < kLanes<float> ? lanes : kLanes<float>;
}

// Calls body(column) for each column that tiles of T have in lane `lane` of vector `half`.
template <class T, class Body>
FUSEDOPS_INLINE void for_columns_of(int half, int lane, int64_t cols, Body body) {
  for (int64_t col = column_of<T>(half, lane); col < cols; col += kTile<T>) body(col);
}

// Adds up tiles in the order in which ReduceLanes() adds the lanes of a vector: tile i holds what
// lane i would hold if a row were computed alone. Overwrites the tiles.
template <class T>
FUSEDOPS_INLINE Tile<float> sum_of_lanes(Tile<float>* lanes, int64_t cols) {
  const int64_t reached = lanes_reached<T>(cols);
  int64_t width = 1;
  while (width < reached) width *= 2;
  for (int64_t lane = reached; lane < width; ++lane) lanes[lane] = Broadcast(0.0f);
  for (width /= 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] = lanes[lane] + lanes[lane + width];
  }
  // A row that is computed alone and ends within a tile also has lanes of +0, which turn a sum of
  // -0 into +0.
  return cols % kTile<T> == 0 ? lanes[0] : lanes[0] + Broadcast(0.0f);
}

// Returns the same sum as sum_of_lanes(), but adds in double and in the order of totals()
// (forward.h), so that a row's sum has the same bits in a group as alone. Tiles that it reads and
// that no column reaches are first set to 0.
template <class T>
FUSEDOPS_INLINE WideTile<float> wide_sum_of_lanes(Tile<float>* lanes, int64_t cols) {
  const int64_t reached = lanes_reached<T>(cols), count = accumulators_read<float>(reached);
  for (int64_t lane = reached; lane < count; ++lane) lanes[lane] = Broadcast(0.0f);
  return sum_of_accumulators<float>(TileAccumulators<float>{lanes, /*stride=*/1, count});
}

// Writes weight or bias to `to` in memory order.
template <class T>
FUSEDOPS_INLINE void unpack_columns(ColumnValues<T> values, int64_t cols, float* to) {
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    store(to + col, in_order<T, float>(values.at(col, part)));
  });
}

// --- statistics ---------------------------------------------------------------------------------

// Returns what shift_near_mean() (forward.h) returns for each row.
template <class T>
FUSEDOPS_INLINE Tile<float> shift_of_group(const Tile<float>* group, int64_t cols) {
  const int64_t count = cols < kTile<T> ? cols : kTile<T>;
  const float share = 1.0f / static_cast<float>(count);
  Tile<float> lanes[kLanes<float>];
  for (int64_t lane = 0; lane < lanes_reached<T>(count); ++lane) {
    Tile<float> halves[2] = {Broadcast(0.0f), Broadcast(0.0f)};
    for (int half = 0; half < 2; ++half) {
      for_columns_of<T>(half, lane, count, [&](int64_t col) FUSEDOPS_LAMBDA {
        halves[half] = unfused(group[col] * share);
      });
    }
    lanes[lane] = halves[0] + halves[1];
  }
  return sum_of_lanes<T>(lanes, count);
}

// Sets `squares` to each row's sum of squared deviations from `shift` and, if the norm has a mean,
// `deviations` to the sum of deviations; without a mean, the values themselves are squared. Sums of
// squares start at start_of_squares() (forward.h).
template <bool kCenters, class T>
FUSEDOPS_INLINE void sum_deviations(
    const Tile<float>* group, Tile<float> shift, int64_t cols, WideTile<float>& deviations,
    WideTile<float>& squares) {
  constexpr float tiny = Unscaled<T>::tiny;
  Tile<float> sums[kLanes<float>], of_squares[kLanes<float>];
  for (int64_t lane = 0; lane < lanes_reached<T>(cols); ++lane) {
    Tile<float> sum[2], square[2];
    for (int half = 0; half < 2; ++half) {
      const bool is_reached = column_of<T>(half, lane) < cols;
      Tile<float> so_far = Broadcast(0.0f);
      Tile<float> squares_so_far = Broadcast(is_reached ? start_of_squares(tiny) : 0.0f);
      for_columns_of<T>(half, lane, cols, [&](int64_t col) FUSEDOPS_LAMBDA {
        const Tile<float> deviation = kCenters ? group[col] - shift : group[col];
        so_far = so_far + deviation;
        squares_so_far = plus_square(squares_so_far, deviation, tiny);
      });
      sum[half] = so_far;
      square[half] = squares_so_far;
    }
    if constexpr (kCenters) sums[lane] = sum[0] + sum[1];
    of_squares[lane] = square[0] + square[1];
  }
  if constexpr (kCenters) deviations = wide_sum_of_lanes<T>(sums, cols);
  squares = wide_sum_of_lanes<T>(of_squares, cols);
}

// Writes row `row` of a group to memory.
template <class T>
FUSEDOPS_NOINLINE void copy_row(const Tile<float>* group, int64_t row, int64_t cols, T* to) {
  float values[kShortRowCols + kVectorBytes] = {};
  for (int64_t col = 0; col < cols; ++col) {
    values[col] = group[col].v[row / kLanes<float>][row % kLanes<float>];
  }
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    store(to + col, part, in_order<float, T>(load(values + col)));
  });
}

// Computes the moments again of the rows whose exact[row] is 0, because one pass lost bits.
template <bool kCenters, class T>
FUSEDOPS_NOINLINE void correct_moments(
    const Tile<float>* group, int64_t cols, const int64_t* exact, SquaresRange<double> range,
    TileMoments<float>& moments) {
  T row[kShortRowCols];
  for (int64_t r = 0; r < kGroupRows<T>; ++r) {
    if (exact[r] != 0) continue;
    copy_row(group, r, cols, row);
    const int64_t i = r / kLanes<double>, lane = r % kLanes<double>;
    Vec<double>& squares = vector_of(moments.squares, i);
    if constexpr (kCenters) {
      Vec<double>&shift = vector_of(moments.shift, i), &away = vector_of(moments.away, i);
      const auto mean = static_cast<float>(shift[lane] + away[lane]);
      const Moments<double> corrected = exact_moments(mean, row, cols, range);
      squares[lane] = corrected.squares;
      shift[lane] = corrected.shift;
      away[lane] = corrected.away;
    } else {
      squares[lane] = exact_sum_of_squares(double(squares[lane]), row, cols, range);
    }
  }
}

// Returns the moments of the rows of a group, a row in each lane. Those of rows in which one pass
// lost bits are computed again.
template <bool kCenters, class T>
FUSEDOPS_INLINE TileMoments<float> moments_of_group(
    const NormForward& args, const Tile<float>* group) {
  Tile<float> shift = Broadcast(0.0f);
  if constexpr (kCenters) shift = shift_of_group<T>(group, args.cols);
  TileMoments<float> moments;
  sum_deviations<kCenters, T>(group, shift, args.cols, moments.away, moments.squares);
  if constexpr (kCenters) moments.shift = promoted(shift);
  for (int64_t i = 0; i < kWideVectors<float>; ++i) {
    vector_of(moments.squares, i) -= sum_of_starts<T>(Unscaled<T>::tiny, args.cols);
  }
  const SquaresRange<double> range = squares_range<T>(args);
  int64_t exact[kGroupRows<T>];
  if (!finish_moments<kCenters>(moments, double(args.cols), range.lowest, exact)) {
    correct_moments<kCenters, T>(group, args.cols, exact, range, moments);
  }
  return moments;
}

// --- forward ------------------------------------------------------------------------------------

// Sets `group` to input + residual for a group of rows, and stores that sum if it is wanted.
template <class T>
FUSEDOPS_NOINLINE void load_added(const NormForward& args, int64_t first, Tile<float>* group) {
  with_branch<T>(args.input.dtype, [&](auto tag) {
    load_group<decltype(tag)>(args.input, first, args.cols, group);
  });
  Tile<float> residual[kShortRowCols];
  load_group<T>(args.residual, first, args.cols, residual);
  for (int64_t col = 0; col < args.cols; ++col) {
    group[col] = rounded<T>(group[col] + residual[col]);
  }
  if (args.sum.data != nullptr) store_group<T>(args.sum, first, args.cols, group);
}

template <bool kCenters, bool kRounds, class T>
FUSEDOPS_INLINE void normalize_group(
    TileStatistics<float> stats, const float* weight, const float* bias, int64_t cols,
    Tile<float>* group) {
  for (int64_t col = 0; col < cols; ++col) {
    Tile<float> x = normalized<kCenters, T>(group[col], stats.mean, stats.rstd, stats.remainder);
    if constexpr (kRounds) x = rounded<T>(x);
    const Tile<float> factor = Broadcast(weight[col]);
    group[col] = bias == nullptr ? x * factor : MulAdd(x, factor, Broadcast(bias[col]));
  }
}

// Normalizes a group in place, and saves its statistics if they are wanted.
template <bool kCenters, class T>
FUSEDOPS_NOINLINE void norm_group(
    const NormForward& args, int64_t first, const float* weight, const float* bias,
    Tile<float>* group) {
  const TileStatistics<float> stats =
      statistics_of<kCenters>(args, moments_of_group<kCenters, T>(args, group));
  if (args.rstd != nullptr) {
    if constexpr (kCenters) store(static_cast<float*>(args.mean) + first, stats.mean);
    store(static_cast<float*>(args.rstd) + first, stats.rstd);
  }
  if constexpr (!kCenters && sizeof(T) == 2) {
    if (args.rounds_normalized) {
      return normalize_group<kCenters, /*kRounds=*/true, T>(stats, weight, bias, args.cols, group);
    }
  }
  normalize_group<kCenters, /*kRounds=*/false, T>(stats, weight, bias, args.cols, group);
}

// Whether groups are faster than interleaved rows. Groups save the least time in norms without a
// mean, because each of their rows takes only one reduction. With a residual, groups take two more
// transpositions.
template <bool kCenters, class T>
FUSEDOPS_INLINE bool gains_from_groups(const NormForward& args) {
  constexpr int64_t kCols = kCenters || sizeof(T) == 2 ? kShortRowCols : kShortRowCols / 2;
  if (args.cols >= kCols || args.dropout.seed != nullptr) return false;
  return args.residual.data == nullptr || args.cols <= 32 || end_within_a_tile<T>(args.cols);
}

// Normalizes whole groups of rows, where groups are faster. Returns the remaining rows.
template <bool kCenters, class T>
RowRange short_norm_groups(const NormForward& args, RowRange rows, void* memory) {
  if constexpr (!kComputedInGroups<T>) {
    return rows;
  } else {
    if (!gains_from_groups<kCenters, T>(args)) return rows;
    auto* const scratch = static_cast<float*>(memory);
    float weight[kShortRowCols], bias[kShortRowCols];
    unpack_columns<T>(weight_values<T>(args, scratch), args.cols, weight);
    const bool has_bias = args.bias.data != nullptr;
    if (has_bias) unpack_columns<T>(bias_values<T>(args, scratch), args.cols, bias);
    return for_row_groups<T>(rows, [&](int64_t first) {
      Tile<float> group[kShortRowCols];
      prefetch_group<T>(args.output, first, args.cols);
      prefetch_group<T>(args.input, first + kGroupRows<T>, args.cols);
      if (args.residual.data != nullptr) {
        load_added<T>(args, first, group);
      } else {
        load_group<T>(args.input, first, args.cols, group);
      }
      norm_group<kCenters, T>(args, first, weight, has_bias ? bias : nullptr, group);
      store_group<T>(args.output, first, args.cols, group);
    });
  }
}

// --- backward -----------------------------------------------------------------------------------

// Computes the groups of a partition, and their sums over rows.
template <bool kCenters, class T>
struct NormBackwardGroups {
  const NormBackward& args;
  Tile<float> grad[kShortRowCols], input[kShortRowCols], grad_sum[kShortRowCols];
  Tile<float> grad_weight[kShortRowCols], grad_bias[kShortRowCols];
  float weight[kShortRowCols];

  NormBackwardGroups(const NormBackward& args_, void* scratch) : args(args_) {
    unpack_columns<T>(weight_values<T>(args, static_cast<float*>(scratch)), args.cols, weight);
    for (int64_t col = 0; col < args.cols; ++col)
      grad_weight[col] = grad_bias[col] = Broadcast(0.0f);
  }

  // Writes the gradients of the group that begins at row `first`, and adds its rows to the sums.
  FUSEDOPS_NOINLINE void compute(int64_t first) {
    load_group<T>(args.grad_output, first, args.cols, grad);
    load_group<T>(args.input, first, args.cols, input);
    const Tile<float> rstd = load(static_cast<const float*>(args.rstd) + first);
    Tile<float> mean = Broadcast(0.0f);
    if constexpr (kCenters) mean = load(static_cast<const float*>(args.mean) + first);
    const Read read = as_read(mean, rstd);
    const NormSlope<Tile<float>> slope = slope_of(read, rstd);
    add_columns(read);
    const bool writes = args.grad_input.data != nullptr || args.grad_branch.data != nullptr;
    if (writes) write(first, slope, read, rstd);
  }

  // Adds the sums over rows to those of the partition, which have the column order of a tile of T.
  void add_to(float* weight_sums, float* bias_sums) const {
    if (args.grad_weight.data != nullptr) add_over_rows(grad_weight, weight_sums);
    if (args.grad_bias.data != nullptr) add_over_rows(grad_bias, bias_sums);
  }

 private:
  // Holds the statistics of rows as they are read: scaled if the rows are tiny.
  struct Read {
    Tile<float> mean, rstd;
  };

  // Returns the statistics of the rows as they are read: tiny rows are scaled first, in place.
  FUSEDOPS_INLINE Read as_read(Tile<float> mean, Tile<float> rstd) {
    if constexpr (kMayBeTiny<T>) {
      constexpr float kLarge = kLargeRstd<float>;
      if (AnyTrue((rstd.v[0] > kLarge) | (rstd.v[1] > kLarge))) return scaled(mean, rstd);
    }
    return {mean, rstd};
  }

  FUSEDOPS_NOINLINE Read scaled(Tile<float> mean, Tile<float> rstd) {
    Tile<float> factor;
    for (int half = 0; half < 2; ++half) {
      factor.v[half] = reading_factor<float>(mean.v[half], rstd.v[half]);
    }
    for (int64_t col = 0; col < args.cols; ++col) input[col] = input[col] * factor;
    return {mean * factor, rstd / factor};
  }

  FUSEDOPS_INLINE Tile<float> centered(int64_t col, Tile<float> mean) const {
    return kCenters ? input[col] - mean : input[col];
  }

  // Returns the coefficients of the rows' gradients. `rstd` is computed from the rows in memory,
  // which are not scaled.
  FUSEDOPS_INLINE NormSlope<Tile<float>> slope_of(Read read, Tile<float> rstd) const {
    Tile<float> grads[kLanes<float>], products[kLanes<float>];
    for (int64_t lane = 0; lane < lanes_reached<T>(args.cols); ++lane) {
      Tile<float> of_grad = Broadcast(0.0f), of_product = of_grad;
      for (int64_t begin = 0; begin < args.cols; begin += kTile<T>) {
        for (int half = 0; half < 2; ++half) {
          const int64_t col = begin + column_of<T>(half, lane);
          if (col >= args.cols) break;
          const Tile<float> w = Broadcast(weight[col]),
                            product = grad[col] * centered(col, read.mean);
          of_grad = of_grad + grad[col] * w;
          of_product = of_product + product * w;
        }
      }
      grads[lane] = of_grad;
      products[lane] = of_product;
    }
    Tile<float> grad_total = Broadcast(0.0f);
    if constexpr (kCenters) grad_total = sum_of_lanes<T>(grads, args.cols);
    return norm_slope<kCenters, float>(
        grad_total, sum_of_lanes<T>(products, args.cols), read.rstd, rstd, args);
  }

  // Adds the group's part of grad_weight and grad_bias to these sums, if they are wanted.
  FUSEDOPS_INLINE void add_columns(Read read) {
    for (int64_t col = 0; col < args.cols && args.grad_weight.data != nullptr; ++col) {
      const Tile<float> product = grad[col] * centered(col, read.mean);
      grad_weight[col] = grad_weight[col] + product * read.rstd;
    }
    for (int64_t col = 0; col < args.cols && args.grad_bias.data != nullptr; ++col) {
      grad_bias[col] = grad_bias[col] + grad[col];
    }
  }

  // Writes grad_input and grad_branch, as far as they are wanted, for the group that begins at row
  // `first`. `read` has the statistics of the rows as `input` holds them (scaled if tiny). `rstd`
  // is computed from the rows in memory, which are not scaled. Overwrites `grad`.
  FUSEDOPS_INLINE void write(
      int64_t first, NormSlope<Tile<float>> slope, Read read, Tile<float> rstd) {
    if constexpr (kMayLoseProducts<T>) {
      Mask<float> lossy;
      for (int half = 0; half < 2; ++half) {
        lossy.v[half] = loses_products(slope.slope.v[half], read.rstd.v[half]);
      }
      if (AnyTrue(lossy.v[0] | lossy.v[1])) {
        const Tile<float> factor = scale_gradients(lossy);
        slope = {slope.grad_mean * factor, slope.slope * factor};
        rstd = rstd / factor;
      }
    }
    const bool more = args.grad_sum.data != nullptr;
    if (more) load_group<T>(args.grad_sum, first, args.cols, grad_sum);
    for (int64_t col = 0; col < args.cols; ++col) {
      const Tile<float> result = norm_gradient<kCenters>(
          grad[col], Broadcast(weight[col]), input[col], read.mean, rstd, slope);
      grad[col] = more ? result + grad_sum[col] : result;
    }
    if (args.grad_input.data != nullptr) store_group<T>(args.grad_input, first, args.cols, grad);
    if (args.grad_branch.data == nullptr) return;
    with_branch<T>(args.grad_branch.dtype, [&](auto tag) {
      store_group<decltype(tag)>(args.grad_branch, first, args.cols, grad);
    });
  }

  // Scales the gradients of the rows in `lossy`, whose products would be lost to underflow, and
  // returns each row's factor: 1 for the others.
  FUSEDOPS_NOINLINE Tile<float> scale_gradients(Mask<float> lossy) {
    Tile<float> largest = Broadcast(0.0f), factor;
    for (int64_t col = 0; col < args.cols; ++col) {
      largest = Max(largest, Max(grad[col], Broadcast(0.0f) - grad[col]));
    }
    for (int half = 0; half < 2; ++half) factor.v[half] = gradient_factor(largest.v[half]);
    factor = IfThenElse(lossy, factor, 1.0f);
    for (int64_t col = 0; col < args.cols; ++col) grad[col] = grad[col] * factor;
    return factor;
  }

  // Adds the lanes of each column's tile, which are rows, to the column's sum.
  void add_over_rows(const Tile<float>* columns, float* sums) const {
    constexpr int64_t L = kLanes<float>;
    float totals[kShortRowCols];
    for (int64_t begin = 0; begin < args.cols; begin += L) {
      Vec<float> rows[L];
      for (int64_t i = 0; i < L; ++i) {
        const Tile<float> column = begin + i < args.cols ? columns[begin + i] : Broadcast(0.0f);
        rows[i] = column.v[0] + column.v[1];
      }
      float some[L];
      sums_over_lanes<float>(rows, some);
      std::memcpy(totals + begin, some, sizeof(some));
    }
    for_columns<T>(args.cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<float> more = filled<T>(in_order<float, T>(load(totals + col)), part, 0.0f);
      store(sums + col, load(sums + col) + more);
    });
  }
};

// Whether groups are faster than interleaved rows in a backward. Groups and interleaved rows add up
// rows in different orders, so the choice must not depend on which gradients are wanted.
template <class T>
FUSEDOPS_INLINE bool gains_from_groups(const NormBackward& args) {
  // With dropout no rows are computed in groups, even if grad_branch is not wanted, so that the
  // other gradients have the same bits whether it is wanted or not.
  if (args.cols > kShortRowCols || args.dropout.seed != nullptr) return false;
  return args.cols <= kTile<T> * (sizeof(T) == 2 ? 6 : 3) / 4 || end_within_a_tile<T>(args.cols);
}

// Writes the gradients of whole groups of a partition's rows, where groups are faster, and adds to
// the partition's sums. Returns the remaining rows.
template <bool kCenters, class T>
RowRange short_norm_backward_groups(
    const NormBackward& args, RowRange rows, void* scratch, PartitionSums<Compute<T>> sums) {
  if constexpr (!kComputedInGroups<T>) {
    return rows;
  } else {
    const bool fills_a_group = rows.end - rows.begin >= kGroupRows<T>;
    if (!fills_a_group || !gains_from_groups<T>(args)) return rows;
    NormBackwardGroups<kCenters, T> groups(args, scratch);
    const RowRange rest = for_row_groups<T>(rows, [&](int64_t first) { groups.compute(first); });
    groups.add_to(sums.grad_weight, sums.grad_bias);
    return rest;
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
