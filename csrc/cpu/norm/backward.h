// Computes the gradients of norms of rows on the CPU, including dropout and residual before the
// norm. One pass over input and grad_output computes every sum; interleaved rows share each load
// and store of the column accumulators.
#pragma once

#include "cpu/norm/common.h"
#include "cpu/simd/philox.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Says which sums over rows are computed: none, grad_weight, or grad_bias too.
enum class SumsOverRows { kNone, kWeight, kBoth };

// Holds the coefficients of a row's gradient. With g = grad_output * weight and centered = input -
// mean, grad_input = rstd * ((g - grad_mean) - slope * centered). For norms without a mean, mean
// and grad_mean are 0. No intermediate value leaves the range of its type before the result does;
// rstd^3 would, for values near 1e-30 or 1e30.
//
// If a row has few columns, most of the difference in brackets cancels: for two columns, only the
// fraction eps / (variance + eps) is left. Its error is nevertheless only a few ulps of |g|, plus
// what the rounding of the mean adds to centered * rstd: |error| < 2^-22 * (1 + |mean| * rstd) *
// rstd * max|g| in float, beside the rounding of the result.
//
// S is the type of one number, or of one for each lane.
template <class S>
struct NormSlope {
  S grad_mean, slope;
};

// --- tiny rows ----------------------------------------------------------------------------------
//
// A row needs sum(grad * centered) * rstd. If its values are tiny and eps is no larger than their
// variance, rstd is large, and a product grad * centered may be denormal and lose bits, although
// the sum times rstd is a normal number. Such rows are multiplied, when they are read, by a power
// of two near rstd, which changes nothing but the exponents.

// Whether rows of T may be so tiny that they are scaled: float16 has no values that small, and rows
// of doubles are not scaled.
template <class T>
constexpr bool kMayBeTiny = sizeof(Compute<T>) == sizeof(float);
template <>
constexpr bool kMayBeTiny<Half> = false;

// Rows with a larger rstd than this may be tiny. A row of zeros has a smaller one, and is not
// scaled: with rms_norm's default eps for float32, 2^-23, its rstd is 2896.
template <class C>
constexpr C kLargeRstd = C(0x1p12);

// Returns the largest power of two that does not exceed each value: its exponent bits alone.
template <class C>
FUSEDOPS_INLINE Vec<C> power_in(Vec<C> value) {
  return (Vec<C>)((Lanes<C>)value & (Lanes<C>)Set(kInfinity<C>));
}

// Returns the factor by which rows are scaled when they are read. It is 1 if rstd is not large, or
// if scaling might overflow: if rstd is extremely large, or the row far from zero, as a row of
// equal values may be.
template <class C>
FUSEDOPS_INLINE Vec<C> reading_factor(Vec<C> mean, Vec<C> rstd) {
  const Vec<C> from_zero = (mean < 0 ? -mean : mean) * rstd;
  const auto reads_more = (rstd > kLargeRstd<C>)&(rstd < C(0x1p120)) & (from_zero < C(0x1p100));
  return reads_more ? power_in<C>(rstd) : Set(C(1));
}

// Whether rows of T may lose products: if eps outweighs the variance of a tiny row, slope *
// centered may be denormal while the gradient is not. Without FMA, the gradient of such a row is
// therefore computed with a scaled grad_output.
template <class T>
constexpr bool kMayLoseProducts = kMayBeTiny<T> && !kFusesProducts;

// Whether products with `slope` may be lost to underflow. `slope` and `rstd` are those of the row
// as it is read: one number each, or one for each lane.
template <class S>
FUSEDOPS_INLINE auto loses_products(S slope, S rstd) {
  const S size = slope < 0 ? -slope : slope;
  return (size < rstd * 0x1p-50f) & (size > 0) & (rstd >= 1);
}
// Returns loses_products() for one row. The row is scaled when it is read, so that its rstd is not
// large, and one comparison usually suffices.
FUSEDOPS_INLINE bool row_loses_products(float slope, float rstd) {
  const float size = slope < 0 ? -slope : slope;
  return size < kLargeRstd<float> * 0x1p-50f && loses_products(slope, rstd);
}

// Returns the largest magnitude of a row's values.
template <class T>
FUSEDOPS_NOINLINE float largest_magnitude(const T* row, int64_t cols) {
  Tile<float> largest = Broadcast(0.0f);
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<float> x = load(row + col, part);
    largest = Max(largest, Max(x, Broadcast(0.0f) - x));
  });
  return max_of(largest, largest);
}

// Returns the factor that brings a row's largest gradient, `largest`, near 2^80. A `largest` below
// 2^-40 counts as 2^-40, so that the factor is at most 2^120. For one above 2^80 the factor is 1.
FUSEDOPS_INLINE Vec<float> gradient_factor(Vec<float> largest) {
  const Vec<float> least = Set(0x1p-40f), most = Set(0x1p80f);
  return most / power_in<float>(Min(Max(largest, least), most));
}

// --- rows ---------------------------------------------------------------------------------------

// Returns a tile of grad_input by the formula of NormSlope. `sums` holds the coefficients.
template <bool kCenters, class C, class S>
FUSEDOPS_INLINE Tile<C> norm_gradient(
    Tile<C> grad, Tile<C> weight, Tile<C> x, S mean, S rstd, NormSlope<S> sums) {
  // The product with the slope is not wrapped in unfused(): it may be denormal, and where it is
  // fused into the subtraction, it is not rounded and loses no bits.
  if constexpr (!kCenters) {
    return unfused((unfused(grad * weight) - x * sums.slope) * rstd);
  } else {
    return unfused(((grad * weight - sums.grad_mean) - (x - mean) * sums.slope) * rstd);
  }
}

// Holds a row of the backward, and what its gradient is computed from.
template <bool kCenters, class T>
struct NormRow {
  using C = Compute<T>;
  const T *grad, *input;
  C mean, rstd;
  NormSlope<C> sums;

  template <class Part>
  FUSEDOPS_INLINE Tile<C> grad_input(int64_t col, Part part, Tile<C> weight) const {
    return norm_gradient<kCenters>(
        load(grad + col, part), weight, load(input + col, part), mean, rstd, sums);
  }
};

// Describes kCount interleaved rows of the backward.
template <bool kCenters, class T, int kCount>
struct NormRows {
  using C = Compute<T>;
  int64_t first;
  const T* grad[kCount];
  const T* input[kCount];
  int64_t grad_ahead, input_ahead;  // distances to the rows to prefetch (prefetch_distance())
  C factor = 1;                     // scales the row as it is read
  C mean[kCount], rstd[kCount];     // statistics of the rows as they are read
  NormSlope<C> sums[kCount];

  FUSEDOPS_INLINE NormRows(const NormBackward& args, int64_t first_)
      : first(first_),
        grad_ahead(prefetch_distance<T>(args.grad_output.spacing, args.cols, kCount)),
        input_ahead(prefetch_distance<T>(args.input.spacing, args.cols, kCount)) {
    for (int r = 0; r < kCount; ++r) {
      grad[r] = start_of<T>(args.grad_output, first + r);
      input[r] = start_of<T>(args.input, first + r);
      if constexpr (kCenters) mean[r] = static_cast<const C*>(args.mean)[first + r];
      rstd[r] = static_cast<const C*>(args.rstd)[first + r];
    }
  }

  // Returns a tile of input - mean, or of the input if the norm has no mean. Columns past the end
  // of the row are 0.
  template <class Part>
  FUSEDOPS_INLINE Tile<C> centered(int r, int64_t col, Part part) const {
    const Tile<C> x = load(input[r] + col, part);
    if constexpr (kCenters) return filled<T>(x - mean[r], part, C(0));
    return x;
  }

  // Returns the rstd of row `r` as the caller stored it. If scale_if_tiny() has scaled the row,
  // rstd[r] is that of the scaled copy.
  FUSEDOPS_INLINE C rstd_in_memory(int r) const { return rstd[r] * factor; }

  FUSEDOPS_INLINE NormRow<kCenters, T> operator[](int r) const {
    return {grad[r], input[r], mean[r], rstd_in_memory(r), sums[r]};
  }

  FUSEDOPS_INLINE bool any_loses_products() const {
    if constexpr (kMayLoseProducts<T>) {
      for (int r = 0; r < kCount; ++r) {
        if (row_loses_products(sums[r].slope, rstd[r])) return true;
      }
    }
    return false;
  }

  // Returns row `r` alone. If there are several, its pointers and statistics come from `args` and
  // not from this object, because a struct that is passed as a whole does not stay in registers.
  FUSEDOPS_INLINE NormRows<kCenters, T, 1> only(int r, const NormBackward& args) const {
    if constexpr (kCount == 1) {
      return *this;
    } else {
      NormRows<kCenters, T, 1> row(args, first + r);
      row.sums[0] = sums[r];
      return row;
    }
  }

  // Returns a function of (col, part) whose result is a tile of the gradient of input row `r`. If
  // products would be lost to underflow, the function scales grad_output first, and scales the tile
  // back.
  FUSEDOPS_INLINE auto through_norm(int r, ColumnValues<T> weight, int64_t cols) const {
    NormRow<kCenters, T> row = (*this)[r];
    C factor = 1;
    if constexpr (kMayLoseProducts<T>) {
      if (row_loses_products(sums[r].slope, rstd[r])) {
        factor = gradient_factor(Set(largest_magnitude(grad[r], cols)))[0];
        row.sums = {sums[r].grad_mean * factor, sums[r].slope * factor};
        row.rstd /= factor;
      }
    }
    return [row, weight, factor](int64_t col, auto part) FUSEDOPS_LAMBDA {
      Tile<C> factors = weight.at(col, part);
      if constexpr (kMayLoseProducts<T>) factors = factors * factor;
      return row.grad_input(col, part, factors);
    };
  }

  // If the row may be tiny, writes it, scaled, to `copy`, which has room for whole tiles. This
  // object then reads the copy.
  FUSEDOPS_INLINE void scale_if_tiny(T* copy, int64_t cols) {
    static_assert(kCount == 1);
    if constexpr (kMayBeTiny<T>) {
      if (rstd[0] > kLargeRstd<C>) *this = scaled(*this, copy, cols);
    }
  }

 private:
  // `rows` is passed by value: loops would read a reference's numbers again after each store.
  static FUSEDOPS_NOINLINE NormRows scaled(NormRows rows, T* copy, int64_t cols) {
    const C mean = kCenters ? rows.mean[0] : C(0);
    const C factor = reading_factor<C>(Set(mean), Set(rows.rstd[0]))[0];
    for_columns<T>(cols, [=, from = rows.input[0]](int64_t col, auto part) FUSEDOPS_LAMBDA {
      store(copy + col, load(from + col, part) * factor);
    });
    rows.factor = factor;
    rows.input[0] = copy;
    rows.mean[0] = mean * factor;
    rows.rstd[0] /= factor;
    return rows;
  }
};

// Computes the coefficients of the gradients from the sums over whole rows. `rstd` belongs to the
// rows as they are read, and `rstd_in_memory` to the rows before scaling.
template <bool kCenters, class C, class S>
FUSEDOPS_INLINE NormSlope<S> norm_slope(
    S of_grad, S of_product, S rstd, S rstd_in_memory, NormFormula norm) {
  const S centered_mean = of_product / product_divisor<C>(norm, rstd_in_memory);
  return {kCenters ? of_grad / C(norm.cols) : of_grad, centered_mean * rstd * rstd};
}

// Holds what a step adds to the accumulators: a tile of columns, summed over the interleaved rows.
template <class C>
struct NormColumns {
  Tile<C> weight, bias;  // added to grad_weight and grad_bias
};

// Computes each row's sums of grad * weight and grad * centered * weight in `sums`, and adds the
// rows to the column sums that kSums selects, grad_weight and grad_bias.
template <SumsOverRows kSums, bool kCenters, class T, int kCount, class C = Compute<T>>
FUSEDOPS_INLINE void norm_sums(
    const NormRows<kCenters, T, kCount>& rows, ColumnValues<T> weight, C* grad_weight, C* grad_bias,
    int64_t cols, C (&sums)[2 * kCount]) {
  Vec<C> lanes[2 * kCount];
  for (auto& sum : lanes) sum = Vec<C>{};
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<C> w = weight.at(col, part);
    NormColumns<C> step{Broadcast(C(0)), Broadcast(C(0))};
    for (int r = 0; r < kCount; ++r) {
      prefetch_tile<Cache::kL2>(rows.grad[r] + rows.grad_ahead + col);
      prefetch_tile<Cache::kL2>(rows.input[r] + rows.input_ahead + col);
      const Tile<C> grad = load(rows.grad[r] + col, part);
      const Tile<C> product = grad * rows.centered(r, col, part);
      for (int half = 0; half < 2; ++half) {
        if constexpr (kCenters) lanes[2 * r] += grad.v[half] * w.v[half];
        lanes[2 * r + 1] += product.v[half] * w.v[half];
      }
      step.weight = step.weight + product * rows.rstd[r];
      step.bias = step.bias + grad;
    }
    if constexpr (kSums != SumsOverRows::kNone) {
      store(grad_weight + col, load(grad_weight + col) + step.weight);
    }
    if constexpr (kSums == SumsOverRows::kBoth) {
      store(grad_bias + col, load(grad_bias + col) + step.bias);
    }
  });
  sums_over_lanes<C>(lanes, sums);
}

// Sets the NormSlope of all rows from the results of norm_sums().
template <bool kCenters, class T, int kCount, class C = Compute<T>>
FUSEDOPS_INLINE void finish_row_sums(
    NormRows<kCenters, T, kCount>& rows, const C (&sums)[2 * kCount], NormFormula norm) {
  for (int r = 0; r < kCount; ++r) {
    const C of_grad = kCenters ? sums[2 * r] : C(0);
    rows.sums[r] = norm_slope<kCenters, C>(
        of_grad, sums[2 * r + 1], rows.rstd[r], rows.rstd_in_memory(r), norm);
  }
}

// Writes grad_input and, if wanted, grad_branch: grad_input after dropout, or in another dtype.
template <class T>
struct NormResults {
  using C = Compute<T>;
  const NormBackward& args;
  StoreMode mode;
  ColumnValues<T> weight;
  C* scratch;  // has room for one chunk

  // Writes the rows together, except where grad_branch is wanted or products would underflow.
  template <bool kCenters, int kCount>
  FUSEDOPS_INLINE void write(const NormRows<kCenters, T, kCount>& rows) const {
    if (args.grad_branch.data != nullptr || rows.any_loses_products()) {
      for (int r = 0; r < kCount; ++r) write_in_chunks(rows.only(r, args));
    } else if (args.grad_sum.data != nullptr) {
      write_rows<true>(rows);
    } else {
      write_rows<false>(rows);
    }
  }

 private:
  template <bool kCenters>
  FUSEDOPS_NOINLINE void write_in_chunks(NormRows<kCenters, T, 1> row) const {
    write_both(row.first, row.through_norm(0, weight, args.cols));
  }

  // Reads tiles of all rows before it writes any, for the reason that Norm::write_rows() gives.
  // Meanwhile grad_output of the rows ahead is prefetched, and their input in norm_sums(): thus
  // both loops overlap with reads of memory, and the backward takes a tenth less time than if
  // norm_sums() prefetched both.
  template <bool kMore, bool kCenters, int kCount>
  FUSEDOPS_INLINE void write_rows(const NormRows<kCenters, T, kCount>& rows) const {
    const int64_t ahead = prefetch_distance<T>(args.grad_input.spacing, args.cols, kCount);
    const int64_t grad_ahead = prefetch_distance<T>(args.grad_output.spacing, args.cols, kCount);
    NormRow<kCenters, T> row[kCount];
    T* to[kCount];
    const T* more[kCount];
    for (int r = 0; r < kCount; ++r) {
      row[r] = rows[r];
      to[r] = start_of<T>(args.grad_input, rows.first + r);
      if constexpr (kMore) more[r] = start_of<T>(args.grad_sum, rows.first + r);
    }
    for_columns<T>(args.cols, [=, mode = mode, w = weight](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> factor = w.at(col, part);
      Tile<C> result[kCount];
      for_each_of<T, kCount>([&](auto r) FUSEDOPS_LAMBDA {
        prefetch_tile<Cache::kL2>(row[r].grad + grad_ahead + col);
        result[r] = row[r].grad_input(col, part, factor);
        if constexpr (kMore) result[r] = result[r] + load(more[r] + col, part);
      });
      mode.store_rows(to, col, part, result, ahead);
    });
  }

  // Writes grad_input and grad_branch chunk by chunk, because dropout is applied to gradients
  // before they are rounded.
  template <class Source>
  FUSEDOPS_INLINE void write_both(int64_t row, Source at) const {
    for_parts<kNormChunk<T>>(
        RowRange{0, args.cols}, [&](int64_t begin, int64_t cols) FUSEDOPS_LAMBDA {
          for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
            store(scratch + col, at(begin + col, part));
          });
          write_chunk(row, begin, cols);
        });
  }

  // Adds grad_sum to a chunk of gradients in scratch memory, and writes it to grad_input and, after
  // dropout, to grad_branch.
  FUSEDOPS_NOINLINE void write_chunk(int64_t row, int64_t begin, int64_t cols) const {
    if (args.grad_sum.data != nullptr) {
      const T* more = start_of<T>(args.grad_sum, row) + begin;
      for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
        store(scratch + col, load(scratch + col) + load(more + col, part));
      });
    }
    if (args.grad_input.data != nullptr) {
      write_scratch(start_of<T>(args.grad_input, row) + begin, C(1), cols);
    }
    if (args.grad_branch.data == nullptr) return;
    const bool drops = args.dropout.seed != nullptr;
    if (drops) drop_columns<T>(DropoutRow(args.dropout, row), scratch, begin, cols);
    with_branch<T>(args.grad_branch.dtype, [&](auto tag) FUSEDOPS_LAMBDA {
      using Branch = decltype(tag);
      Branch* to = start_of<Branch>(args.grad_branch, row) + begin;
      write_scratch(to, drops ? C(args.dropout.scale) : C(1), cols);
    });
  }

  template <class To>
  FUSEDOPS_INLINE void write_scratch(To* to, C scale, int64_t cols) const {
    for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      mode.store(to + col, part, in_order<T, To>(load(scratch + col) * scale));
    });
  }
};

// Points to a partition's sums over rows (NormPartition in scratch.h), which are in the workspace.
template <class C>
struct PartitionSums {
  NormColumnSums all;
  C *grad_weight, *grad_bias;

  PartitionSums(const NormColumnSums& all_, int64_t partition)
      : all(all_),
        grad_weight(static_cast<C*>(all.workspace) + partition * 2 * padded_cols(all.cols)),
        grad_bias(grad_weight + padded_cols(all.cols)) {}

  void clear() const {
    const int64_t bytes = padded_cols(all.cols) * int64_t(sizeof(C));
    if (all.grad_weight.data != nullptr) std::memset(grad_weight, 0, bytes);
    if (all.grad_bias.data != nullptr) std::memset(grad_bias, 0, bytes);
  }
};

// Whether any row may have to be scaled because its values are tiny. Such rows are computed one by
// one.
template <class T>
FUSEDOPS_INLINE bool any_tiny(const NormBackward& args, RowRange rows) {
  using C = Compute<T>;
  bool any = false;
  if constexpr (kMayBeTiny<T>) {
    const C* rstd = static_cast<const C*>(args.rstd);
    for (int64_t row = rows.begin; row < rows.end; ++row) any |= rstd[row] > kLargeRstd<C>;
  }
  return any;
}

// Writes the gradients of rows of a partition, and adds to the partition's sums.
template <bool kCenters, class T, SumsOverRows kSums>
void norm_backward_rows(
    const NormBackward& args, int64_t partition, RowRange range, void* scratch, StoreMode mode) {
  using C = Compute<T>;
  static_assert(kNormChunk<T> * int64_t(sizeof(C)) <= kNormChunkBytes);
  const int64_t width = padded_cols(args.cols);
  const ColumnValues<T> weight = weight_values<T>(args, static_cast<C*>(scratch));
  C* const chunk = static_cast<C*>(scratch) + width;
  T* const copy = reinterpret_cast<T*>(reinterpret_cast<char*>(chunk) + kNormChunkBytes);
  const NormResults<T> results{args, mode, weight, chunk};
  const PartitionSums<C> column_sums(column_sums_of(args), partition);
  const bool writes = args.grad_input.data != nullptr || args.grad_branch.data != nullptr;
  const auto step = [&](auto count, int64_t first) FUSEDOPS_LAMBDA {
    NormRows<kCenters, T, count.value> rows(args, first);
    if (writes && args.grad_branch.data == nullptr) {
      rows.grad_ahead = 0;  // write_rows() prefetches grad_output
    }
    if constexpr (count.value == 1) rows.scale_if_tiny(copy, args.cols);
    C sums[2 * count.value];
    norm_sums<kSums>(rows, weight, column_sums.grad_weight, column_sums.grad_bias, args.cols, sums);
    finish_row_sums(rows, sums, args);
    if (writes) results.write(rows);
  };
  const bool some_tiny = any_tiny<T>(args, range);
  for (int64_t row = range.begin; row < range.end;) {
    const RowRange next{row, row + kInterleavedRows};
    if (next.end <= range.end && !(some_tiny && any_tiny<T>(args, next))) {
      step(Constant<kInterleavedRows>{}, row);
      row = next.end;
    } else {
      step(Constant<1>{}, row++);
    }
  }
}

// Calls body with a pointer to the columns: a T* if they have the rows' type T, else a Compute<T>*.
template <class T, class Body>
void with_result(Columns result, Body body) {
  if (size_of(result.dtype) == sizeof(T)) return body(static_cast<T*>(result.data));
  body(static_cast<Compute<T>*>(result.data));
}

// Writes the totals over all partitions, added up from the first partition on, to `result` for the
// columns from `begin` to before `end`. A partition's sums have the column order of a tile of T: in
// each tile the even columns come first if kEvenOdd. Results are in memory order.
template <class T, class Result, class C = Compute<T>>
void sum_partitions(
    const C* partials, Result* result, int64_t partitions, int64_t stride, int64_t begin,
    int64_t end) {
  for_columns<T>(end - begin, [&](int64_t offset, auto part) FUSEDOPS_LAMBDA {
    const int64_t col = begin + offset;
    Tile<C> sum = load(partials + col);
    for (int64_t p = 1; p < partitions; ++p) sum = sum + load(partials + p * stride + col);
    store(result + col, part, in_order<T, Result>(sum));
  });
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
