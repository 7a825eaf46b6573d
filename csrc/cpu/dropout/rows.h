// Applies dropout to rows (DropoutForward in args.h).
#pragma once

#include <limits>

#include "cpu/simd/philox.h"
#include "cpu/simd/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Returns a tile of T that is 1 where dropout keeps the column and 0 elsewhere, for the columns
// from `col` on. A tile of doubles has the first half of the columns of a tile of floats.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> kept_columns(const DropoutRow& dropout, int64_t col) {
  const Tile<float> kept = dropout.kept<T>(col);
  if constexpr (sizeof(T) == sizeof(double)) {
    const Wide<float> wide = promoted(kept.v[0]);
    return {{wide.v[0], wide.v[1]}};
  } else {
    return kept;
  }
}

// Replaces columns below `least` by it. A NaN stays, which Max() would lose on ARM.
template <class C>
FUSEDOPS_INLINE Tile<C> at_least(Vec<C> least, Tile<C> tile) {
  for (Vec<C>& columns : tile.v) columns = columns < least ? least : columns;
  return tile;
}

// A dropped value is multiplied by 0, so that a NaN stays.
template <class T>
FUSEDOPS_INLINE void drop_row(
    const DropoutForward& args, int64_t row, RowRange cols, StoreMode mode) {
  const T* input = start_of<T>(args.input, row) + cols.begin;
  T* output = start_of<T>(args.output, row) + cols.begin;
  const DropoutRow dropout(args.dropout, row);
  using C = Compute<T>;
  const auto scale = C(args.dropout.scale);
  const auto least = Set(args.relu ? C(0) : -std::numeric_limits<C>::infinity());
  for_columns<T>(cols.end - cols.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    const auto factors = kept_columns<T>(dropout, cols.begin + col) * scale;
    mode.store(output + col, part, at_least(least, load(input + col, part)) * factors);
  });
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
