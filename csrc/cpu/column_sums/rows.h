// Adds up rows, column by column.
#pragma once

#include "cpu/dispatch/table.h"
#include "cpu/simd/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// The sums of this many columns (8 KiB, or 16 KiB of doubles) stay in L1 while all rows are added
// to them.
constexpr int64_t kColumnsInCache = 2048;

template <class In>
FUSEDOPS_INLINE void add_row(const In* row, Compute<In>* sums, int64_t cols) {
  using C = Compute<In>;
  for_columns<In>(cols, [&](int64_t col, auto part) {
    const Tile<C> term = in_order<In, C>(load(row + col, part));
    store(sums + col, part, load(sums + col, part) + term);
  });
}

// join() makes floats of their upper and lower 16 bits, and split() cuts floats into the two.
inline void join(const uint16_t* upper, const uint16_t* lower, int64_t count, float* joined) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{upper[i]} << 16 | lower[i];
    std::memcpy(joined + i, &bits, sizeof(bits));
  }
}
inline void split(const float* joined, int64_t count, uint16_t* upper, uint16_t* lower) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, joined + i, sizeof(bits));
    upper[i] = static_cast<uint16_t>(bits >> 16);
    lower[i] = static_cast<uint16_t>(bits);
  }
}

template <class In>
void add_rows_to(const ColumnSums& args, int64_t begin, int64_t count, Compute<In>* sums) {
  for (int64_t row = 0; row < args.rows; ++row) {
    add_row(start_of<In>(args.input, row) + begin, sums, count);
  }
}

// Adds up columns whose sums have the dtype of the results, in the memory of the results.
template <class In>
FUSEDOPS_INLINE void add_columns(const ColumnSums& args, int64_t begin, int64_t count, In* sums) {
  if (args.is_first) std::memset(sums, 0, count * sizeof(In));
  add_rows_to<In>(args, begin, count, sums);
}

// Adds up columns of a 16-bit type, whose sums are floats that are cut in two between calls
// (ColumnSums). The last call rounds the sums to `results`.
template <class In>
FUSEDOPS_INLINE void add_halves(const ColumnSums& args, int64_t begin, int64_t count, In* results) {
  float sums[kColumnsInCache] = {};
  auto* const upper = reinterpret_cast<uint16_t*>(results);
  if (!args.is_first) join(upper, args.lower + begin, count, sums);
  add_rows_to<In>(args, begin, count, sums);
  if (!args.is_last) return split(sums, count, upper, args.lower + begin);
  for_columns<In>(count, [&](int64_t col, auto part) {
    store(results + col, part, in_order<float, In>(load(sums + col, part)));
  });
}

template <class In>
void add_rows(const ColumnSums& args, RowRange cols) {
  for (int64_t begin = cols.begin; begin < cols.end; begin += kColumnsInCache) {
    const int64_t count = cols.end - begin < kColumnsInCache ? cols.end - begin : kColumnsInCache;
    auto* const results = static_cast<In*>(args.sums) + begin;
    if constexpr (sizeof(In) == 2) {
      add_halves(args, begin, count, results);
    } else {
      add_columns(args, begin, count, results);
    }
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
