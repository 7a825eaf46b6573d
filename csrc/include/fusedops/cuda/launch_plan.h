// Launch tables, and the launch plan that a row gets from them.
//
// A row's plan depends on cols, dtype and vector width, never on the number of rows: a row alone
// and the same row in any batch have the same bits. It depends on the device only in that some
// devices have no clusters. The limits come from registers and bytes in flight, computed for an
// H200 and not yet measured.
#pragma once

#include <cstdint>

namespace fusedops::cuda {

inline constexpr int32_t kMaxThreads = 1024;
inline constexpr int32_t kMaxVectorBytes = 16;
inline constexpr int32_t kSectorBytes = 32;  // the smallest transfer of DRAM and L2

// Vectors of 16 bytes are wide. Narrow ones, for rows of odd length or alignment, need a predicate
// and an address for every few bytes: their kernels hold less of a row, or registers would spill.
template <class T, int kWidth>
inline constexpr bool kIsWide = kWidth * sizeof(T) == kMaxVectorBytes;

// Kernels that walk along a row have four 16-byte loads in flight a thread. Those are 32 KB for one
// block of 512 threads, enough for 4.3 TB/s at 0.8 us on each of 132 multiprocessors.
inline constexpr int32_t kLoopThreads = 512;
template <int kWidth, int kTensors>
inline constexpr int kLoopVectors = (kWidth > 1 ? 4 : 8) / kTensors;

// Whether a kernel that walks along a row is compiled for vectors of this width.
template <class T, int kWidth>
inline constexpr bool kIsLoopWidth = kIsWide<T, kWidth> || kWidth == 1;

// Rows of up to max_cols columns stay in registers, `elements` a thread.
struct Regime {
  int32_t max_cols, elements;
};

// The regimes for one dtype size and vector width, by ascending max_cols. Unused ones are zero, as
// no row is that short.
inline constexpr int kMaxRegimes = 4;
using RegimeTable = Regime[kMaxRegimes];

// The regimes of a kernel. Doubles have one table for all widths; `narrow` is for other dtypes.
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

// By line: up to a warp a row, with few registers, so that 32 KB a multiprocessor are in flight; a
// whole warp, because shuffles cost less than a barrier; 3 to 8 warps, so that several rows a
// multiprocessor hide each other's barriers; 5 to 32 warps, where 1024 threads of 64 registers fill
// a multiprocessor.
inline constexpr Regimes kSoftmaxRegimes = {
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    {{8192, 16}},
    {{4096, 8}},
};
// With floats, 32 elements leave no room for weight and bias in 64 registers.
inline constexpr Regimes kNormRegimes = {
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    {{16384, 16}},
    {{4096, 8}},
    {{4096, 8}},
};
// With a residual, two tensors are in flight, and Philox takes registers too.
inline constexpr Regimes kNormAddRegimes = {{{16384, 16}}, {{16384, 16}}, {{2048, 4}}, {{2048, 4}}};
// Two tensors stay in registers: 32 values of 4 bytes a thread.
inline constexpr Regimes kSoftmaxBackwardRegimes = {
    {{16384, 16}}, {{16384, 16}}, {{8192, 16}}, {{4096, 8}}};
// Two tensors again: scores and an operand, or gradients before and after dropout. With 16 floats
// of each, the latter do not fit into 64 registers.
inline constexpr Regimes kMaskedSoftmaxRegimes = {{{16384, 16}}, {{16384, 16}}, {{8192, 16}}, {}};
inline constexpr Regimes kMaskedSoftmaxBackwardRegimes = {
    {{16384, 16}}, {{8192, 8}}, {{8192, 16}}, {}};
// Two tensors, the next row of each, and two column sums take up to 128 registers a thread.
inline constexpr Regimes kNormBackwardRegimes = {
    {{8192, 16}}, {{8192, 16}}, {{4096, 8}}, {{2048, 4}}};
// With grad_sum and dropout there is less room for floats, and for the addresses of narrow vectors.
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

// The largest blocks that kernels are compiled for. No row of their regimes needs more threads, and
// each thread may have 65536 registers divided by their number.
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

// The threads of a block that has several short rows.
inline constexpr int32_t kRowBlockThreads = 128;
inline constexpr int32_t kNormBackwardBlockThreads = 256;

// Blocks that walk over rows: two for each of the 132 multiprocessors of a Hopper. More would cost
// more partials, each of which is written and read once. The kernel that only sums columns has
// eight.
inline constexpr int64_t kNormBackwardBlocks = 264, kColumnBlocks = 1056;
inline constexpr int64_t kMinColumnRows = 16;  // of a partition of that kernel

struct RowPlan {
  int32_t width;       // elements of a vector
  int32_t elements;    // of a row in each thread's registers; 0 where no block holds the row
  int32_t threads;     // that share a row, in a block
  int32_t rows;        // of a block
  int32_t blocks = 1;  // of the cluster that holds a row
};

constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

constexpr int32_t round_up(int64_t value, int32_t step) {
  return static_cast<int32_t>(ceil_div(value, step)) * step;
}

// A power of two within a warp, else whole warps. The threads of a row read at least a sector.
constexpr int32_t threads_per_row(int64_t cols, int32_t elements, int32_t vector_bytes) {
  const int64_t wanted = ceil_div(cols, elements);
  if (wanted > 32) return round_up(wanted, 32);
  int32_t threads = vector_bytes < kSectorBytes ? kSectorBytes / vector_bytes : 1;
  while (threads < wanted) threads *= 2;
  return threads;
}

// The threads that share the longest row of a regime.
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

// Rows that no block holds are cut into segments, a block each. One kernel leaves a partial of
// every segment in the workspace; each block of a second kernel merges the partials of its row and
// writes its segment. The alternative, that the last block of a row to arrive merges, takes one
// more launch to clear a counter, and a fence of 1 us a block. The partials to merge are at most
// 1/16 of the bytes of a segment (8 of 64 * 2^k beside 8 KB * 2^k of 16 bits), and come from L2.
//
// A segment of 4096 columns gives 128 threads 8 KB in flight, with eight blocks a multiprocessor.
// One row of 2^20 columns has 128 segments, for 132 multiprocessors. Segments double in length
// where there would be more than 64, 128, ..., 1024 of them.
inline constexpr int32_t kSegmentThreads = 128, kSegmentCols = 4096, kMaxSegments = 1024;
template <class T>
inline constexpr int32_t kSegmentBlocks = sizeof(T) == 8 ? 4 : 8;

struct Segments {
  int32_t cols;   // of a segment; the last one may have fewer
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

// The rows of one launch. What the second kernel reads again should still be in L2: 16 MB, beside
// as much that it writes, of the 40 MB of an A100 or the 50 of an H200.
inline constexpr int64_t kSegmentLaunchBytes = 16 << 20;

constexpr int64_t segment_rows(int64_t row_bytes) {
  return row_bytes < kSegmentLaunchBytes ? kSegmentLaunchBytes / row_bytes : 1;
}

// Where there are clusters (sm_90 and later), the blocks of a cluster hold a long row together:
// that takes one launch and reads the row once. A cluster always has eight blocks, of up to 1024
// threads with 64 registers: a few rows of 2^16 columns then have 8 multiprocessors each and not 2.
inline constexpr int32_t kClusterBlocks = 8;

// Clusters have kernels for wide vectors, but none for doubles.
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

// The columns of each block of a cluster, a multiple of the vector width. The last may have fewer.
constexpr int32_t cluster_cols(int64_t cols, int32_t width) {
  return round_up(ceil_div(cols, kClusterBlocks), width);
}

// The plan of clusters for rows that no block holds but a cluster does; `plan` for others.
constexpr RowPlan plan_clusters(RowPlan plan, Regime regime, int64_t cols, int32_t element_bytes) {
  const bool fits = fits_clusters(plan.width, element_bytes) && cols <= regime.max_cols;
  if (plan.elements > 0 || !fits) return plan;
  const int32_t block_cols = cluster_cols(cols, plan.width);
  const int32_t threads = threads_per_row(block_cols, regime.elements, plan.width * element_bytes);
  return {plan.width, regime.elements, threads, 1, kClusterBlocks};
}

// Spatial softmax: a block has a segment of neighbouring inner columns. The threads that share a
// column are a power of two, each with kSpatialVectors loads in flight: three blocks a
// multiprocessor of 256 threads with four 16-byte loads are 48 KB.
inline constexpr int32_t kSpatialThreads = 256, kMaxDimThreads = 32;
inline constexpr int32_t kMinSpatialVectors = 4;  // of a thread that shares a column
// With more than one vector of doubles, the exponentials would spill.
template <class T>
inline constexpr int kSpatialVectors = sizeof(T) == 8 ? 1 : 4;
// A segment is at least a sector wide. With single 16-bit columns that is 16 threads, and up to 32
// share a column.
template <class T, int kWidth>
inline constexpr int32_t kSpatialMaxThreads = sizeof(T) * kWidth == 2 ? 512 : kSpatialThreads;

struct SpatialPlan {
  int32_t width;          // columns of a thread
  int32_t inner_threads;  // side by side in a segment
  int32_t dim_threads;    // threads that share a column
  int64_t segments;       // for each outer index
};

// dim_threads, which fixes the bits of a column, depends on dim_size alone.
constexpr SpatialPlan plan_spatial(
    int64_t dim_size, int64_t inner, int32_t width, int32_t element_bytes) {
  int32_t dim_threads = 1;
  while (dim_threads < kMaxDimThreads && dim_threads * 2 * kMinSpatialVectors <= dim_size) {
    dim_threads *= 2;
  }
  int32_t threads = ceil_div(kSectorBytes, width * element_bytes);
  while (threads * dim_threads < kSpatialThreads && threads * width < inner) threads *= 2;
  return {width, threads, dim_threads, ceil_div(inner, int64_t{threads} * width)};
}

struct NormBackwardPlan {
  RowPlan row;
  int64_t partitions;     // of the rows, for sums of columns
  int64_t column_blocks;  // side by side in a partition; 1 where a block walks over whole rows
};

constexpr NormBackwardPlan plan_norm_backward(
    const Regimes& regimes, int64_t rows, int64_t cols, int32_t width, int32_t element_bytes) {
  const RowPlan row = plan_rows(regimes, cols, width, element_bytes, kNormBackwardBlockThreads);
  if (row.elements > 0) {
    const int64_t blocks = ceil_div(rows, row.rows);
    return {row, blocks < kNormBackwardBlocks ? blocks : kNormBackwardBlocks, 1};
  }
  const int64_t column_blocks = ceil_div(cols, int64_t{kColumnThreads} * row.width);
  const int64_t most = column_blocks < kColumnBlocks ? kColumnBlocks / column_blocks : 1;
  const int64_t useful = ceil_div(rows, kMinColumnRows);
  return {row, useful < most ? useful : most, column_blocks};
}

}  // namespace fusedops::cuda
