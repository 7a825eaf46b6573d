// Finds the rows of a tensor, and loops over their tiles.
#pragma once

#include "cpu/simd/load_store.h"
#include "cpu/threads/work_division.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

template <class T>
FUSEDOPS_INLINE const T* start_of(const ConstRows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + rows.spacing.offset(row);
}
template <class T>
FUSEDOPS_INLINE T* start_of(const Rows& rows, int64_t row) {
  return static_cast<T*>(rows.data) + rows.spacing.offset(row);
}

// Whether `count` rows from `first` on are evenly spaced. If the rows form runs, as in x[:, :-1],
// only rows of the same run are evenly spaced.
template <class AnyRows>
FUSEDOPS_INLINE bool are_even(const AnyRows& rows, int64_t first, int64_t count) {
  const RowSpacing& spacing = rows.spacing;
  if (spacing.run_gap == 0) return true;
  return spacing.offset(first + count - 1) - spacing.offset(first) == (count - 1) * spacing.stride;
}

// These structs read tiles of a row. FromMemory reads from memory, and permutes the columns into
// the order of a tile of Order. FromScratch reads tiles that are in scratch memory already. What
// follows `part` is ignored (Recomputed in softmax/rows.h).
template <class T, class Order = T>
struct FromMemory {
  const T* row;
  template <class Part, class... Ignored>
  FUSEDOPS_INLINE Tile<Compute<T>> at(int64_t col, Part part, Ignored...) const {
    return in_order<T, Order>(load(row + col, part));
  }
};
template <class C>
struct FromScratch {
  const C* row;
  template <class Part, class... Ignored>
  FUSEDOPS_INLINE Tile<C> at(int64_t col, Part, Ignored...) const {
    return load(row + col);
  }
};

// These functions call body(part), or body(first, count), for consecutive parts of at most `each`
// (kEach) rows or columns.
template <class Body>
FUSEDOPS_INLINE void for_parts(RowRange range, int64_t each, Body body) {
  for (int64_t begin = range.begin; begin < range.end; begin += each) {
    body(RowRange{begin, range.end - begin < each ? range.end : begin + each});
  }
}
template <int64_t kEach, class Body>
FUSEDOPS_INLINE void for_parts(RowRange range, Body body) {
  for (int64_t first = range.begin; first < range.end; first += kEach) {
    body(first, range.end - first < kEach ? range.end - first : kEach);
  }
}

// Calls body(col, part) for every tile of a row of T, where `part` is Full or, at the end, Tail.
template <class T, class Body>
FUSEDOPS_INLINE void for_columns(int64_t cols, Body body) {
  int64_t col = 0;
  for (; col + kTile<T> <= cols; col += kTile<T>) body(col, Full{});
  if (col < cols) body(col, Tail{static_cast<int>(cols - col)});
}

// Holds the two accumulators of fold_columns(): one for the even tiles, one for the odd tiles.
template <class Sums>
struct Accumulators {
  Sums even, odd;
};

// Computes sums = step(sums, col, part) over all columns of a row of T, from `start`. Two
// accumulators form separate dependency chains, so that a floating-point add or max (3-4 cycles)
// need not wait for the one before. They are passed by value: accumulators that a step reached by
// reference would live in memory. The order of operations depends on `cols` alone.
template <class T, class Sums, class Step>
FUSEDOPS_INLINE Accumulators<Sums> fold_columns(int64_t cols, Sums start, Step step) {
  Sums even = start, odd = start;
  int64_t col = 0;
  for (; col + 2 * kTile<T> <= cols; col += 2 * kTile<T>) {
    even = step(even, col, Full{});
    odd = step(odd, col + kTile<T>, Full{});
  }
  if (col + kTile<T> <= cols) {
    even = step(even, col, Full{});
    col += kTile<T>;
  }
  if (col < cols) even = step(even, col, Tail{static_cast<int>(cols - col)});
  return {even, odd};
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
