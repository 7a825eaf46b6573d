// Launch tables, and the launch plan that a row gets from them.
//
// A row's plan depends on cols, dtype and vector width, never on the number of rows: a row alone
// and the same row in any batch have the same bits. It depends on the device only in that some
// devices have no clusters, or refuse them. The limits come from registers and bytes in flight,
// computed for an H200 and not yet measured.
#pragma once

#include <cstdint>
#include <initializer_list>

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
  // That share a row: a power of two within a warp, or whole warps; 0 where its length says.
  int32_t threads;
};

// The regimes for one dtype size and vector width, by ascending max_cols. Unused ones are zero, as
// no row is that short.
inline constexpr int kMaxRegimes = 6;
class RegimeTable {
 public:
  constexpr RegimeTable() = default;
  constexpr RegimeTable(std::initializer_list<Regime> given) {
    int count = 0;
    for (const Regime& regime : given) regimes_[count++] = regime;
  }

  constexpr const Regime& operator[](int i) const { return regimes_[i]; }
  constexpr const Regime* begin() const { return regimes_; }
  constexpr const Regime* end() const { return regimes_ + kMaxRegimes; }

 private:
  Regime regimes_[kMaxRegimes] = {};
};

// The regimes of a kernel. Doubles have single elements alone; `narrow` is for other dtypes.
struct Regimes {
  RegimeTable of_16_bits, of_32_bits, narrow, of_64_bits;

  constexpr const RegimeTable& table(int32_t element_bytes, bool is_wide) const {
    if (element_bytes == 8) return of_64_bits;
    if (!is_wide) return narrow;
    return element_bytes == 2 ? of_16_bits : of_32_bits;
  }
};

// Whether a regime of the table fixes `threads` for that many elements: such plans have a kernel of
// their own.
constexpr bool is_fixed(const RegimeTable& table, int32_t elements, int32_t threads) {
  for (const Regime& regime : table) {
    if (regime.elements == elements && regime.threads == threads) return true;
  }
  return false;
}

// The regime of the longest rows that a block holds.
constexpr Regime longest_of(const RegimeTable& table) {
  Regime longest = {};
  for (const Regime& regime : table) {
    if (regime.max_cols > longest.max_cols) longest = regime;
  }
  return longest;
}

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

// Rows of narrow vectors, an instruction for each element: a regime fixes the threads of a row of
// up to a warp, so that addresses are constants, and 577 columns (24 * 24 patches and a class) fill
// the elements of one.
inline constexpr RegimeTable kNarrowRegimes = {
    {64, 8, 8}, {128, 8, 16}, {256, 16, 16}, {640, 20, 32}, {1024, 32, 32}, {8192, 16},
};

// By line of floats: up to a warp a row, with few registers, so that 32 KB a multiprocessor are in
// flight; a whole warp, because shuffles cost less than a barrier; 3 to 8 warps, so that several
// rows a multiprocessor hide each other's barriers; 5 to 32 warps, where 1024 threads of 64
// registers fill a multiprocessor. In 16 bits 32 elements serve all rows of more than a warp:
// instructions limit them, and reductions and addresses are then shared by twice the elements.
inline constexpr Regimes kSoftmaxRegimes = {
    {{512, 16}, {32768, 32}},
    {{512, 16}, {1024, 32}, {4096, 16}, {32768, 32}},
    kNarrowRegimes,
    {{4096, 8}},
};
// Norms take more instructions: in 16 bits a thread has 64 elements, and 512 threads of 128
// registers have as many bytes in flight as 1024 of 64. With floats, 32 elements leave no room for
// weight and bias in 64 registers.
inline constexpr Regimes kNormRegimes = {
    {{512, 16}, {32768, 64}},
    {{16384, 16}},
    kNarrowRegimes,
    {{4096, 8}},
};
// With a residual, two tensors are in flight, and Philox takes registers too; unrolled for each
// narrow vector, it takes most of the code.
inline constexpr Regimes kNormAddRegimes = {
    {{16384, 16}},
    {{16384, 16}},
    {{64, 8, 8}, {256, 8, 32}, {640, 10, 64}, {1024, 8, 128}, {2048, 4}},
    {{2048, 4}},
};
// Two tensors stay in registers: 32 values of 4 bytes a thread.
inline constexpr Regimes kSoftmaxBackwardRegimes = {
    {{16384, 16}},
    {{16384, 16}},
    kNarrowRegimes,
    {{4096, 8}},
};
// Scores of one part (scores.h), and at most one tensor that is added to them in their own dtype. A
// thread of 16 bits has 64 elements, as a row costs 150 to 250 instructions of a warp once, for its
// start and two reductions, and 72 for each 8 elements. Rows of one warp, the most common of long
// ones, have a kernel that knows it: the vectors of a thread are then a constant apart.
inline constexpr Regimes kMaskedSoftmaxRegimes = {
    {{1024, 64}, {2048, 64, 32}, {32768, 64}}, {{16384, 16}}, {}, {}};
// 16 floats of each of two tensors do not fit into 64 registers everywhere: 896 threads have 72.
inline constexpr Regimes kMaskedSoftmaxBackwardRegimes = {{{16384, 16}}, {{14336, 16}}, {}, {}};
// Scores of any parts. What is added to them are floats: 16 of them beside 16 float scores do not
// fit into 64 registers, nor do 16 gradients beside 16 probabilities and a mask. 16 scores of 16
// bits do in 72, which 896 threads have; gradients of single elements take 91, which 384 have.
inline constexpr Regimes kAnyMaskedSoftmaxRegimes = {{{14336, 16}}, {{8192, 8}}, {{6144, 16}}, {}};
// Scores of plain parts (scores.h) in single elements; other such rows are for scores of any parts.
inline constexpr Regimes kPlainMaskedSoftmaxRegimes = {
    {}, {}, {{64, 8, 8}, {256, 16, 16}, {640, 20, 32}, {1024, 32, 32}}, {}};
// Two tensors, the next row of each, and two column sums take up to 128 registers a thread. Narrow
// vectors have the weights in shared memory, where offsets are constants, and so as many elements
// as wide ones: with 8 of them half of the bytes would be in flight, and each element would bear
// twice its share of what a row costs once, 150 to 200 instructions of a warp.
inline constexpr Regimes kNormBackwardRegimes = {
    {{8192, 16}},
    {{8192, 16}},
    {{64, 8, 8}, {256, 16, 16}, {640, 10, 64}, {1024, 16, 64}, {4096, 8}},
    {{2048, 4}},
};
// With grad_sum and dropout there is less room for floats, and for the addresses of narrow vectors
// where they are no constants.
inline constexpr Regimes kNormAddBackwardRegimes = {
    {{8192, 16}},
    {{4096, 8}},
    {{64, 8, 8}, {256, 8, 32}, {1024, 8, 128}, {2048, 4}},
    {{2048, 4}},
};

static_assert(is_ascending(kSoftmaxRegimes) && is_ascending(kSoftmaxBackwardRegimes));
static_assert(is_ascending(kMaskedSoftmaxRegimes) && is_ascending(kAnyMaskedSoftmaxRegimes));
static_assert(is_ascending(kMaskedSoftmaxBackwardRegimes));
static_assert(is_ascending(kPlainMaskedSoftmaxRegimes));
static_assert(is_ascending(kNormRegimes) && is_ascending(kNormAddRegimes));
static_assert(is_ascending(kNormBackwardRegimes) && is_ascending(kNormAddBackwardRegimes));

constexpr const Regimes& masked_softmax_regimes(bool any_parts) {
  return any_parts ? kAnyMaskedSoftmaxRegimes : kMaskedSoftmaxRegimes;
}
constexpr const Regimes& masked_softmax_backward_regimes(bool any_parts) {
  return any_parts ? kAnyMaskedSoftmaxRegimes : kMaskedSoftmaxBackwardRegimes;
}
constexpr const Regimes& norm_regimes(bool adds) { return adds ? kNormAddRegimes : kNormRegimes; }
constexpr const Regimes& norm_backward_regimes(bool adds) {
  return adds ? kNormAddBackwardRegimes : kNormBackwardRegimes;
}

// The threads of a block that has several short rows.
inline constexpr int32_t kRowBlockThreads = 128;

// The largest blocks that kernels are compiled for. No row of their regimes needs more threads, and
// each thread may have 65536 registers divided by their number. kThreads: those that share a row
// where the regime fixes them.
template <class T, int kWidth, int kElements, int kThreads = 0>
inline constexpr int32_t kSoftmaxThreads = kThreads > 0 ? kRowBlockThreads
    : !kIsWide<T, kWidth> || kElements > 32             ? 512
    : kElements <= 16                                   ? 256
                                                        : kMaxThreads;
// 32 elements of a row in narrow vectors are one warp's; with 128 registers they would spill.
template <class T, int kWidth, int kElements>
inline constexpr bool kIsOneWarp = !kIsWide<T, kWidth> && kElements == 32;
template <class T, int kWidth, int kElements, bool kAdd, int kThreads = 0>
inline constexpr int32_t kNormThreads =
    kThreads > 0 || kIsOneWarp<T, kWidth, kElements> ? kRowBlockThreads
    : !kIsWide<T, kWidth> || kElements > 32          ? 512
    : sizeof(T) == 2 && kElements <= 16 && !kAdd     ? 256
                                                     : kMaxThreads;
template <class T, int kWidth, int kThreads = 0>
inline constexpr int32_t kSoftmaxBackwardThreads = kThreads > 0 ? kRowBlockThreads
    : !kIsWide<T, kWidth>                                       ? 512
                                                                : kMaxThreads;
// With 64 elements, a warp has a row.
template <class T, int kWidth, int kElements, bool kAnyParts>
inline constexpr int32_t kMaskedSoftmaxThreads = !kIsWide<T, kWidth> || kElements > 32 ? 512
    : kElements > 16 || (kElements == 16 && kAnyParts)                                 ? 896
                                                       : kMaxThreads;
template <class T, int kWidth, int kElements>
inline constexpr int32_t kMaskedSoftmaxBackwardThreads = !kIsWide<T, kWidth> ? 384
    : sizeof(T) == 4 && kElements == 16                                      ? 896
                                        : kSoftmaxBackwardThreads<T, kWidth>;
inline constexpr int32_t kNormBackwardThreads = 512;

// Those of a cluster.
template <class T, int kWidth, int kElements>
inline constexpr int32_t kClusterThreads =
    kElements > 32 || (!kIsWide<T, kWidth> && kElements > 16) ? 512 : kMaxThreads;

// The second launch bound: the blocks of a multiprocessor that the compiler makes room for, or 0
// for a number of its own. That would be so many for narrow vectors and doubles that they spill.
template <class T, int kWidth>
inline constexpr int32_t kLeastBlocks = kIsWide<T, kWidth> ? 0 : 1;

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

// The threads that share a row of a regime.
constexpr int32_t threads_of(Regime regime, int64_t cols, int32_t vector_bytes) {
  return regime.threads > 0 ? regime.threads : threads_per_row(cols, regime.elements, vector_bytes);
}

// Those that share its longest row.
constexpr int32_t max_threads(Regime regime, int32_t vector_bytes) {
  return threads_of(regime, regime.max_cols, vector_bytes);
}

constexpr RowPlan plan_rows(
    const Regimes& regimes, int64_t cols, int32_t width, int32_t element_bytes,
    int32_t block_threads = kRowBlockThreads) {
  const bool wide = width * element_bytes == kMaxVectorBytes;
  for (const Regime& regime : regimes.table(element_bytes, wide)) {
    if (cols > regime.max_cols) continue;
    const int32_t threads = threads_of(regime, cols, width * element_bytes);
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
// that takes one launch and reads the row once.
inline constexpr int32_t kMaxClusterBlocks = 16;  // above 8 a device may refuse them

// Clusters have kernels for wide vectors, but none for doubles.
constexpr bool fits_clusters(int32_t width, int32_t element_bytes) {
  return width * element_bytes == kMaxVectorBytes && element_bytes < 8;
}
template <class T, int kWidth>
inline constexpr bool kFitsClusters = fits_clusters(kWidth, sizeof(T));
// Some have kernels for single elements too, which all narrow rows go by where no block holds them.
template <class T, int kWidth>
inline constexpr bool kFitsNarrowClusters = kWidth == 1 && sizeof(T) < 8;

// Rows of up to max_cols columns are held by clusters of that many blocks.
struct ClusterRegime {
  int32_t max_cols, blocks;
};

// The clusters of a kernel, by ascending max_cols, for rows above block_cols.
struct Clusters {
  int32_t elements;    // of a row in each thread's registers
  int32_t block_cols;  // the longest row that one block holds as well as a cluster would
  ClusterRegime regimes[3];
};

// The smallest cluster whose blocks have up to 512 threads of 64 registers, or 256 of 128: two
// blocks then share a multiprocessor, and one loads while the other computes or stores. A single
// block of twice the threads would fill it alone. Only the longest rows take such blocks.
inline constexpr Clusters kClustersOf64 = {64, 16384, {{32768, 2}, {65536, 4}, {262144, 8}}};
inline constexpr Clusters kClustersOf32 = {32, 16384, {{32768, 2}, {65536, 4}, {262144, 8}}};
inline constexpr Clusters kClustersOf16 = {16, 8192, {{16384, 2}, {32768, 4}, {131072, 8}}};
// 512 threads of 128 registers, as in kNormBackwardRegimes and kNormAddBackwardRegimes.
inline constexpr Clusters kNormBackwardClusters = {16, 8192, {{16384, 2}, {32768, 4}, {65536, 8}}};
inline constexpr Clusters kFloatNormAddBackwardClusters = {
    8, 4096, {{8192, 2}, {16384, 4}, {32768, 8}}};
// For scores of any parts, with 512 threads of 128 registers. What one block holds stays with it:
// the kernels for one part take half of these instructions.
inline constexpr Clusters kMaskedClusters = {32, 32768, {{32768, 4}, {131072, 8}}};
inline constexpr Clusters kFloatMaskedClusters = {16, 16384, {{16384, 4}, {65536, 8}}};
inline constexpr int32_t kMaskedClusterThreads = 512;

inline constexpr Clusters kNoClusters = {};
inline constexpr Clusters kNarrowClusters = {16, 8192, {{16384, 2}, {32768, 4}, {131072, 8}}};
// What a row of norms costs a warp once is twice that of softmax.
inline constexpr Clusters kNarrowNormClusters = {32, 8192, {{16384, 2}, {32768, 4}, {131072, 8}}};
inline constexpr Clusters kNarrowNormBackwardClusters = {
    16, 4096, {{16384, 2}, {32768, 4}, {65536, 8}}};
inline constexpr Clusters kSoftmaxBackwardClusters = kClustersOf16;
constexpr const Clusters& softmax_clusters(int32_t element_bytes) {
  return element_bytes == 2 ? kClustersOf64 : kClustersOf32;
}
constexpr const Clusters& masked_clusters(int32_t element_bytes) {
  return element_bytes == 2 ? kMaskedClusters : kFloatMaskedClusters;
}
constexpr const Clusters& norm_clusters(int32_t element_bytes, bool adds) {
  return element_bytes == 2 && !adds ? kClustersOf64 : kClustersOf16;
}
constexpr const Clusters& norm_backward_clusters(int32_t element_bytes, bool adds) {
  return element_bytes == 4 && adds ? kFloatNormAddBackwardClusters : kNormBackwardClusters;
}

// The vectors of a thread of a cluster.
template <class T, int kWidth>
constexpr int cluster_vectors(const Clusters& wide, const Clusters& narrow = kNarrowClusters) {
  return (kIsWide<T, kWidth> ? wide : narrow).elements / kWidth;
}

// The plan of clusters for rows that they hold better than one block; `plan` for others. Each block
// has neighbouring columns, as many as its threads hold, and the last one what is left.
constexpr RowPlan plan_clusters(
    RowPlan plan, const Clusters& wide, const Clusters& narrow, int64_t cols,
    int32_t element_bytes) {
  const Clusters& clusters = fits_clusters(plan.width, element_bytes) ? wide : narrow;
  const bool is_held = plan.elements > 0 && cols <= clusters.block_cols;
  if (is_held || element_bytes == 8) return plan;
  for (const ClusterRegime& regime : clusters.regimes) {
    if (cols > regime.max_cols) continue;
    const int32_t threads = threads_per_row(
        ceil_div(cols, regime.blocks), clusters.elements, plan.width * element_bytes);
    return {plan.width, clusters.elements, threads, 1, regime.blocks};
  }
  return plan;
}

// Where the block of a spatial softmax keeps what it has loaded between its two passes over a
// strip, dim_size indices of a segment of neighbouring inner columns; kKeepNothing: it loads the
// strip twice.
enum SpatialKeep : int { kKeepRegisters, kKeepShared, kKeepNothing };

// The threads that share a column are a power of two, each with kSpatialVectors loads in flight:
// three blocks a multiprocessor of 256 threads with four 16-byte loads are 48 KB. A thread that
// keeps its loads in registers has no others, which ends at 256 indices.
inline constexpr int32_t kSpatialThreads = 256;
inline constexpr int32_t kTileIndices = 4;  // of a thread, with all its loads in flight
inline constexpr int32_t kMaxRegisterThreads = 64, kMaxSharedThreads = 128, kStreamThreads = 32;
// With more than one vector of doubles, the exponentials would spill.
template <class T>
inline constexpr int kSpatialVectors = sizeof(T) == 8 ? 1 : kTileIndices;

// A strip in shared memory has up to 96 KB, so that two blocks share the 228 KB of a Hopper's
// multiprocessor. 24 indices a thread are as much, with 256 threads and 16 bytes.
inline constexpr int32_t kStripIndices = 24;
inline constexpr int64_t kReduceBytes = 8 << 10;  // that a kernel has beside the strip, at most

// A segment is at least a sector wide, where a block has room for that.
template <class T, int kWidth>
inline constexpr int32_t kSpatialMaxThreads = kIsWide<T, kWidth> ? kSpatialThreads
    : sizeof(T) == 8                                             ? 512
                                                                 : kMaxThreads;

struct SpatialPlan {
  int32_t width;          // columns of a thread
  int32_t inner_threads;  // side by side in a segment
  int32_t dim_threads;    // threads that share a column
  int64_t segments;       // for each outer index
  SpatialKeep keep;
  int64_t shared_bytes;  // of the strip, where it is kept there
};

// The number of threads that share a column fixes its bits. It depends on dim_size alone, and on
// how many tensors are kept.
struct SpatialDims {
  int32_t threads;
  SpatialKeep keep;
};

constexpr SpatialDims plan_spatial_dims(int64_t dim_size, int32_t tensors) {
  int32_t threads = 1;
  while (threads < kMaxRegisterThreads && threads * kTileIndices < dim_size) threads *= 2;
  if (threads * kTileIndices >= dim_size) return {threads, kKeepRegisters};
  threads = kStreamThreads;
  while (threads < kMaxSharedThreads && threads * kStripIndices < dim_size * tensors) threads *= 2;
  if (threads * kStripIndices >= dim_size * tensors) return {threads, kKeepShared};
  return {kStreamThreads, kKeepNothing};
}

// A block of the device may have max_shared_bytes. Where that is too little for a strip, or for
// doubles, columns are loaded twice, by as many threads.
constexpr SpatialPlan plan_spatial(
    int64_t dim_size, int64_t inner, int32_t width, int32_t element_bytes, int32_t tensors,
    int64_t max_shared_bytes) {
  const SpatialDims dims = plan_spatial_dims(dim_size, tensors);
  const int32_t vector_bytes = width * element_bytes;
  int32_t threads = ceil_div(kSectorBytes, vector_bytes);
  while (threads * dims.threads > kMaxThreads) threads /= 2;
  while (threads * dims.threads < kSpatialThreads && threads * width < inner) threads *= 2;
  const int64_t segments = ceil_div(inner, int64_t{threads} * width);
  SpatialPlan plan = {width, threads, dims.threads, segments, dims.keep, 0};
  if (dims.keep == kKeepShared) {
    const int32_t indices = round_up(dim_size, dims.threads * kTileIndices);
    plan.shared_bytes = int64_t{tensors} * indices * threads * vector_bytes;
  }
  const bool fits = plan.shared_bytes + kReduceBytes <= max_shared_bytes;
  if (element_bytes == 8 || !fits) plan.keep = kKeepNothing, plan.shared_bytes = 0;
  return plan;
}

// Backward of norms: blocks walk over the rows of a partition. Their 512 threads have up to 128
// registers each, all that a multiprocessor has, and 32 KB of the next row in flight. One block for
// each of the 132 multiprocessors of a Hopper is one wave; blocks of half the threads, two of them,
// would write twice the partials. A partial is a pair of accumulators for each column, written and
// read once: with 132 partitions that is 0.13 of the input's bytes for 8192 rows of 16 bits.
inline constexpr int64_t kMultiprocessors = 132;
inline constexpr int64_t kNormBackwardBlocks = 132;  // that hold whole rows
// GPCs of 16 or 18 multiprocessors hold this many in clusters of four or eight.
inline constexpr int64_t kClusterMultiprocessors = 128;
// Few rows: fewer partitions, so that partials have no more bytes than tensors (with four rows of
// 16 bits two thirds of them). In a block with one more row the next one is in flight already: it
// costs 0.7 us, in which L2 moves 3.5 MB, the partials of 53 partitions of 4096 columns.
inline constexpr int64_t kMinPartitionRows = 4;
// Few partitions, where many blocks share a row: more than one wave, so that sums over r rows have
// at most 64 or r / 64 additions in a thread. That is what numerics_bounds.md promises of them.
inline constexpr int64_t kMaxPartitionRows = 64, kAccuratePartitions = 64;

constexpr int64_t count_partitions(int64_t rows, int32_t block_rows, int64_t wave) {
  const int64_t least_rows = block_rows > kMinPartitionRows ? block_rows : kMinPartitionRows;
  const int64_t useful = ceil_div(rows, least_rows);
  const int64_t short_ones = ceil_div(rows, kMaxPartitionRows);
  const int64_t accurate = short_ones < kAccuratePartitions ? short_ones : kAccuratePartitions;
  const int64_t waves = round_up(accurate, static_cast<int32_t>(wave));
  return useful < waves ? useful : waves;
}

enum class NormScope { kBlock, kCluster, kSegments };

struct NormBackwardPlan {
  NormScope scope;
  RowPlan row;         // for kSegments, of a segment
  Segments segments;   // of a row, each as long as a block holds
  int64_t partitions;  // of the rows, for sums of columns
};

// Segments of about equal length, as few as blocks of the longest regime take.
constexpr NormBackwardPlan plan_norm_backward_segments(
    const Regimes& regimes, int64_t rows, int64_t cols, RowPlan row, int32_t element_bytes) {
  const bool wide = row.width * element_bytes == kMaxVectorBytes;
  const Regime longest = longest_of(regimes.table(element_bytes, wide));
  const int64_t least = ceil_div(cols, longest.max_cols);
  const int32_t each = round_up(ceil_div(cols, least), row.width);
  const Segments segments = {each, static_cast<int32_t>(ceil_div(cols, each))};
  row.elements = longest.elements;
  row.threads = threads_per_row(each, longest.elements, row.width * element_bytes);
  const int64_t wave = segments.count < kMultiprocessors ? kMultiprocessors / segments.count : 1;
  return {NormScope::kSegments, row, segments, count_partitions(rows, 1, wave)};
}

constexpr NormBackwardPlan plan_norm_backward(
    bool adds, bool has_clusters, int64_t rows, int64_t cols, int32_t width,
    int32_t element_bytes) {
  const Regimes& regimes = norm_backward_regimes(adds);
  RowPlan row = plan_rows(regimes, cols, width, element_bytes, kNormBackwardThreads);
  if (row.elements > 0) {
    return {NormScope::kBlock, row, {}, count_partitions(rows, row.rows, kNormBackwardBlocks)};
  }
  if (has_clusters) {
    const Clusters& narrow = adds ? kNoClusters : kNarrowNormBackwardClusters;
    row = plan_clusters(
        row, norm_backward_clusters(element_bytes, adds), narrow, cols, element_bytes);
    const int64_t wave = kClusterMultiprocessors / row.blocks;
    if (row.blocks > 1) return {NormScope::kCluster, row, {}, count_partitions(rows, 1, wave)};
  }
  return plan_norm_backward_segments(regimes, rows, cols, row, element_bytes);
}

// The kernels of stacks take their threads from the launch: without constant offsets, 16 elements
// of narrow vectors spill. Such tensors are launched one by one.
constexpr bool fits_norm_stack_backward(int32_t elements, int32_t vector_bytes) {
  return vector_bytes == kMaxVectorBytes || elements <= 10;
}

// The kernel that adds partials has 32 threads for each column of a block. A block has a line of
// floats, or a sector where there are few columns: 1056 of them have a block for each
// multiprocessor.
inline constexpr int32_t kMinFinishCols = 8, kMaxFinishCols = 32;

constexpr int32_t finish_cols(int64_t cols) {
  return cols < kMultiprocessors * kMaxFinishCols ? kMinFinishCols : kMaxFinishCols;
}
static_assert(ceil_div(1056, finish_cols(1056)) == kMultiprocessors);

}  // namespace fusedops::cuda
