// What the forward and backward of the norms of rows share on the CPU: layer_norm, std_norm and
// rms_norm, of a row or of a sum of two. kCenters: whether there is a mean, as in all but rms_norm.
//
// Rows are taken side by side, so that each load of weight and bias, and in the backward each load
// and store of the column accumulators, serves several; and what ends a row, sums over lanes, a
// root and a division, 150 cycles one after the other, overlaps with the next row's.
#pragma once

#include "fusedops/cpu/vec.h"
#include "fusedops/cpu/work_division.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// Columns after which sums are carried on in a wider type: 32 additions a lane, and 8 in double,
// where the wider type has but 11 bits more.
template <class T>
constexpr int64_t kNormChunk = (sizeof(T) == sizeof(double) ? 8 : 32) * kTile<T>;

// Whether a product that goes into a sum is fused into it. One that is not may be denormal.
#if defined(__FP_FAST_FMAF)
constexpr bool kFusesProducts = true;
#else
constexpr bool kFusesProducts = false;
#endif

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

// body(begin, count) for each chunk of a row.
template <class T, class Body>
FUSEDOPS_INLINE void for_chunks(int64_t cols, Body body) {
  constexpr int64_t chunk = kNormChunk<T>;
  for (int64_t begin = 0; begin < cols; begin += chunk) {
    body(begin, cols - begin < chunk ? cols - begin : chunk);
  }
}

template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

// --- parameters ---------------------------------------------------------------------------------

// `given`, which holds Given, as columns of the kernel for T: converted, in T's order, and `offset`
// added.
template <class T, class Given, class C = Compute<T>>
void copy_columns(const Given* given, C offset, C* copy, int64_t cols) {
  for_columns<T>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const Tile<C> tile = in_order<Given, T>(load(given + col, part));
    store(copy + col, tile - (C(0) - offset));  // x - 0 is x, where x + 0 is not: -0
  });
}

// Weight or bias in T's order: as it lies in memory, or a copy. Where both have one type, `given`
// may be either, and the loops that read it are compiled once.
template <class T>
struct ColumnValues {
  using C = Compute<T>;
  const T* given;
  const C* copy;  // null where there is none

  static ColumnValues copied_to(const C* copy) {
    if constexpr (sizeof(T) == sizeof(C)) {
      return {copy, nullptr};
    } else {
      return {nullptr, copy};
    }
  }

  template <class Part>
  FUSEDOPS_INLINE Tile<C> at(int64_t col, Part part) const {
    if constexpr (sizeof(T) == sizeof(C)) return load(given + col, part);
    return copy == nullptr ? load(given + col, part) : load(copy + col);
  }
};

// Copied to `copy` only where it must be: of one long row it would be as long as the row.
template <class T, class C = Compute<T>>
ColumnValues<T> column_values(ConstColumns given, C offset, C* copy, int64_t cols) {
  if (size_of(given.dtype) != sizeof(T)) {
    copy_columns<T>(static_cast<const C*>(given.data), offset, copy, cols);
    return ColumnValues<T>::copied_to(copy);
  }
  const T* values = static_cast<const T*>(given.data);
  if (offset == 0) return {values, nullptr};
  copy_columns<T>(values, offset, copy, cols);
  return ColumnValues<T>::copied_to(copy);
}

// What rows are multiplied by: 1 where there is no weight.
template <class T, class Args, class C = Compute<T>>
ColumnValues<T> weight_values(const Args& args, C* copy) {
  if (args.weight.data != nullptr) {
    return column_values<T>(args.weight, C(args.weight_offset), copy, args.cols);
  }
  for_columns<T>(args.cols, [&](int64_t col, auto) { store(copy + col, both(C(1))); });
  return ColumnValues<T>::copied_to(copy);
}

template <class T, class Args, class C = Compute<T>>
ColumnValues<T> bias_values(const Args& args, C* copy) {
  if (args.bias.data == nullptr) return {};
  return column_values<T>(args.bias, C(0), copy, args.cols);
}

// --- rows ---------------------------------------------------------------------------------------

// Rows that are handled side by side: as many as the registers hold.
constexpr int kInterleavedRows = kVectorBytes == 64 ? 4 : 2;
static_assert(kInterleavedRows <= kMaxInterleavedRows);

// Elements from one of `interleaved` rows to the one that will be read or written in its place so
// much later that an L2 prefetch pays: a step, or two short ones. 0 where rows are so long that the
// cache would lose them again.
template <class T>
FUSEDOPS_INLINE int64_t rows_ahead(const RowSpacing& spacing, int64_t cols, int64_t interleaved) {
  constexpr int64_t kLongestRowBytes = int64_t(1) << 17, kShortStepBytes = int64_t(1) << 14;
  const int64_t row_bytes = cols * int64_t(sizeof(T));
  if (row_bytes > kLongestRowBytes) return 0;
  return (interleaved * row_bytes < kShortStepBytes ? 2 : 1) * interleaved * spacing.stride;
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
