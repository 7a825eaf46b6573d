// Which kernel a row gets: launch tables and the plan they lead to.
//
// A row's plan is a pure function of cols, dtype and vector width, never of the number of rows: a
// row alone and the same row in any batch give the same bits. Nothing here depends on the device,
// but that only some have clusters.
// The limits come from registers and bytes in flight, computed for an H200 and not yet measured.
#pragma once

#include <cstdint>

namespace fusedops::cuda {

inline constexpr int32_t kMaxThreads = 1024;
inline constexpr int32_t kMaxVectorBytes = 16;
inline constexpr int32_t kSectorBytes = 32;  // the least that DRAM and L2 move

// Vectors of 16 bytes are wide. Narrow ones, for rows of odd length or alignment, need a predicate
// and an address for every few bytes: their kernels hold less of a row, or the registers spill.
template <class T, int kWidth>
inline constexpr bool kIsWide = kWidth * sizeof(T) == kMaxVectorBytes;

// Kernels that walk along a row: four 16-byte loads in flight a thread are 32 KB for one block of
// 512, all that 4.3 TB/s at 0.8 us needs on each of 132 multiprocessors.
inline constexpr int32_t kLoopThreads = 512;
template <int kWidth, int kTensors>
inline constexpr int kLoopVectors = (kWidth > 1 ? 4 : 8) / kTensors;

// Whether a kernel that walks along a row is compiled for vectors of this width.
template <class T, int kWidth>
inline constexpr bool kIsLoopWidth = kIsWide<T, kWidth> || kWidth == 1;

// Rows up to max_cols keep `elements` a thread in registers.
struct Regime {
  int32_t max_cols, elements;
};

// The regimes of one dtype size and vector width, by ascending max_cols. Unused ones are zero: no
// row is that short.
inline constexpr int kMaxRegimes = 4;
using RegimeTable = Regime[kMaxRegimes];

// The regimes of a kernel. `narrow` is for all dtypes but double, whose table holds for every
// width.
struct Regimes {
  RegimeTable of_16_bits, of_32_bits, narrow, of_64_bits;

  constexpr const RegimeTable& table(int32_t element_bytes, bool is_wide) const {
    if (element_bytes == 8) return of_64_bits;
    if (!is_wide) return narrow;
    return element_bytes == 2 ? of_16_bits : of_32_bits;
  }
};

constexpr bool is_ascending(const RegimeTable& table) {
  for (int i = 1; i < kMaxRegimes; ++i) {
    const bool is_unused = table[i].max_cols == 0 && table[i].elements == 0;
    if (!is_unused && table[i].max_cols <= table[i - 1].max_cols) return false;
  }
  return true;
}

constexpr bool is_ascending(const Regimes& regimes) {
  return is_ascending(regimes.of_16_bits) && is_ascending(regimes.of_32_bits) &&
      is_ascending(regimes.narrow) && is_ascending(regimes.of_64_bits);
}

// Up to a warp a row where 16 elements a thread hold it: few registers, so that 32 KB a
// multiprocessor are in flight. A whole warp up to 1024: shuffles cost less than a barrier. Then 3
// to 8 warps: several rows a multiprocessor cover each other's barriers. Then 5 to 32 warps: 1024
// threads of 64 registers fill a multiprocessor.
inline constexpr Regimes kSoftmaxRegimes = {
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    {{8192, 16}},
    {{4096, 8}},
};
// Floats leave no room for weight and bias beside 32 elements in 64 registers.
inline constexpr Regimes kNormRegimes = {
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    {{16384, 16}},
    {{4096, 8}},
    {{4096, 8}},
};
// Beside a residual: two tensors in flight, and Philox.
inline constexpr Regimes kNormAddRegimes = {{{16384, 16}}, {{16384, 16}}, {{2048, 4}}, {{2048, 4}}};
// Two tensors in registers: 32 values of 4 bytes a thread.
inline constexpr Regimes kSoftmaxBackwardRegimes = {
    {{16384, 16}}, {{16384, 16}}, {{8192, 16}}, {{4096, 8}}};
// As many again: scores beside an operand, or gradients that dropout has changed. Of 16 floats
// those do not fit into 64 registers.
inline constexpr Regimes kMaskedSoftmaxRegimes = {{{16384, 16}}, {{16384, 16}}, {{8192, 16}}, {}};
inline constexpr Regimes kMaskedSoftmaxBackwardRegimes = {
    {{16384, 16}}, {{8192, 8}}, {{8192, 16}}, {}};
// Two tensors, the next row of each, and two column sums: up to 128 registers a thread.
inline constexpr Regimes kNormBackwardRegimes = {
    {{8192, 16}}, {{8192, 16}}, {{4096, 8}}, {{2048, 4}}};
// What is added to gradients and drops out of them leaves less room beside floats, and beside the
// addresses of narrow vectors.
inline constexpr Regimes kNormAddBackwardRegimes = {
    {{8192, 16}}, {{4096, 8}}, {{2048, 4}}, {{2048, 4}}};

static_assert(is_ascending(kSoftmaxRegimes) && is_ascending(kSoftmaxBackwardRegimes));
static_assert(is_ascending(kMaskedSoftmaxRegimes) && is_ascending(kMaskedSoftmaxBackwardRegimes));
static_assert(is_ascending(kNormRegimes) && is_ascending(kNormAddRegimes));
static_assert(is_ascending(kNormBackwardRegimes) && is_ascending(kNormAddBackwardRegimes));

constexpr const Regimes& norm_regimes(bool adds) { return adds ? kNormAddRegimes : kNormRegimes; }
constexpr const Regimes& norm_backward_regimes(bool adds) {
  return adds ? kNormAddBackwardRegimes : kNormBackwardRegimes;
}

// Threads of a block that kernels are compiled for: no row of their regimes needs more, and 65536
// registers over them is what each thread may have.
template <class T, int kWidth>
inline constexpr bool kNeedsRegisters = !kIsWide<T, kWidth> || sizeof(T) == 8;
template <class T, int kWidth, int kElements>
inline constexpr int32_t kSoftmaxThreads = kNeedsRegisters<T, kWidth> ? 512
    : kElements <= 16                                                 ? 256
                                                                      : kMaxThreads;
template <class T, int kWidth, int kElements, bool kAdd>
inline constexpr int32_t kNormThreads = kNeedsRegisters<T, kWidth> ? 512
    : sizeof(T) == 2 && kElements <= 16 && !kAdd                   ? 256
                                                                   : kMaxThreads;
template <class T, int kWidth>
inline constexpr int32_t kSoftmaxBackwardThreads = kNeedsRegisters<T, kWidth> ? 512 : kMaxThreads;
inline constexpr int32_t kNormBackwardThreads = 512;
inline constexpr int32_t kColumnThreads = 128;

// Threads that short rows are packed into.
inline constexpr int32_t kRowBlockThreads = 128;
inline constexpr int32_t kNormBackwardBlockThreads = 256;

// Parts that column sums are split into. Blocks that walk over rows: two for each of 132
// multiprocessors of a Hopper, and no more, since every part is written and read once. Blocks of
// the kernel that only sums columns: eight each.
inline constexpr int64_t kNormBackwardBlocks = 264, kColumnBlocks = 1056;
inline constexpr int64_t kColumnRows = 16;  // rows that are worth a part

struct RowPlan {
  int32_t width;       // elements of a vector
  int32_t elements;    // of a row in each thread's registers; 0: more than a block holds
  int32_t threads;     // that share a row
  int32_t rows;        // of a block
  int32_t blocks = 1;  // of a cluster, each with its part of one row
};

constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

constexpr int32_t round_up(int64_t value, int32_t step) {
  return static_cast<int32_t>(ceil_div(value, step)) * step;
}

// A power of two within a warp, else whole warps. The lanes of a row read a sector at least.
constexpr int32_t threads_per_row(int64_t cols, int32_t elements, int32_t vector_bytes) {
  const int64_t wanted = ceil_div(cols, elements);
  if (wanted > 32) return round_up(wanted, 32);
  int32_t lanes = vector_bytes < kSectorBytes ? kSectorBytes / vector_bytes : 1;
  while (lanes < wanted) lanes *= 2;
  return lanes;
}

// Threads that share the longest row of a regime.
constexpr int32_t max_threads(Regime regime, int32_t vector_bytes) {
  return threads_per_row(regime.max_cols, regime.elements, vector_bytes);
}

constexpr RowPlan plan_rows(
    const Regimes& regimes, int64_t cols, int32_t width, int32_t element_bytes,
    int32_t block_threads = kRowBlockThreads) {
  const bool wide = width * element_bytes == kMaxVectorBytes;
  for (const Regime& regime : regimes.table(element_bytes, wide)) {
    if (cols > regime.max_cols) continue;
    const int32_t threads = threads_per_row(cols, regime.elements, width * element_bytes);
    const int32_t rows = threads < block_threads ? block_threads / threads : 1;
    return {width, regime.elements, threads, rows};
  }
  const int32_t loop_width = wide ? width : 1;
  const int64_t vectors = cols / loop_width;
  const int32_t threads = vectors < kLoopThreads ? round_up(vectors, 32) : kLoopThreads;
  return {loop_width, 0, threads, 1};
}

// Rows that no block holds are cut into segments, a block each: one kernel leaves what it found of
// every segment in the workspace, and each block of a second one merges what there is of its row
// and writes its segment. Merging instead by the last block of a row to arrive would take a counter
// to clear, a launch more, and a fence a block, 1 us; the parts to merge are at most 1/16 of the
// bytes of a segment (8 of 64 * 2^k beside 8 KB * 2^k of 16 bits), and come from L2.
//
// 4096 columns: 128 threads with 8 KB in flight, eight blocks a multiprocessor. One row of 2^20
// columns is 128 of them, for 132 multiprocessors. Segments double where there would be more than
// 64, 128, ..., 1024.
inline constexpr int32_t kSegmentThreads = 128, kSegmentCols = 4096, kMaxSegments = 1024;
template <class T>
inline constexpr int32_t kSegmentBlocks = sizeof(T) == 8 ? 4 : 8;

struct Segments {
  int32_t cols;   // of a segment; of the last one perhaps fewer
  int32_t count;  // of a row
};

constexpr Segments plan_segments(int64_t cols) {
  int64_t segment = kSegmentCols, most = 64;
  while (ceil_div(cols, segment) > most) {
    segment *= 2;
    if (most < kMaxSegments) most *= 2;
  }
  return {static_cast<int32_t>(segment), static_cast<int32_t>(ceil_div(cols, segment))};
}

// What the second kernel reads again should still be in L2: 16 MB of the 40 of an A100 or 50 of an
// H200, beside as much that it writes. More rows go by such shares.
inline constexpr int64_t kSegmentShareBytes = 16 << 20;

constexpr int64_t segment_rows(int64_t row_bytes) {
  return row_bytes < kSegmentShareBytes ? kSegmentShareBytes / row_bytes : 1;
}

// Where there are clusters (sm_90), their blocks hold wide rows together, up to eight blocks of
// 1024 threads with 64 registers: one launch, and the row is read once. Always eight: a few rows of
// 2^16 columns then have 8 multiprocessors each and not 2, and many rows have blocks as small.
inline constexpr int32_t kClusterBlocks = 8;
constexpr bool fits_clusters(int32_t width, int32_t element_bytes) {
  return width * element_bytes == kMaxVectorBytes && element_bytes < 8;
}
template <class T, int kWidth>
inline constexpr bool kFitsClusters = fits_clusters(kWidth, sizeof(T));
inline constexpr Regime kSoftmaxClusters = {262144, 32}, kSoftmaxBackwardClusters = {131072, 16};
inline constexpr Regime kNormBackwardClusters = {65536, 16};  // 512 threads of 128 registers
constexpr Regime norm_clusters(int32_t element_bytes, bool adds) {
  return element_bytes == 2 && !adds ? Regime{262144, 32} : Regime{131072, 16};
}

// Columns of each block of a cluster, but perhaps the last: a multiple of the vector width.
constexpr int32_t cluster_cols(int64_t cols, int32_t width) {
  return round_up(ceil_div(cols, kClusterBlocks), width);
}

// Instead of `plan` for rows that no block holds, where the regime does.
constexpr RowPlan plan_clusters(RowPlan plan, Regime regime, int64_t cols, int32_t element_bytes) {
  const bool fits = fits_clusters(plan.width, element_bytes) && cols <= regime.max_cols;
  if (plan.elements > 0 || !fits) return plan;
  const int32_t part = cluster_cols(cols, plan.width);
  const int32_t threads = threads_per_row(part, regime.elements, plan.width * element_bytes);
  return {plan.width, regime.elements, threads, 1, kClusterBlocks};
}

// A spatial softmax: a block takes a segment of neighbouring inner columns. The threads that share
// a column are a power of two, with kSpatialRows rows in flight each: 256 threads with four 16-byte
// loads, three times a multiprocessor, are 48 KB.
inline constexpr int32_t kSpatialThreads = 256, kMaxDimThreads = 32;
inline constexpr int32_t kMinSpatialRows = 4;  // of a thread, where threads share a column
// With more than one row of doubles, the exponentials would spill.
template <class T>
inline constexpr int kSpatialRows = sizeof(T) == 8 ? 1 : 4;
// A segment is a sector wide at least: 16 threads of a single 16-bit column, in larger blocks.
template <class T, int kWidth>
inline constexpr int32_t kSpatialMaxThreads = sizeof(T) * kWidth == 2 ? 512 : kSpatialThreads;

struct SpatialPlan {
  int32_t width;          // columns of a thread
  int32_t inner_threads;  // side by side in a segment
  int32_t dim_threads;    // threads that share a column
  int64_t segments;       // for each outer index
};

// A column's bits are those of `dim_threads`, which depends on dim_size alone.
constexpr SpatialPlan plan_spatial(
    int64_t dim_size, int64_t inner, int32_t width, int32_t element_bytes) {
  int32_t dim_threads = 1;
  while (dim_threads < kMaxDimThreads && dim_threads * 2 * kMinSpatialRows <= dim_size) {
    dim_threads *= 2;
  }
  int32_t threads = ceil_div(kSectorBytes, width * element_bytes);
  while (threads * dim_threads < kSpatialThreads && threads * width < inner) threads *= 2;
  return {width, threads, dim_threads, ceil_div(inner, int64_t{threads} * width)};
}

struct NormBackwardPlan {
  RowPlan row;
  int64_t parts;  // that column sums come in
  int64_t tiles;  // blocks side by side that hold one part; 1 where blocks walk over rows
};

constexpr NormBackwardPlan plan_norm_backward(
    const Regimes& regimes, int64_t rows, int64_t cols, int32_t width, int32_t element_bytes) {
  const RowPlan row = plan_rows(regimes, cols, width, element_bytes, kNormBackwardBlockThreads);
  if (row.elements > 0) {
    const int64_t blocks = ceil_div(rows, row.rows);
    return {row, blocks < kNormBackwardBlocks ? blocks : kNormBackwardBlocks, 1};
  }
  const int64_t tiles = ceil_div(cols, int64_t{kColumnThreads} * row.width);
  const int64_t most = tiles < kColumnBlocks ? kColumnBlocks / tiles : 1;
  const int64_t useful = ceil_div(rows, kColumnRows);
  return {row, useful < most ? useful : most, tiles};
}

}  // namespace fusedops::cuda
