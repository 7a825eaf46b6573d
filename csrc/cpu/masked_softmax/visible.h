// Works with ranges of a row's columns, of which only some are visible: loops over the tiles that
// contain visible columns, and writes zeros to the others.
#pragma once

#include "cpu/simd/load_store.h"
#include "cpu/simd/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Returns the range [begin, end), or {0, 0} if it is empty.
constexpr RowRange range_of(int64_t begin, int64_t end) {
  return begin < end ? RowRange{begin, end} : RowRange{0, 0};
}

constexpr RowRange intersection(RowRange a, RowRange b) {
  return range_of(a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end);
}

constexpr int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Returns the range, with both bounds in registers. The compiler copies a range in memory by one
// load of 16 bytes, which waits for the two stores of the bounds, and for all stores before them.
FUSEDOPS_INLINE RowRange in_registers(RowRange range) {
  asm("" : "+r"(range.begin), "+r"(range.end));
  return range;
}

// Describes a range of a tile's columns: those from `begin` to before `end` that the tile has.
struct Between {
  int begin, end;
};

// Returns which columns of the tile at `col` are in `range`.
FUSEDOPS_INLINE Between part_of_tile(RowRange range, int64_t col) {
  return {static_cast<int>(range.begin - col), static_cast<int>(range.end - col)};
}

// Replaces the columns outside of `part` by `value`.
template <class T>
FUSEDOPS_INLINE Tile<Compute<T>> filled(Tile<Compute<T>> tile, Between part, Compute<T> value) {
  using C = Compute<T>;
  for (int half = 0; half < 2; ++half) {
    const Lanes<C> column = columns_of_lanes<T>(half), none = {};
    const auto inside = (column >= none + part.begin) & (column < none + part.end);
    tile.v[half] = inside ? tile.v[half] : Set(value);
  }
  return tile;
}

// Computes sums = step(sums, col, part, seen) for the tiles that contain `visible` columns of a row
// of `cols` columns: `part` of the tile is in the row, and `seen` of it is visible.
template <class T, class Sums, class Step>
FUSEDOPS_INLINE Sums fold_visible(RowRange visible, int64_t cols, Sums sums, Step step) {
  int64_t col = visible.begin / kTile<T> * kTile<T>;
  for (; col < visible.end; col += kTile<T>) {
    if (col >= visible.begin) {
      for (; col + kTile<T> <= visible.end; col += kTile<T>) {
        sums = step(sums, col, Full{}, Full{});
      }
      if (col >= visible.end) break;
    }
    const Between seen = part_of_tile(visible, col);
    sums = col + kTile<T> <= cols ? step(sums, col, Full{}, seen)
                                  : step(sums, col, Tail{static_cast<int>(cols - col)}, seen);
  }
  return sums;
}

// Returns the columns of all tiles that contain a `visible` one, but none from `cols` on.
template <class T>
constexpr RowRange columns_computed(RowRange visible, int64_t cols) {
  const int64_t whole = ceil_div(visible.end, kTile<T>) * kTile<T>;
  return {visible.begin / kTile<T> * kTile<T>, whole < cols ? whole : cols};
}

// Writes zeros to `cols`, whose first column begins a tile.
template <class In, class Out>
FUSEDOPS_INLINE void write_zeros(Out* output, RowRange cols, StoreMode mode) {
  for_columns<In>(cols.end - cols.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    mode.store(output + cols.begin + col, part, NormalTile<Compute<In>>{Broadcast(Compute<In>(0))});
  });
}

// Writes zeros to the columns of a row that are not in `written`, which consists of whole tiles.
template <class In, class Out>
FUSEDOPS_INLINE void write_zeros_around(
    Out* output, RowRange written, int64_t cols, StoreMode mode) {
  write_zeros<In>(output, RowRange{0, written.begin}, mode);
  write_zeros<In>(output, RowRange{written.end, cols}, mode);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
