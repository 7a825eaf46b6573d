// The kernel of the sums over rows.
#pragma once

#include "cpu/dispatch/table.h"
#include "cpu/simd/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// So many columns' sums stay in L1 while all rows are added to them.
constexpr int64_t kColumnsInCache = 2048;

template <class In>
FUSEDOPS_INLINE void add_row(const In* row, Compute<In>* sums, int64_t cols) {
  using C = Compute<In>;
  for_columns<In>(cols, [&](int64_t col, auto part) {
    const Tile<C> term = in_order<In, C>(load(row + col, part));
    store(sums + col, part, load(sums + col, part) + term);
  });
}

template <class In>
void add_rows(const ColumnSums& args, RowRange cols) {
  auto* const sums = static_cast<Compute<In>*>(args.sums);
  for (int64_t begin = cols.begin; begin < cols.end; begin += kColumnsInCache) {
    const int64_t count = cols.end - begin < kColumnsInCache ? cols.end - begin : kColumnsInCache;
    for (int64_t row = 0; row < args.rows; ++row) {
      add_row(start_of<In>(args.input, row) + begin, sums + begin, count);
    }
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
