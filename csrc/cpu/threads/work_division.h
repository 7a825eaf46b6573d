// Divides the CPU's work into segments of long rows and of inner columns. The division is the same
// for every instruction set and number of threads. What only one family of kernels needs, such as
// the size of its scratch memory, is in the scratch.h of its folder.
#pragma once

#include "args.h"

namespace fusedops {

struct RowRange {
  int64_t begin, end;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows in scratch memory are padded to a multiple of this number of columns, because they are
// written in full tiles. It is a multiple of the tile size of every instruction set.
constexpr int64_t kColumnPadding = 32;
constexpr int64_t padded_cols(int64_t cols) {
  return ceil_div(cols, kColumnPadding) * kColumnPadding;
}

// Returns the size of the type in which arithmetic on the dtype is done.
constexpr int64_t compute_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// Threads share a long row by segments of columns. Each segment gives a partial (its own sums), and
// the row is written once all partials are there. Whether a row is long, and what its partials are,
// does not depend on the number of threads; so the bits of the results do not depend on it either.
constexpr int64_t kLongestShortRow = 65536, kRowSegment = 4096;
constexpr bool is_long_row(int64_t cols) { return cols > kLongestShortRow; }
constexpr int64_t row_segments(int64_t cols) { return ceil_div(cols, kRowSegment); }

// Divides the inner dimension of a spatial operation into segments, each a unit of work. A segment
// has so few columns that all of its rows fit into the L2 cache, but no fewer than kMinCols,
// because shorter pieces of rows are slow to read from memory.
struct InnerSegments {
  static constexpr int64_t kCacheBytes = int64_t(1) << 20, kMinCols = 64, kMaxCols = 1024;
  int64_t cols, cols_each, count;  // for one outer index

  constexpr InnerSegments(int64_t dim_size, int64_t inner, int64_t element_bytes)
      : cols(inner),
        cols_each(width(kCacheBytes / (dim_size * element_bytes))),
        count(ceil_div(cols, cols_each)) {}

  constexpr RowRange operator[](int64_t index) const {
    const int64_t end = (index + 1) * cols_each;
    return {index * cols_each, end < cols ? end : cols};
  }

 private:
  // Returns a multiple of kMinCols within the limits. `fit` is how many columns fit into the cache
  // with all of their rows.
  static constexpr int64_t width(int64_t fit) {
    return fit < kMinCols ? kMinCols : fit < kMaxCols ? fit / kMinCols * kMinCols : kMaxCols;
  }
};

}  // namespace fusedops
