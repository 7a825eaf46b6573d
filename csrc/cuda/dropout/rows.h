// Applies dropout to rows (DropoutForward in args.h).
//
// Contract: rows are cut into tiles of kDropoutTile columns, which are numbered through all rows. A
// row of one tile has blockDim.x threads, and a block has blockDim.y such rows. In longer rows each
// tile has a block of kDropoutThreads.
//
// Layout: as in tile.h, with vectors of four columns in every dtype, because one counter of Philox
// gives the words of four columns. One kernel for each dtype serves rows of any alignment: whether
// they are read in vectors or in single elements is a branch that all threads of a launch take
// alike.
#pragma once

#include "cuda/block/philox.h"
#include "cuda/block/tile.h"

namespace fusedops::cuda {

// A thread has four vectors, whose loads are all in flight: 32 KB a multiprocessor for 1024 threads
// with 16-bit elements.
inline constexpr int kDropoutWidth = 4, kDropoutVectors = 4;
inline constexpr int32_t kDropoutElements = kDropoutWidth * kDropoutVectors;
inline constexpr int32_t kDropoutThreads = 128, kDropoutTile = kDropoutThreads * kDropoutElements;

// Says where the columns of a thread are: its first one in its row, and how many the row has from
// there on.
struct DropoutColumns {
  int64_t row;
  int32_t first, left;

  FUSEDOPS_DEVICE DropoutColumns(int64_t cols, int64_t first_tile) : row(launch_row(first_tile)) {
    int64_t start = 0;
    if (cols > kDropoutTile) {  // short rows do without the division
      const int64_t tiles = ceil_div(cols, kDropoutTile);
      start = row % tiles * kDropoutTile;
      row /= tiles;
    }
    first = static_cast<int32_t>(start) + column_of<kDropoutWidth>(0);
    left = static_cast<int32_t>(cols) - first;
  }

  // Returns how many columns after the thread's first one its vector i begins.
  static FUSEDOPS_DEVICE int32_t offset(int i) { return columns_before<kDropoutWidth>(i); }
  FUSEDOPS_DEVICE bool has(int32_t offset) const { return offset < left; }
};

template <class T>
using DropoutValues = AccumulatorOf<T>[kDropoutVectors][kDropoutWidth];

// Loads a thread's elements, the first of which is at `from`. Elements outside of the row become 0.
template <class T>
FUSEDOPS_DEVICE void load_values(
    DropoutValues<T>& values, const T* from, const DropoutColumns& columns, bool are_aligned) {
  using Vector = Vec<T, kDropoutWidth>;
  if (are_aligned) {
    Vector vectors[kDropoutVectors];
#pragma unroll
    for (int i = 0; i < kDropoutVectors; ++i) {
      const int32_t offset = columns.offset(i);
      vectors[i] = columns.has(offset) ? Vector::load(from + offset) : Vector{};
    }
#pragma unroll
    for (int k = 0; k < kDropoutElements; ++k) {
      values[k / kDropoutWidth][k % kDropoutWidth] =
          vectors[k / kDropoutWidth].at(k % kDropoutWidth);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kDropoutElements; ++k) {
      const int32_t offset = columns.offset(k / kDropoutWidth) + k % kDropoutWidth;
      values[k / kDropoutWidth][k % kDropoutWidth] =
          columns.has(offset) ? Vec<T, 1>::load(from + offset).at(0) : 0;
    }
  }
}

// Stores vector i of a thread, whose first element is at `to`.
template <class T>
FUSEDOPS_DEVICE void store_values(
    T* to, const AccumulatorOf<T> (&values)[kDropoutWidth], const DropoutColumns& columns,
    int32_t offset, bool are_aligned) {
  if (are_aligned) return store(to + offset, values);
#pragma unroll
  for (int j = 0; j < kDropoutWidth; ++j) {
    if (columns.has(offset + j)) round_to(values[j], to[offset + j]);
  }
}

// Replaces values below 0 by 0. A NaN stays.
template <class Acc>
FUSEDOPS_DEVICE void apply_relu(Acc (&values)[kDropoutWidth]) {
#pragma unroll
  for (Acc& value : values) value = value < 0 ? Acc(0) : value;
}

template <class T>
FUSEDOPS_KERNEL(kDropoutThreads)
dropout_forward(DropoutForward args, int64_t first_tile, bool are_aligned) {
  const DropoutColumns columns(args.cols, first_tile);
  if (columns.row >= args.rows || !columns.has(0)) return;
  // The seed is read before the row. Behind it, the compiler would wait for the row first.
  const DropoutRow<AccumulatorOf<T>> dropout(args.dropout, columns.row);
  DropoutValues<T> values;
  load_values(values, row_of<T>(args.input, columns.row) + columns.first, columns, are_aligned);
  T* const to = row_of<T>(args.output, columns.row) + columns.first;
#pragma unroll
  for (int i = 0; i < kDropoutVectors; ++i) {
    const int32_t offset = columns.offset(i);
    if (!columns.has(offset)) continue;
    if (args.relu) apply_relu(values[i]);
    dropout.apply(values[i], columns.first + offset);
    store_values(to, values[i], columns, offset, are_aligned);
  }
}

}  // namespace fusedops::cuda
