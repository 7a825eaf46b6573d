// Contains what forward and backward of norms of rows share on the CPU: layer_norm, std_norm,
// rms_norm and l2_norm, of a row or of the sum of two. kCenters says whether the norm subtracts the
// mean, as layer_norm and std_norm do.
//
// Rows are interleaved: a loop over the columns computes several rows at once. Each load of weight
// and bias, and in the backward each load and store of the column accumulators, serves all of them.
// The end of a row (sums over lanes, a root and a division: a latency of 150 cycles) overlaps with
// that of the next row.
#pragma once

#include <type_traits>

#include "cpu/norm/scratch.h"
#include "cpu/simd/reduce.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// A row is summed by chunks of this many columns: within a chunk in Compute<T>, and over the chunks
// in Wider<T>. In a chunk, a lane adds up 32 values. If they are doubles it adds up only 8, because
// long double has just 11 bits more than double, and is of less help over the chunks.
template <class T>
constexpr int64_t kNormChunk = (sizeof(T) == sizeof(double) ? 8 : 32) * kTile<T>;

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

// Calls body with a value of the type that `dtype` names: the dtype of NormForward::input or of
// NormBackward::grad_branch. The type is T or, if T is float, possibly a 16-bit type.
template <class T, class Body>
FUSEDOPS_INLINE void with_branch(DType dtype, Body body) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::kBFloat16) return body(BFloat16{});
    if (dtype == DType::kFloat16) return body(Half{});
  }
  body(T{});
}

// --- parameters ---------------------------------------------------------------------------------

// Copies weight or bias to `copy` as the kernel for T reads it: in the compute type, in the column
// order of a tile of T (tile.h), and with `offset` added.
template <class T, class From, class C = Compute<T>>
void copy_columns(const From* from, C offset, C* copy, int64_t cols) {
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<C> tile = in_order<From, T>(load(from + col, part));
    store(copy + col, tile - (C(0) - offset));  // subtracts, because -0 + 0 would be +0
  });
}

// Reads weight or bias as tiles, in the column order of a tile of T: from the values in memory, or
// from a copy. If T is the compute type, `memory` points to either, so that the loops that read it
// are compiled once.
template <class T>
struct ColumnValues {
  using C = Compute<T>;
  const T* memory;
  const C* copy;  // null if no copy was made, or if T is the compute type

  // Returns a ColumnValues that reads from `copy`.
  static ColumnValues copied_to(const C* copy) {
    if constexpr (sizeof(T) == sizeof(C)) {
      return {copy, nullptr};
    } else {
      return {nullptr, copy};
    }
  }

  template <class Part>
  FUSEDOPS_INLINE Tile<C> at(int64_t col, Part part) const {
    if constexpr (sizeof(T) == sizeof(C)) return load(memory + col, part);
    return copy == nullptr ? load(memory + col, part) : load(copy + col);
  }
};

// Returns the values of weight or bias. They are copied only if they need a conversion or an
// offset, because for a single long row the copy would be as long as the row.
template <class T, class C = Compute<T>>
ColumnValues<T> column_values(ConstColumns columns, C offset, C* copy, int64_t cols) {
  if (size_of(columns.dtype) != sizeof(T)) {
    copy_columns<T>(static_cast<const C*>(columns.data), offset, copy, cols);
    return ColumnValues<T>::copied_to(copy);
  }
  const T* values = static_cast<const T*>(columns.data);
  if (offset == 0) return {values, nullptr};
  copy_columns<T>(values, offset, copy, cols);
  return ColumnValues<T>::copied_to(copy);
}

// Returns the factors of the columns. Without a weight they are 1, and `copy` is filled with ones.
template <class T, class Args, class C = Compute<T>>
ColumnValues<T> weight_values(const Args& args, C* copy) {
  if (args.weight.data != nullptr) {
    return column_values<T>(args.weight, C(args.weight_offset), copy, args.cols);
  }
  for_columns<T>(args.cols, [&](int64_t col, auto) { store(copy + col, Broadcast(C(1))); });
  return ColumnValues<T>::copied_to(copy);
}

// Returns the biases of the columns, or null pointers if there is no bias.
template <class T, class Args, class C = Compute<T>>
ColumnValues<T> bias_values(const Args& args, C* copy) {
  if (args.bias.data == nullptr) return {};
  return column_values<T>(args.bias, C(0), copy, args.cols);
}

// --- kinds --------------------------------------------------------------------------------------
// All that differs between kinds of norms is here, except has_mean() (args.h).

FUSEDOPS_INLINE double root(double x) { return __builtin_sqrt(x); }
FUSEDOPS_INLINE long double root(long double x) { return __builtin_sqrtl(x); }
FUSEDOPS_INLINE Vec<double> root(Vec<double> x) { return Sqrt(x); }

// Returns x, or `least` where x is less; a NaN stays.
FUSEDOPS_INLINE double at_least(double x, double least) { return x < least ? least : x; }
FUSEDOPS_INLINE long double at_least(long double x, double least) { return x < least ? least : x; }
FUSEDOPS_INLINE Vec<double> at_least(Vec<double> x, double least) {
  return x < least ? Set(least) : x;
}

// Holds all that rstd depends on besides the `cols` values that are normalized.
struct NormFormula {
  NormKind kind;
  int64_t cols;
  double eps;

  constexpr NormFormula(NormKind kind_, int64_t cols_, double eps_)
      : kind(kind_), cols(cols_), eps(eps_) {}
  template <class Args>
  constexpr NormFormula(const Args& args) : NormFormula(args.kind, args.cols, args.eps) {}
};

// Returns rstd. `squares` is the sum of the squares of a row's deviations from its mean or, if the
// kind has no mean, of its values.
template <class Wide>
FUSEDOPS_INLINE Wide rstd_of(NormFormula norm, Wide squares) {
  const double cols = static_cast<double>(norm.cols);
  if (norm.kind == NormKind::kStd) return 1.0 / (root(squares / (cols - 1)) + norm.eps);
  if (norm.kind == NormKind::kL2) return 1.0 / at_least(root(squares), norm.eps);
  return 1.0 / root(squares / cols + norm.eps);
}

// Returns the number that eps amounts to beside a mean of squares: eps itself if it is added to
// one, its square if it is added to a root (kStd), and the square divided by the number of columns
// if it is a bound for the root of a sum (kL2).
inline double squared_eps(NormFormula norm) {
  if (norm.kind == NormKind::kL2) return norm.eps * norm.eps / static_cast<double>(norm.cols);
  return norm.kind == NormKind::kStd ? norm.eps * norm.eps : norm.eps;
}

// Returns the rstd that kL2 gives a row whose norm is below eps. It is computed as in rstd_of(), so
// that both have the same bits.
template <class C>
FUSEDOPS_INLINE C largest_rstd(NormFormula norm) {
  return C(1.0 / static_cast<typename WiderOf<C>::type>(norm.eps));
}

// Returns the divisor of sum(g * centered) in norm_slope() (backward.h). For most kinds it is the
// number of columns. For kStd it is (cols - 1) * share, where share = std / (std + eps) = 1 - eps *
// rstd. If std is far below eps, share may consist of rounding errors. That does no harm: what the
// sum adds to grad_input is then negligible, and it is nothing if share is not positive.
//
// For kL2 the divisor is 1, or infinity if the norm is at most eps: rstd is then a constant, and
// the sum adds nothing.
//
// V is C or a vector of C.
template <class C, class V>
FUSEDOPS_INLINE V product_divisor(NormFormula norm, V rstd) {
  const V one = V{} + C(1), infinity = V{} + kInfinity<C>;
  if (norm.kind == NormKind::kL2) return rstd < largest_rstd<C>(norm) ? one : infinity;
  if (norm.kind != NormKind::kStd) return V{} + C(norm.cols);
  const V share = 1 - C(norm.eps) * rstd;
  return share > 0 ? share * C(norm.cols - 1) : infinity;
}
template <class C>
FUSEDOPS_INLINE Tile<C> product_divisor(NormFormula norm, Tile<C> rstd) {
  for (auto& vec : rstd.v) vec = product_divisor<C>(norm, vec);
  return rstd;
}

// --- rows ---------------------------------------------------------------------------------------

// The registers limit the number of interleaved rows: with vectors of 64 bytes (AVX-512) there are
// 32 vector registers, with AVX2 only 16.
constexpr int kInterleavedRows = kVectorBytes == 64 ? 4 : 2;
static_assert(kInterleavedRows <= kMaxInterleavedRows);

// Returns the distance, in elements, from a row to the row that should be prefetched into L2 while
// the first is computed. That is one step of `interleaved` rows ahead, or two if steps are short.
// The distance is 0 if rows are so long that the cache would lose them again.
template <class T>
FUSEDOPS_INLINE int64_t
prefetch_distance(const RowSpacing& spacing, int64_t cols, int64_t interleaved) {
  constexpr int64_t kLongestRowBytes = int64_t(1) << 17, kShortStepBytes = int64_t(1) << 14;
  const int64_t row_bytes = cols * int64_t(sizeof(T));
  if (row_bytes > kLongestRowBytes) return 0;
  return (interleaved * row_bytes < kShortStepBytes ? 2 : 1) * interleaved * spacing.stride;
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
