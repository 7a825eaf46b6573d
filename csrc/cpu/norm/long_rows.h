// Computes the norms of long rows on the CPU, some columns at a time: threads share a row, or one
// thread computes all of it. Each segment of columns gives its own statistics or sums (a partial),
// and partials are combined in the order of the segments, whichever threads computed them. The
// results of a segment are then written as if the segment were a row.
#pragma once

#include "cpu/norm/backward.h"
#include "cpu/norm/forward.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// These functions return the columns `cols` of one row, or of a weight or bias, as if there were no
// others.
template <class AnyRows>
AnyRows columns_of(AnyRows rows, int64_t row, RowRange cols) {
  rows.data = moved(rows.data, rows.spacing.offset(row) + cols.begin, rows.dtype);
  rows.spacing = {cols.end - cols.begin};
  return rows;
}
inline ConstColumns columns_of(ConstColumns columns, RowRange cols) {
  columns.data = moved(columns.data, cols.begin, columns.dtype);
  return columns;
}

// --- forward ------------------------------------------------------------------------------------

// Points to the moments of a row's segments, and to `sum`, which is input + residual if there is a
// residual. The sum is in args.sum if the caller wants it, and otherwise follows the moments in
// memory.
template <class T>
struct NormPartials {
  Moments<Wider<T>>* moments;
  T* sum;

  NormPartials(const NormForward& args, int64_t row, void* memory)
      : moments(static_cast<Moments<Wider<T>>*>(memory)),
        sum(args.sum.data == nullptr ? reinterpret_cast<T*>(moments + row_segments(args.cols))
                                     : start_of<T>(args.sum, row)) {
    static_assert(sizeof(*moments) <= kNormPartialBytes);
  }

  // Returns the row that is normalized.
  const T* input(const NormForward& args, int64_t row) const {
    return args.residual.data == nullptr ? start_of<T>(args.input, row) : sum;
  }
};

// Writes a segment of input + residual to `sum`, from which everything else is computed.
template <class T>
FUSEDOPS_INLINE void compute_sum(
    const NormForward& args, int64_t row, RowRange segment, T* sum, void* scratch) {
  const AddedRows<T, 1> rows(args, row, sum, scratch);
  const RowRange cols{0, segment.end - segment.begin};
  for_parts<kNormChunk<T>>(
      cols, [&](int64_t begin, int64_t count) { rows.compute(segment.begin + begin, count); });
}

// Computes the partials of the segments in `cols` and, with a residual, input + residual.
template <bool kCenters, class T>
FUSEDOPS_INLINE void long_norm_segments(
    const NormForward& args, int64_t row, RowRange cols, NormPartials<T> partials, void* scratch) {
  const T* input = partials.input(args, row);
  const SquaresRange<Wider<T>> range = squares_range<T>(args);
  for_parts(cols, kRowSegment, [&](RowRange segment) {
    if (args.residual.data != nullptr) compute_sum(args, row, segment, partials.sum, scratch);
    const T* from = input + segment.begin;
    const int64_t count = segment.end - segment.begin;
    Moments<Wider<T>>& partial = partials.moments[segment.begin / kRowSegment];
    if constexpr (kCenters) {
      partial = moments_of_one(from, count, range);
    } else {
      partial = {sum_of_squares_of_one(from, count, range)};
    }
  });
}

// Returns the moments of the whole row (Chan, Golub, LeVeque 1983), with the first segment's shift.
// Without a mean, every segment's mean is 0.
template <class Wide>
Moments<Wide> combined(const Moments<Wide>* partials, int64_t cols) {
  const Wide shift = partials[0].shift;
  Wide sum = 0, squares = 0;
  for_parts({0, cols}, kRowSegment, [&](RowRange segment) {
    const Moments<Wide>& partial = partials[segment.begin / kRowSegment];
    sum += partial.mean_from(shift) * Wide(segment.end - segment.begin);
  });
  const Wide away = sum / Wide(cols);
  for_parts({0, cols}, kRowSegment, [&](RowRange segment) {
    const Moments<Wide>& partial = partials[segment.begin / kRowSegment];
    const Wide from_mean = partial.mean_from(shift) - away;
    squares += partial.squares + from_mean * from_mean * Wide(segment.end - segment.begin);
  });
  return {squares, shift, away};
}

// Combines the partials of the whole row, and writes the results of the segments in `cols`. The
// call with the first column saves the statistics too.
template <bool kCenters, class T>
FUSEDOPS_INLINE void write_long_norm_segments(
    const NormForward& args, int64_t row, RowRange cols, NormPartials<T> partials, void* memory,
    StoreMode mode) {
  auto* scratch = static_cast<Compute<T>*>(memory);
  const auto stats =
      NormStatistics<kCenters, T>::from_moments(args, combined(partials.moments, args.cols));
  if (cols.begin == 0) stats.save(args, row);
  for_parts(cols, kRowSegment, [&](RowRange segment) {
    NormForward segment_args = args;
    // With this stride the next segment is prefetched as if it were the next row.
    segment_args.input = {
        partials.input(args, row) + segment.begin,
        {segment.end - segment.begin},
        args.output.dtype};
    segment_args.output = columns_of(args.output, row, segment);
    segment_args.weight = columns_of(args.weight, segment);
    segment_args.bias = columns_of(args.bias, segment);
    segment_args.cols = segment.end - segment.begin;
    const ColumnValues<T> weight = weight_values<T>(segment_args, scratch);
    const ColumnValues<T> bias = bias_values<T>(segment_args, scratch + kRowSegment);
    Norm<kCenters, T, PlainRows>{segment_args, mode, weight, bias, /*scratch=*/nullptr}.write_one(
        stats);
  });
}

// --- backward -----------------------------------------------------------------------------------

// Returns the arguments of a backward of some columns of one row alone.
inline NormBackward segment_of(const NormBackward& args, int64_t row, RowRange cols) {
  NormBackward segment_args = args;
  segment_args.grad_output = columns_of(args.grad_output, row, cols);
  segment_args.grad_sum = columns_of(args.grad_sum, row, cols);
  segment_args.input = columns_of(args.input, row, cols);
  segment_args.grad_input = columns_of(args.grad_input, row, cols);
  segment_args.grad_branch = columns_of(args.grad_branch, row, cols);
  segment_args.weight = columns_of(args.weight, cols);
  segment_args.cols = cols.end - cols.begin;
  return segment_args;
}

// Returns a segment of a row as if it were a row of its own. `args` are those of the segment,
// except that mean and rstd are arrays for all rows. If the row may be tiny ("tiny rows" in
// backward.h), the segment is written, scaled, to `copy`, and read from there.
template <bool kCenters, class T>
NormRows<kCenters, T, 1> row_of_segment(const NormBackward& args, int64_t row, void* copy) {
  NormRows<kCenters, T, 1> rows(args, /*first=*/0);
  if constexpr (kCenters) rows.mean[0] = static_cast<const Compute<T>*>(args.mean)[row];
  rows.rstd[0] = static_cast<const Compute<T>*>(args.rstd)[row];
  rows.scale_if_tiny(static_cast<T*>(copy), args.cols);
  return rows;
}

// Sets `partials` to the sums of a row over each of the segments in `cols`.
template <bool kCenters, class T>
FUSEDOPS_INLINE void long_norm_backward_segments(
    const NormBackward& args, int64_t row, RowRange cols, NormGradSums* partials, void* memory) {
  using C = Compute<T>;
  for_parts(cols, kRowSegment, [&](RowRange segment) {
    const NormBackward segment_args = segment_of(args, row, segment);
    C* const scratch = static_cast<C*>(memory);
    const ColumnValues<T> weight = weight_values<T>(segment_args, scratch);
    const auto rows = row_of_segment<kCenters, T>(segment_args, row, scratch + kRowSegment);
    C sums[2];
    norm_sums<SumsOverRows::kNone, kCenters, T, 1, C>(
        rows, weight, /*grad_weight=*/nullptr, /*grad_bias=*/nullptr, segment_args.cols, sums);
    partials[segment.begin / kRowSegment] = {sums[0], sums[1]};
  });
}

// Writes, for a segment of columns, the gradients of all rows, and grad_weight and grad_bias. For
// these two, rows are added up by partitions, as short rows are.
template <bool kCenters, class T, SumsOverRows kSums>
struct LongNormBackward {
  using C = Compute<T>;
  const NormBackward& args;
  const NormGradSums* rows;  // the sums of each whole row
  // Holds the weight, a chunk of a row, two accumulators of all partitions and two of one, and a
  // tiny row, each of kRowSegment numbers.
  C* scratch;
  StoreMode mode;

  void write(RowRange segment) const {
    const bool has_one_dtype = args.grad_weight.data == nullptr || args.grad_bias.data == nullptr ||
        args.grad_weight.dtype == args.grad_bias.dtype;
    if (args.rows == 1 && args.grad_branch.data == nullptr && has_one_dtype) {
      return write_only_row(segment);
    }
    C* sums = scratch + 2 * kRowSegment;
    const NormPartition partition = partition_of(args);
    for (int64_t i = 0; i < partition.count; ++i) {
      write_partition(segment, partition[i], i == 0 ? sums : sums + 2 * kRowSegment);
      if (i > 0) add(sums, sums + 2 * kRowSegment);
    }
    if (kSums != SumsOverRows::kNone) put_sums(args.grad_weight, sums, segment);
    if (kSums == SumsOverRows::kBoth) put_sums(args.grad_bias, sums + kRowSegment, segment);
  }

 private:
  void* tiny_row() const { return scratch + 6 * kRowSegment; }

  // Writes the gradients of a partition's rows, and sets `sums` to what these rows add to
  // grad_weight and grad_bias.
  void write_partition(RowRange segment, RowRange partition, C* sums) const {
    std::memset(sums, 0, 2 * kRowSegment * sizeof(C));
    const NormBackward first = segment_of(args, partition.begin, segment);
    const ColumnValues<T> weight = weight_values<T>(first, scratch);
    for (int64_t row = partition.begin; row < partition.end; ++row) {
      const NormBackward segment_args = segment_of(args, row, segment);
      auto segment_row = row_of_segment<kCenters, T>(segment_args, row, tiny_row());
      C segment_sums[2];
      norm_sums<kSums>(
          segment_row, weight, sums, sums + kRowSegment, segment_args.cols, segment_sums);
      const C whole[] = {C(rows[row].of_grad), C(rows[row].of_product)};
      finish_row_sums(segment_row, whole, args);
      if (args.grad_input.data != nullptr || args.grad_branch.data != nullptr) {
        NormResults<T>{segment_args, mode, weight, scratch + kRowSegment}.write(segment_row);
      }
    }
  }

  // A sum over a single row has one term, which is written directly to grad_weight and grad_bias.
  FUSEDOPS_NOINLINE void write_only_row(RowRange segment) const {
    const Columns& result = args.grad_weight.data != nullptr ? args.grad_weight : args.grad_bias;
    if (result.data == nullptr) return write_segment_of_only_row<T>(segment);
    with_result<T>(result, [&](auto* to) { write_segment_of_only_row<__typeof__(*to)>(segment); });
  }

  // Writes the gradients of a segment if there is only one row: sums over rows have one term each.
  // The loop reads and writes about six arrays, more than the hardware prefetcher follows: with
  // prefetching it is 30 % faster if the data comes from the L3 cache.
  template <class Result>
  FUSEDOPS_INLINE void write_segment_of_only_row(RowRange segment) const {
    constexpr int64_t kAhead = 1024;
    const NormBackward segment_args = segment_of(args, /*row=*/0, segment);
    const ColumnValues<T> weight = weight_values<T>(segment_args, scratch);
    auto segment_row = row_of_segment<kCenters, T>(segment_args, /*row=*/0, tiny_row());
    const C whole[] = {C(rows->of_grad), C(rows->of_product)};
    finish_row_sums(segment_row, whole, args);
    // Each of grad_weight, grad_bias and `to` is null if that gradient is not wanted.
    const auto of_segment = [&](auto* all) { return all == nullptr ? all : all + segment.begin; };
    auto* const grad_weight = of_segment(static_cast<Result*>(args.grad_weight.data));
    auto* const grad_bias = of_segment(static_cast<Result*>(args.grad_bias.data));
    T* const to =
        args.grad_input.data == nullptr ? nullptr : static_cast<T*>(segment_args.grad_input.data);
    const T* const more = static_cast<const T*>(segment_args.grad_sum.data);
    const auto row = segment_row[0];
    const auto through_norm = segment_row.through_norm(0, weight, segment_args.cols);
    for_columns<T>(segment_args.cols, [=, mode = mode](int64_t col, auto at) FUSEDOPS_LAMBDA {
      prefetch_tile<Cache::kL2>(row.grad + col + kAhead);
      prefetch_tile<Cache::kL2>(row.input + col + kAhead);
      prefetch_tile<Cache::kL2>(to + col + kAhead);
      prefetch_tile<Cache::kL2>(grad_weight + col + kAhead);
      prefetch_tile<Cache::kL2>(grad_bias + col + kAhead);
      const Tile<C> grad = load(row.grad + col, at);
      const Tile<C> product = grad * segment_row.centered(0, col, at);
      const auto store_gradient = [&](Result* result, Tile<C> sum) FUSEDOPS_LAMBDA {
        if (result == nullptr) return;
        store(result + col, at, in_order<T, Result>(Broadcast(C(0)) + sum));
      };
      if constexpr (kSums != SumsOverRows::kNone)
        store_gradient(grad_weight, product * segment_row.rstd[0]);
      if constexpr (kSums == SumsOverRows::kBoth) store_gradient(grad_bias, grad);
      if (to == nullptr) return;
      const Tile<C> result = through_norm(col, at);
      mode.store(to + col, at, more == nullptr ? result : result + load(more + col, at));
    });
  }

  static void add(C* sums, const C* more) {
    for (int64_t i = 0; i < 2 * kRowSegment; ++i) sums[i] += more[i];
  }

  static void put_sums(Columns result, const C* sums, RowRange segment) {
    if (result.data == nullptr) return;
    with_result<T>(result, [&](auto* to) {
      sum_partitions<T>(
          sums, to + segment.begin, /*partitions=*/1, /*stride=*/0, /*begin=*/0,
          segment.end - segment.begin);
    });
  }
};

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
