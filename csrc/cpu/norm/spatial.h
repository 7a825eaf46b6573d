// Computes layer_norm and rms_norm over a dimension that is not the last, forward and backward. As
// in softmax/spatial.h, "rows" and "columns" are those of the matrix [dim_size, inner] that each
// outer index has: each column is normalized, and each row has one weight and one bias. A vector
// holds several columns, one in each lane, so that the bits of a column do not depend on the
// columns beside it.
//
// Forward: a segment of columns is read from memory by the pass that sums it, and stays in the L2
// cache for the pass that sums deviations from the mean, and for the one that writes results. Rows
// are summed a few at a time, and what rounding takes from the total of these sums is kept
// (ExactSum). A column whose squares are not exact (forward.h) is copied to scratch memory and
// computed again as a row.
//
// Backward: one pass over input and grad_output computes every sum, of columns and of rows; the
// sums of a row add up over all segments of a partition.
#pragma once

#include "cpu/norm/backward.h"
#include "cpu/norm/tile_statistics.h"
#include "cpu/softmax/spatial.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds a sum for each lane in two parts: `high`, and `low`, which adds up what the additions to
// `high` have rounded off (Knuth's TwoSum).
template <class C>
struct ExactSum {
  Tile<C> high = Broadcast(C(0)), low = Broadcast(C(0));

  FUSEDOPS_INLINE void add(Tile<C> value) {
    const Tile<C> sum = high + value, part = sum - high;
    low = low + ((high - (sum - part)) + (value - part));
    high = sum;
  }
  FUSEDOPS_INLINE WideTile<C> total() const { return promoted(high) + promoted(low); }
};

// Holds, for a tile of columns, the sums of a pass over its rows and the statistics that are
// computed from them.
template <class C>
struct NormColumn {
  TileStatistics<C> statistics;
  ExactSum<C> deviations, squares;
};
static_assert(sizeof(NormColumn<double>) == 7 * sizeof(Tile<double>));

// Returns the values of weight or bias in the compute type, in memory order, or `missing` for each
// if there are none. The values are in `copy` unless the tensor has them in that type.
template <class T, class C = Compute<T>>
const C* row_values(ConstColumns columns, C missing, C* copy, int64_t count) {
  if (columns.data == nullptr) {
    for (int64_t i = 0; i < count; ++i) copy[i] = missing;
    return copy;
  }
  if (size_of(columns.dtype) == sizeof(C)) return static_cast<const C*>(columns.data);
  copy_columns<C>(static_cast<const T*>(columns.data), C(0), copy, count);
  return copy;
}

// --- forward ------------------------------------------------------------------------------------

// Normalizes segments of inner columns. The segments of outer index 0 have the first numbers, those
// of outer index 1 the next, and so on.
template <bool kCenters, class T>
class SpatialNorm {
 public:
  SpatialNorm(const SpatialNormForward& args, void* memory, StoreMode mode)
      : args_(args), mode_(mode), formula_(args.kind, args.dim_size, args.eps) {
    const int64_t width = padded_cols(args.dim_size);
    C* const scratch = static_cast<C*>(memory);
    weight_ = row_values<T>(args.weight, C(1), scratch, args.dim_size);
    bias_ = args.bias.data == nullptr
        ? nullptr
        : row_values<T>(args.bias, C(0), scratch + width, args.dim_size);
    columns_ = reinterpret_cast<NormColumn<C>*>(scratch + 2 * width);
    constexpr int64_t kTiles = InnerSegments::kMaxCols / kTile<T>;
    copy_ = reinterpret_cast<T*>(columns_ + kTiles);
  }

  void run(RowRange range) const {
    for_segments(norm_segments(args_), range, [&](int64_t outer, RowRange at) FUSEDOPS_LAMBDA {
      const Segment<const T> input(args_.input, outer, at);
      const Segment<T> output(args_.output, outer, at);
      const int64_t cols = at.end - at.begin, first = outer * args_.inner + at.begin;
      if constexpr (kCenters) compute_means(input, cols);
      sum_deviations(input, cols);
      finish(input, cols, first);
      with_bool(bias_ != nullptr, [&](auto bias) { write<bias.value>(input, output, cols); });
    });
  }

 private:
  using C = Compute<T>;

  FUSEDOPS_INLINE NormColumn<C>& column(int64_t col) const { return columns_[col / kTile<T>]; }

  // Computes the mean of each column, rounded, from which deviations are measured.
  FUSEDOPS_NOINLINE void compute_means(Segment<const T> input, int64_t cols) const {
    const auto body = [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
      Tile<C> sum = Broadcast(C(0));
      for (int64_t r = row; r < row + count; ++r) {
        const T* const at = input.row(r) + col;
        prefetch_tile<Cache::kL2>(at + kRowsAtOnce<T> * input.dim_stride);
        sum = sum + load(at, part);
      }
      ExactSum<C> total = row == 0 ? ExactSum<C>{} : column(col).deviations;
      total.add(sum);
      column(col).deviations = total;
    };
    for_tiles<T>(RowRange{0, args_.dim_size}, cols, body);
    const double dim_size = static_cast<double>(args_.dim_size);
    for (int64_t col = 0; col < cols; col += kTile<T>) {
      const WideTile<C> total = column(col).deviations.total();
      column(col).statistics.mean =
          demoted(each(total, total, [=](auto sum, auto) { return sum / dim_size; }));
    }
  }

  // Sums the deviations of each column from its mean, and their squares; without a mean, the
  // squares of values.
  FUSEDOPS_NOINLINE void sum_deviations(Segment<const T> input, int64_t cols) const {
    const auto body = [&](int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
      NormColumn<C>& tile = column(col);
      const Tile<C> shift = tile.statistics.mean;
      Tile<C> sum = Broadcast(C(0)), squares = Broadcast(C(0));
      for (int64_t r = row; r < row + count; ++r) {
        const T* const at = input.row(r) + col;
        if constexpr (!kCenters) prefetch_tile<Cache::kL2>(at + kRowsAtOnce<T> * input.dim_stride);
        Tile<C> deviation = load(at, part);
        if constexpr (kCenters) deviation = deviation - shift;
        if constexpr (kCenters) sum = sum + deviation;
        squares = squares + deviation * deviation;
      }
      ExactSum<C> of_squares = row == 0 ? ExactSum<C>{} : tile.squares;
      of_squares.add(squares);
      tile.squares = of_squares;
      if constexpr (kCenters) {
        ExactSum<C> of_sum = row == 0 ? ExactSum<C>{} : tile.deviations;
        of_sum.add(sum);
        tile.deviations = of_sum;
      }
    };
    for_tiles<T>(RowRange{0, args_.dim_size}, cols, body);
  }

  // Computes the statistics of all columns, and saves them if they are wanted. `first` is the index
  // of the first column's statistics.
  FUSEDOPS_NOINLINE void finish(Segment<const T> input, int64_t cols, int64_t first) const {
    for_columns<T>(cols, [&](int64_t col, auto part) {
      int64_t exact[kTile<T>];
      if (!compute_statistics(column(col), exact)) correct(input, col, cols, exact);
      if (args_.rstd == nullptr) return;
      C* const rstd = static_cast<C*>(args_.rstd) + first + col;
      store(rstd, part, in_order<T, C>(column(col).statistics.rstd));
      if constexpr (kCenters) {
        store(
            static_cast<C*>(args_.mean) + first + col, part,
            in_order<T, C>(column(col).statistics.mean));
      }
    });
  }

  // Computes the statistics of a tile. Returns whether the moments of all lanes are exact, and sets
  // exact[lane] to 0 where they are not.
  FUSEDOPS_INLINE bool compute_statistics(NormColumn<C>& tile, int64_t* exact) const {
    const double count = static_cast<double>(args_.dim_size);
    const double lowest = static_cast<double>(squares_range<T>(formula_).lowest);
    TileMoments<C> moments{
        tile.squares.total(), promoted(tile.statistics.mean), tile.deviations.total()};
    const bool all_exact = finish_moments<kCenters>(moments, count, lowest, exact);
    tile.statistics = statistics_of<kCenters>(formula_, moments);
    return all_exact;
  }

  // Computes again the statistics of the columns in a tile whose moments are not exact.
  FUSEDOPS_NOINLINE void correct(
      Segment<const T> input, int64_t col, int64_t cols, const int64_t* exact) const {
    for (int64_t i = 0; i < kTile<T>; ++i) {
      const int64_t half = i / kLanes<C>, lane = i % kLanes<C>;
      const int64_t at = col + column_of<T>(half, lane);
      if (exact[i] != 0 || at >= cols) continue;
      for (int64_t r = 0; r < args_.dim_size; ++r) copy_[r] = input.row(r)[at];
      const auto range = squares_range<T>(formula_);
      TileStatistics<C>& tile = column(col).statistics;
      if constexpr (kCenters) {
        const auto statistics = NormStatistics<true, T>::from_moments(
            formula_, moments_of_one(copy_, args_.dim_size, range));
        tile.mean.v[half][lane] = statistics.mean;
        tile.rstd.v[half][lane] = statistics.rstd;
        tile.remainder.v[half][lane] = statistics.remainder;
      } else {
        const auto statistics = NormStatistics<false, T>::from_moments(
            formula_, {sum_of_squares_of_one(copy_, args_.dim_size, range)});
        tile.rstd.v[half][lane] = statistics.rstd;
        tile.remainder.v[half][lane] = statistics.remainder;
      }
    }
  }

  template <bool kBias>
  FUSEDOPS_NOINLINE void write(Segment<const T> input, Segment<T> output, int64_t cols) const {
    const auto body = [=, weight = weight_, bias = bias_, columns = columns_, mode = mode_](
                          int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
      const auto [mean, rstd, remainder] = columns[col / kTile<T>].statistics;
      for (int64_t r = row; r < row + count; ++r) {
        const Tile<C> x = load(input.row(r) + col, part);
        const Tile<C> y = normalized<kCenters, T>(x, mean, rstd, remainder);
        const Tile<C> factor = Broadcast(weight[r]);
        const Tile<C> result = kBias ? MulAdd(y, factor, Broadcast(bias[r])) : y * factor;
        mode.store(output.row(r) + col, part, result);
      }
    };
    for_tiles<T>(RowRange{0, args_.dim_size}, cols, body);
  }

  const SpatialNormForward& args_;
  StoreMode mode_;
  NormFormula formula_;
  const C *weight_, *bias_;
  NormColumn<C>* columns_;
  T* copy_;
};

// --- backward -----------------------------------------------------------------------------------

// Holds, for a tile of columns, the statistics of the columns as they are read (scaled by `factor`
// if they are tiny, see backward.h), and the sums of g = grad_output * weight and of g * (input -
// mean). compute_slopes() puts the coefficients of NormSlope in place of the two sums.
template <class C>
struct NormGradColumn {
  Tile<C> mean, rstd, rstd_in_memory, factor, of_grad, of_product;
};
static_assert(sizeof(NormGradColumn<double>) <= 7 * sizeof(Tile<double>));

// Returns the index at which the sums of `row` are stored. As sum_partitions() reads them, sums
// have the column order of a tile of T: with kEvenOdd, those of every kTile<T> rows are stored with
// the even rows first.
template <class T>
FUSEDOPS_INLINE int64_t place_of(int64_t row) {
  if constexpr (!kEvenOdd<T>) return row;
  const int64_t offset = row % kTile<T>;
  return row - offset + offset % 2 * kLanes<Compute<T>> + offset / 2;
}

// Computes the gradients of a partition's segments, and the partition's sums over rows.
template <bool kCenters, class T>
class SpatialNormGradient {
 public:
  SpatialNormGradient(
      const SpatialNormBackward& args, int64_t partition, void* memory, StoreMode mode)
      : args_(args), mode_(mode), sums_(column_sums_of(args), partition) {
    C* const scratch = static_cast<C*>(memory);
    weight_ = row_values<T>(args.weight, C(1), scratch, args.dim_size);
    columns_ = reinterpret_cast<NormGradColumn<C>*>(scratch + padded_cols(args.dim_size));
    sums_.clear();
  }

  void run(RowRange range) const {
    for_segments(norm_segments(args_), range, [&](int64_t outer, RowRange at) FUSEDOPS_LAMBDA {
      const Strip strip{
          {args_.grad_output, outer, at}, {args_.input, outer, at}, at.end - at.begin};
      const bool scales = read_statistics(outer * args_.inner + at.begin, strip.cols);
      with_bool(scales, [&](auto scaled) {
        with_bool(
            sums_.all.are_wanted(), [&](auto sums) { add_up<scaled.value, sums.value>(strip); });
        if (args_.grad_input.data == nullptr) return;
        compute_slopes(strip.cols);
        write<scaled.value>(strip, {args_.grad_input, outer, at});
      });
    });
  }

 private:
  using C = Compute<T>;
  // Describes the inner columns of a segment, in grad_output and in the input.
  struct Strip {
    Segment<const T> grad, input;
    int64_t cols;
  };

  FUSEDOPS_INLINE NormGradColumn<C>& column(int64_t col) const { return columns_[col / kTile<T>]; }

  // Reads the statistics of all columns, and sets their sums to 0. Returns whether any column is
  // scaled. `first` is the index of the first column's statistics.
  FUSEDOPS_NOINLINE bool read_statistics(int64_t first, int64_t cols) const {
    bool scales = false;
    for_columns<T>(cols, [&](int64_t col, auto part) {
      NormGradColumn<C>& tile = column(col);
      const C* const rstd = static_cast<const C*>(args_.rstd) + first + col;
      tile.rstd_in_memory = in_order<C, T>(load(rstd, part));
      tile.mean = Broadcast(C(0));
      if constexpr (kCenters) {
        tile.mean = in_order<C, T>(load(static_cast<const C*>(args_.mean) + first + col, part));
      }
      tile.factor = Broadcast(C(1));
      if constexpr (kMayBeTiny<T>) {
        for (int half = 0; half < 2; ++half) {
          tile.factor.v[half] = reading_factor<C>(tile.mean.v[half], tile.rstd_in_memory.v[half]);
          scales |= AnyTrue(tile.factor.v[half] != C(1));
        }
      }
      tile.mean = tile.mean * tile.factor;
      tile.rstd = tile.rstd_in_memory / tile.factor;
      tile.of_grad = tile.of_product = Broadcast(C(0));
    });
    return scales;
  }

  template <bool kScales, bool kSums>
  FUSEDOPS_NOINLINE void add_up(Strip strip) const {
    int64_t row = 0;
    for (; row + kInterleavedRows <= args_.dim_size; row += kInterleavedRows) {
      add_rows<kScales, kSums, kInterleavedRows>(strip, row);
    }
    for (; row < args_.dim_size; ++row) add_rows<kScales, kSums, 1>(strip, row);
  }

  // Adds kCount rows to the sums of their columns and, with kSums, to those of the partition.
  template <bool kScales, bool kSums, int kCount>
  FUSEDOPS_INLINE void add_rows(const Strip& strip, int64_t row) const {
    const int64_t grad_ahead = kCount * strip.grad.dim_stride;
    const int64_t input_ahead = kCount * strip.input.dim_stride;
    const T *grads[kCount], *inputs[kCount];
    C weight[kCount];
    Vec<C> lanes[2 * kCount];
    for (int r = 0; r < kCount; ++r) {
      grads[r] = strip.grad.row(row + r);
      inputs[r] = strip.input.row(row + r);
      weight[r] = weight_[row + r];
      lanes[2 * r] = lanes[2 * r + 1] = Vec<C>{};
    }
    for_columns<T>(strip.cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      NormGradColumn<C>& tile = column(col);
      Tile<C> of_grad = tile.of_grad, of_product = tile.of_product;
      for (int r = 0; r < kCount; ++r) {
        prefetch_tile<Cache::kL2>(grads[r] + grad_ahead + col);
        prefetch_tile<Cache::kL2>(inputs[r] + input_ahead + col);
        const Tile<C> grad = load(grads[r] + col, part);
        const Tile<C> product = grad * centered<kScales>(load(inputs[r] + col, part), tile);
        if constexpr (kCenters) of_grad = of_grad + grad * weight[r];
        of_product = of_product + product * weight[r];
        for (int half = 0; half < 2 && kSums; ++half) {
          lanes[2 * r] += product.v[half] * tile.rstd.v[half];
          lanes[2 * r + 1] += grad.v[half];
        }
      }
      tile.of_grad = of_grad;
      tile.of_product = of_product;
    });
    if constexpr (kSums) {
      C sums[2 * kCount];
      sums_over_lanes<C>(lanes, sums);
      for (int r = 0; r < kCount; ++r) {
        const int64_t place = place_of<T>(row + r);
        if (args_.grad_weight.data != nullptr) sums_.grad_weight[place] += sums[2 * r];
        if (args_.grad_bias.data != nullptr) sums_.grad_bias[place] += sums[2 * r + 1];
      }
    }
  }

  template <bool kScales>
  static FUSEDOPS_INLINE Tile<C> as_read(Tile<C> x, const NormGradColumn<C>& tile) {
    return kScales ? x * tile.factor : x;
  }
  template <bool kScales>
  static FUSEDOPS_INLINE Tile<C> centered(Tile<C> x, const NormGradColumn<C>& tile) {
    const Tile<C> read = as_read<kScales>(x, tile);
    return kCenters ? read - tile.mean : read;
  }

  // Replaces the sums of each column by the coefficients of NormSlope.
  FUSEDOPS_NOINLINE void compute_slopes(int64_t cols) const {
    constexpr double kNoEps = 0;  // slopes of layer_norm and rms_norm do not depend on eps
    const NormFormula formula(args_.kind, args_.dim_size, kNoEps);
    for (int64_t col = 0; col < cols; col += kTile<T>) {
      NormGradColumn<C>& tile = column(col);
      const NormSlope<Tile<C>> slope = norm_slope<kCenters, C>(
          tile.of_grad, tile.of_product, tile.rstd, tile.rstd_in_memory, formula);
      tile.of_grad = slope.grad_mean;
      tile.of_product = slope.slope;
    }
  }

  template <bool kScales>
  FUSEDOPS_NOINLINE void write(Strip strip, Segment<T> output) const {
    const auto body = [=, weight = weight_, columns = columns_, mode = mode_](
                          int64_t row, int64_t count, int64_t col, auto part) FUSEDOPS_LAMBDA {
      const NormGradColumn<C>& tile = columns[col / kTile<T>];
      const Tile<C> mean = tile.mean, rstd = tile.rstd_in_memory;
      const NormSlope<Tile<C>> slope{tile.of_grad, tile.of_product};
      for (int64_t r = row; r < row + count; ++r) {
        const Tile<C> x = as_read<kScales>(load(strip.input.row(r) + col, part), tile);
        const Tile<C> grad = load(strip.grad.row(r) + col, part);
        const Tile<C> result =
            norm_gradient<kCenters>(grad, Broadcast(weight[r]), x, mean, rstd, slope);
        mode.store(output.row(r) + col, part, result);
      }
    };
    for_tiles<T>(RowRange{0, args_.dim_size}, strip.cols, body);
  }

  const SpatialNormBackward& args_;
  StoreMode mode_;
  PartitionSums<C> sums_;
  const C* weight_;
  NormGradColumn<C>* columns_;
};

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
