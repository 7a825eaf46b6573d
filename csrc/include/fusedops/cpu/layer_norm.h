// layer_norm of rows on the CPU.
//
// Forward statistics: deviations from a shift near the mean are summed in one pass, and corrected
// for the shift (Chan, Golub, LeVeque 1983); where the shift turns out further from the mean than
// one standard deviation, the pass is repeated from the mean itself. So neither a large mean nor a
// long row costs digits. The mean is kept as a float and the remainder that it rounds away, and
// both are subtracted.
//
// Backward: one pass over input and grad_output gives every sum; rows side by side share each load
// and store of the column accumulators.
#pragma once

#include "fusedops/cpu/kernels.h"
#include "fusedops/cpu/vec.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// Columns after which sums are carried on in a wider type: 32 additions a lane, and 8 in double,
// where the wider type has but 11 bits more.
template <class T>
constexpr int64_t kNormChunk = (sizeof(T) == sizeof(double) ? 8 : 32) * 2 * kTile<T>;

template <class C>
struct WiderOf {
  using type = double;
};
template <>
struct WiderOf<double> {
  using type = long double;
};
template <class T>
using Wider = typename WiderOf<Compute<T>>::type;

// Rows of the backward that are handled side by side: as many as the registers hold.
constexpr int kRowsAbreast = kVectorBytes == 64 ? 4 : 2;

// `given`, which holds Given, as columns of the kernel for T: converted, in T's order, and with the
// NaNs that store() can round.
template <class T, class Given, class C = Compute<T>>
void copy_columns(const Given* given, C* copy, int64_t cols) {
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    Tile<C> tile = in_order<Given, T>(load(given + col, part));
    for (auto& vec : tile.v) vec = vec != vec ? broadcast(C(__builtin_nan(""))) : vec;
    store(copy + col, tile);
  });
}

template <class T, class C = Compute<T>>
const C* columns(ConstColumns given, C neutral, C* copy, int64_t cols) {
  if (given.data == nullptr) {
    for_columns<T>(cols, [&](int64_t col, auto) { store(copy + col, both(neutral)); });
  } else if (size_of(given.dtype) == sizeof(T)) {
    copy_columns<T>(static_cast<const T*>(given.data), copy, cols);
  } else {
    copy_columns<T>(static_cast<const C*>(given.data), copy, cols);
  }
  return copy;
}

// Mean, and sum of squared deviations from it, of `count` values.
template <class Wide>
struct Moments {
  Wide count, mean, squares;

  // Chan's merge of two sets.
  FUSEDOPS_INLINE void add(const Moments& other) {
    const Wide total = count + other.count, delta = other.mean - mean;
    mean += delta * (other.count / total);
    squares += other.squares + delta * delta * (count * other.count / total);
    count = total;
  }
};

template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Moments<Wider<T>> moments_around(C shift, const T* input, int64_t cols) {
  struct Sums {
    Tile<C> deviations, squares;
  };
  const auto found = fold_columns<T>(
      cols, Sums{both(C(0)), both(C(0))}, [&](Sums so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> deviation = filled<T>(load(input + col, part) - shift, part, C(0));
        return Sums{so_far.deviations + deviation, so_far.squares + deviation * deviation};
      });
  const Wider<T> sum = sum_of(found.even.deviations, found.odd.deviations);
  const Wider<T> squares = sum_of(found.even.squares, found.odd.squares);
  const Wider<T> count = cols, away = sum / count;
  return {count, shift + away, squares - sum * away};
}

// A value near the mean: the mean of the first tile, which does not overflow where floats do.
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE C shift_near_mean(const T* input, int64_t cols) {
  const bool whole = cols >= kTile<T>;
  const Tile<C> tile = whole ? load(input) : load(input, First{static_cast<int>(cols)});
  return C(sum_of(tile, both(C(0))) / double(whole ? kTile<T> : cols));
}

template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Moments<Wider<T>> moments(const T* input, int64_t cols) {
  const C shift = shift_near_mean(input, cols);
  const Moments<Wider<T>> found = moments_around(shift, input, cols);
  const Wider<T> away = found.mean - shift;
  if (away * away * found.count <= found.squares) return found;
  return moments_around(C(found.mean), input, cols);
}

template <class T>
FUSEDOPS_INLINE Moments<Wider<T>> row_moments(const T* input, int64_t cols) {
  constexpr int64_t chunk = kNormChunk<T>;
  Moments<Wider<T>> row = moments(input, cols < chunk ? cols : chunk);
  for (int64_t begin = chunk; begin < cols; begin += chunk) {
    row.add(moments(input + begin, cols - begin < chunk ? cols - begin : chunk));
  }
  return row;
}

FUSEDOPS_INLINE double root(double x) { return __builtin_sqrt(x); }
FUSEDOPS_INLINE long double root(long double x) { return __builtin_sqrtl(x); }

// What normalises a row: (x - mean) * rstd - remainder.
template <class T, class C = Compute<T>>
struct NormStatistics {
  C mean, rstd, remainder;

  NormStatistics() = default;
  FUSEDOPS_INLINE NormStatistics(const T* input, int64_t cols, double eps) {
    const Moments<Wider<T>> found = row_moments(input, cols);
    const Wider<T> exact_rstd = 1 / root(found.squares / found.count + Wider<T>(eps));
    mean = C(found.mean);
    rstd = C(exact_rstd);
    remainder = C((found.mean - mean) * exact_rstd);
  }
};

// Rows are taken in groups: first the statistics of each, then their outputs. So the last steps of
// the statistics, a sum over lanes, a division and a root, 150 cycles one after the other, overlap
// with the next row's; and a group is still in the L1 cache when it is read again.
constexpr int64_t kNormGroupBytes = 8192, kMostNormGroupRows = 16;

template <class T>
constexpr int64_t norm_group_rows(int64_t cols) {
  const int64_t rows = kNormGroupBytes / (cols * int64_t(sizeof(T)));
  return rows < 1 ? 1 : rows < kMostNormGroupRows ? rows : kMostNormGroupRows;
}

template <class T, class Store>
FUSEDOPS_INLINE void layer_norm_rows(
    const LayerNormForward& args, RowRange range, void* scratch, Store put) {
  using C = Compute<T>;
  C* copies = static_cast<C*>(scratch);
  const C* weight = columns<T>(args.weight, C(1), copies, args.cols);
  // -0 is neutral in addition: x + -0 is x, 0 and -0 included.
  const C* bias = columns<T>(args.bias, C(-0.0), copies + padded_cols(args.cols), args.cols);
  const T* input = static_cast<const T*>(args.input.data);
  T* output = static_cast<T*>(args.output.data);
  NormStatistics<T> group[kMostNormGroupRows];
  const int64_t group_rows = norm_group_rows<T>(args.cols);
  for (int64_t first = range.begin; first < range.end; first += group_rows) {
    const int64_t rows = range.end - first < group_rows ? range.end - first : group_rows;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t offset = args.input.spacing.offset(first + i);
      group[i] = NormStatistics<T>(input + offset, args.cols, args.eps);
      static_cast<C*>(args.mean)[first + i] = group[i].mean;
      static_cast<C*>(args.rstd)[first + i] = group[i].rstd;
    }
    for (int64_t i = 0; i < rows; ++i) {
      const NormStatistics<T> stats = group[i];
      const T* from = input + args.input.spacing.offset(first + i);
      T* to = output + args.output.spacing.offset(first + i);
      for_columns<T>(args.cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> centered = load(from + col, part) - stats.mean;
        const Tile<C> normalized = centered * stats.rstd - stats.remainder;
        put(to + col, part, normalized * load(weight + col) + load(bias + col));
      });
    }
  }
}

// `Count` rows of the backward, side by side. With g = grad_output * weight and centered = input -
// mean, grad_input = rstd * (g - grad_mean) - slope * centered.
template <class T, int Count>
struct NormRows {
  using C = Compute<T>;
  const T* grad[Count];
  const T* input[Count];
  int64_t grad_ahead, input_ahead;  // from a row to the one that the next step has in its place
  C mean[Count], rstd[Count];
  C grad_mean[Count], slope[Count];

  FUSEDOPS_INLINE NormRows(const LayerNormBackward& args, int64_t first)
      : grad_ahead(Count * args.grad_output.spacing.stride),
        input_ahead(Count * args.input.spacing.stride) {
    for (int r = 0; r < Count; ++r) {
      const int64_t row = first + r;
      grad[r] = static_cast<const T*>(args.grad_output.data) + args.grad_output.spacing.offset(row);
      input[r] = static_cast<const T*>(args.input.data) + args.input.spacing.offset(row);
      mean[r] = static_cast<const C*>(args.mean)[row];
      rstd[r] = static_cast<const C*>(args.rstd)[row];
    }
  }

  template <class Part>
  FUSEDOPS_INLINE Tile<C> centered(int r, int64_t col, Part part) const {
    return filled<T>(load(input[r] + col, part) - mean[r], part, C(0));
  }
};

// What one step adds to the accumulators: a tile of columns of every row.
template <class C>
struct NormColumns {
  Tile<C> weight, bias;  // to grad_weight and grad_bias
};

// Row sums to `rows`, column sums (where Params) onto grad_weight and grad_bias.
template <bool Params, class T, int Count, class C = Compute<T>>
FUSEDOPS_INLINE void layer_norm_sums(
    NormRows<T, Count>& rows, const C* weight, C* grad_weight, C* grad_bias, int64_t cols) {
  Vec<C> sum[Count], dot[Count];
  for (int r = 0; r < Count; ++r) sum[r] = dot[r] = Vec<C>{};
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<C> w = load(weight + col);
    NormColumns<C> step{both(C(0)), both(C(0))};
    for (int r = 0; r < Count; ++r) {
      prefetch_tile<Cache::kL2>(rows.grad[r] + rows.grad_ahead + col);
      prefetch_tile<Cache::kL2>(rows.input[r] + rows.input_ahead + col);
      const Tile<C> grad = load(rows.grad[r] + col, part);
      const Tile<C> product = grad * rows.centered(r, col, part);
      for (int half = 0; half < 2; ++half) {
        sum[r] += grad.v[half] * w.v[half];
        dot[r] += product.v[half] * w.v[half];
      }
      step.weight = step.weight + product * rows.rstd[r];
      step.bias = step.bias + grad;
    }
    if constexpr (Params) {
      store(grad_weight + col, load(grad_weight + col) + step.weight);
      store(grad_bias + col, load(grad_bias + col) + step.bias);
    }
  });
  for (int r = 0; r < Count; ++r) {
    rows.grad_mean[r] = across_lanes<C>(sum[r], Add{}) / C(cols);
    const C centered_mean = across_lanes<C>(dot[r], Add{}) / C(cols);
    rows.slope[r] = centered_mean * rows.rstd[r] * rows.rstd[r] * rows.rstd[r];
  }
}

template <class T, int Count, class Store, class C = Compute<T>>
FUSEDOPS_INLINE void write_grad_input(
    const LayerNormBackward& args, const NormRows<T, Count>& rows, int64_t first, const C* weight,
    Store put) {
  for (int r = 0; r < Count; ++r) {
    T* result = static_cast<T*>(args.grad_input.data) + args.grad_input.spacing.offset(first + r);
    for_columns<T>(args.cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> g = load(rows.grad[r] + col, part) * load(weight + col);
      const Tile<C> along = (load(rows.input[r] + col, part) - rows.mean[r]) * rows.slope[r];
      put(result + col, part, (g - rows.grad_mean[r]) * rows.rstd[r] - along);
    });
  }
}

template <class T, bool Params, class Store>
FUSEDOPS_INLINE void layer_norm_backward_rows(
    const LayerNormBackward& args, int64_t partition, void* scratch, Store put) {
  using C = Compute<T>;
  const C* weight = columns<T>(args.weight, C(1), static_cast<C*>(scratch), args.cols);
  const int64_t width = padded_cols(args.cols);
  C* grad_weight = static_cast<C*>(args.workspace) + partition * 2 * width;
  C* grad_bias = grad_weight + width;
  if constexpr (Params) std::memset(grad_weight, 0, 2 * width * sizeof(C));
  const auto step = [&](auto rows, int64_t first) FUSEDOPS_LAMBDA {
    layer_norm_sums<Params>(rows, weight, grad_weight, grad_bias, args.cols);
    if (args.grad_input.data != nullptr) write_grad_input(args, rows, first, weight, put);
  };
  const RowRange range = RowPartition(args.rows)[partition];
  int64_t row = range.begin;
  for (; row + kRowsAbreast <= range.end; row += kRowsAbreast) {
    step(NormRows<T, kRowsAbreast>(args, row), row);
  }
  for (; row < range.end; ++row) step(NormRows<T, 1>(args, row), row);
}

// The partitions' sums, held in T's order, added in the order of the partitions.
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
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
