// Launch plans say how many blocks, threads and elements per thread a row gets. plans.def lists
// those that kernels are compiled for.
//
// A row's plan depends on cols, dtype and vector width, never on the number of rows: a row alone
// and the same row in any batch have the same bits. It depends on the device only in that some
// devices have no clusters, or refuse them. How many blocks share the sums of columns depends on
// the number of rows and on the number of the device's multiprocessors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

namespace fusedops::cuda {

inline constexpr int32_t kMaxThreads = 1024;
inline constexpr int32_t kMaxVectorBytes = 16;
inline constexpr int32_t kSectorBytes = 32;  // the smallest transfer of DRAM and L2

// Vectors of 16 bytes are wide. Rows that are not aligned for them need a predicate and an address
// for every few bytes. Threads hold less of such a row, because registers would spill otherwise.
template <class T, int kWidth>
inline constexpr bool kIsWide = kWidth * sizeof(T) == kMaxVectorBytes;

// Kernels that walk along a row have four 16-byte loads in flight a thread, which is 32 KB for a
// block of 512 threads: on 132 multiprocessors, 5.4 TB/s at a latency of 0.8 us. Single elements
// are loaded eight at a time. The kTensors tensors that a kernel reads share the loads.
inline constexpr int32_t kLoopThreads = 512;
template <int kWidth, int kTensors>
inline constexpr int kLoopVectors = (kWidth > 1 ? 4 : 8) / kTensors;

#define CONSTANT(name, value) inline constexpr int32_t name = value;
#include "cuda/launch/plans.def"

// The scope is what holds a row: the registers of one block (kRegisters) or of a cluster of blocks
// (kCluster), a block for each segment of the row (kSegments), or one block that walks along the
// row (kLooped). In spatial kernels a block holds a strip of columns (kSpatial).
enum class Scope { kRegisters, kCluster, kSegments, kLooped, kSpatial };

// A pass is a set of kernels that share plans. kMaskedForward, kMaskedBackward: the scores have at
// most one term (scores.h). kAnyMasked: scores of any terms, forward and backward. kPlainMasked:
// short unaligned rows whose scores are plain (is_plain in masked_softmax/launch.cu).
enum class Pass {
  kSoftmaxForward,
  kSoftmaxBackward,
  kMaskedForward,
  kMaskedBackward,
  kAnyMasked,
  kPlainMasked,
  kNormForward,
  kAddNormForward,
  kNormBackward,
  kAddNormBackward,
  kCrossEntropy,
  kSpatial,
};

// Says how a row is read. kWide16, kWide32: in 16-byte vectors of 16-bit elements or of floats.
// kUnaligned: in 4-byte vectors of 16-bit elements or, where rows are not aligned for those either,
// in single elements. kSingle: in single elements. kDoubles: in single doubles, which are meant for
// checks of gradients. 8-byte vectors would gain little, as all loads of a row are in flight at
// once, and would need a third more kernels.
enum class Vectors { kWide16, kWide32, kUnaligned, kSingle, kDoubles };

// Is a line of plans.def: rows of up to max_cols columns have this plan.
struct ListedPlan {
  Pass pass;
  Vectors vectors;
  Scope scope;
  int64_t max_cols;
  int32_t elements;  // elements of a row in each thread's registers
  // This is the number of threads that share a row, if the kernel is compiled for that number: a
  // power of two within a warp, or whole warps. It is 0 if the row's length decides.
  int32_t threads;
  int32_t blocks;  // blocks of a cluster
};

inline constexpr int64_t kAnyLength = INT64_MAX;
inline constexpr ListedPlan kPlans[] = {
#define REGISTERS(pass, vectors, cols, elements, threads) \
  {Pass::pass, Vectors::vectors, Scope::kRegisters, cols, elements, threads, 1},
#define CLUSTER(pass, vectors, cols, elements, blocks) \
  {Pass::pass, Vectors::vectors, Scope::kCluster, cols, elements, 0, blocks},
#define SEGMENTS(pass, vectors, elements) \
  {Pass::pass, Vectors::vectors, Scope::kSegments, kAnyLength, elements, 0, 1},
#define LOOPED(pass, vectors) {Pass::pass, Vectors::vectors, Scope::kLooped, kAnyLength, 0, 0, 1},
#define SPATIAL(vectors) {Pass::kSpatial, Vectors::vectors, Scope::kSpatial, kAnyLength, 0, 0, 1},
#include "cuda/launch/plans.def"
};

// Holds the plans of a pass, which stand side by side in a list.
struct PlanRange {
  const ListedPlan* first;
  size_t count;
  constexpr const ListedPlan* begin() const { return first; }
  constexpr const ListedPlan* end() const { return first + count; }
};

template <size_t kSize>
constexpr PlanRange plans_of(Pass pass, const ListedPlan (&list)[kSize]) {
  size_t first = 0, count = 0;
  while (first < kSize && list[first].pass != pass) ++first;
  while (first + count < kSize && list[first + count].pass == pass) ++count;
  return {list + first, count};
}
constexpr PlanRange plans_of(Pass pass) { return plans_of(pass, kPlans); }

// Returns whether the block or the cluster of each listed plan has room for its longest row. Plans
// that hold no whole row are always valid.
constexpr bool are_valid() {
  for (const ListedPlan& listed : kPlans) {
    const bool is_held = listed.scope == Scope::kRegisters || listed.scope == Scope::kCluster;
    const int64_t threads = listed.threads > 0 ? listed.threads : kMaxThreads;
    if (is_held && listed.max_cols > threads * listed.elements * listed.blocks) return false;
  }
  return true;
}
static_assert(are_valid(), "a line of plans.def has more columns than its threads hold");

// Returns the width of the vectors in which the kernel of a listed plan reads rows that are aligned
// for `width` elements, or 0 if the plan is not for such rows.
constexpr int32_t width_in(const ListedPlan& listed, int32_t width, int32_t element_bytes) {
  const bool is_wide = width * element_bytes == kMaxVectorBytes;
  switch (listed.vectors) {
    case Vectors::kWide16:
      return is_wide && element_bytes == 2 ? width : 0;
    case Vectors::kWide32:
      return is_wide && element_bytes == 4 ? width : 0;
    case Vectors::kUnaligned:
      return is_wide || element_bytes == 8 ? 0 : width;
    case Vectors::kSingle:
      return is_wide || element_bytes == 8 ? 0 : 1;
    case Vectors::kDoubles:
      return element_bytes == 8 ? 1 : 0;
  }
  return 0;
}

// These are the threads of the largest blocks that kernels are compiled for. No row of their plans
// needs more, and each thread may have 65536 registers divided by this number. kThreads is the
// number of threads that share a row where the plan fixes it, else 0.
template <class T, int kWidth, int kElements, int kThreads = 0>
inline constexpr int32_t kSoftmaxThreads = kThreads > 0 ? kRowBlockThreads
    : !kIsWide<T, kWidth> || kElements > 32             ? 512
    : kElements <= 16                                   ? 256
                                                        : kMaxThreads;
// Unaligned rows with 32 elements a thread have one warp each, in small blocks: in blocks of 512
// threads, a thread may have no more than 128 registers, and values would spill.
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
template <class T, int kWidth, int kElements>
inline constexpr int32_t kMaskedSoftmaxBackwardThreads = !kIsWide<T, kWidth> ? 384
    : sizeof(T) == 4 && kElements == 16                                      ? 896
                                        : kSoftmaxBackwardThreads<T, kWidth>;
inline constexpr int32_t kNormBackwardThreads = 512;

// A block of a cluster has at most kClusterThreads.
template <class T, int kWidth, int kElements>
inline constexpr int32_t kClusterThreads =
    kElements > 32 || (!kIsWide<T, kWidth> && kElements > 16) ? 512 : kMaxThreads;

// This is the second launch bound: the blocks of a multiprocessor that the compiler makes room for,
// or 0 where it may choose. For unaligned rows and doubles it would choose so many that registers
// spill.
template <class T, int kWidth>
inline constexpr int32_t kLeastBlocks = kIsWide<T, kWidth> ? 0 : 1;

struct RowPlan {
  Scope scope;
  int32_t width;          // elements of a vector
  int32_t elements;       // row elements in a thread's registers; 0 where a block loops over them
  int32_t fixed_threads;  // `threads`, where the kernel is compiled for that number; else 0
  int32_t threads;        // threads of a block that share a row
  int32_t rows;           // rows of a block
  int32_t blocks;         // blocks of the cluster that holds a row
};

constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

constexpr int32_t round_up(int64_t value, int32_t step) {
  return static_cast<int32_t>(ceil_div(value, step)) * step;
}

// Returns the number of threads that share a row: a power of two within a warp, else whole warps.
// Together they read at least a sector.
constexpr int32_t threads_per_row(int64_t cols, int32_t elements, int32_t vector_bytes) {
  const int64_t wanted = ceil_div(cols, elements);
  if (wanted > 32) return round_up(wanted, 32);
  int32_t threads = vector_bytes < kSectorBytes ? kSectorBytes / vector_bytes : 1;
  while (threads < wanted) threads *= 2;
  return threads;
}

// Completes a listed plan for rows of `cols` columns, which must not exceed its max_cols: computes
// how many threads of a block share a row, and how many rows a block of block_threads has.
constexpr RowPlan plan_from(
    const ListedPlan& listed, int64_t cols, int32_t width, int32_t element_bytes,
    int32_t block_threads) {
  RowPlan plan{
      listed.scope,
      width,
      listed.elements,
      /*fixed_threads=*/listed.threads,
      /*threads=*/listed.threads,
      /*rows=*/1,
      listed.blocks};
  if (plan.threads > 0) {
    plan.rows = block_threads / plan.threads;
  } else if (listed.elements > 0) {
    const int64_t block_cols = ceil_div(cols, listed.blocks);
    plan.threads = threads_per_row(block_cols, listed.elements, width * element_bytes);
    if (listed.blocks == 1 && plan.threads < block_threads)
      plan.rows = block_threads / plan.threads;
  } else {
    const int64_t vectors = cols / width;
    plan.threads = vectors < kLoopThreads ? round_up(vectors, 32) : kLoopThreads;
  }
  return plan;
}

// Plans a row by the first listed plan that is for it, with clusters of at most `cluster_limit`
// blocks. Where a cluster is faster than one block for as many columns, the list has the cluster
// first, and the block is for devices without clusters. The blocks of a cluster have neighbouring
// columns, as many as their threads hold, and the last block has the rest. If no listed plan is for
// the row, all numbers of the result are 0, and find_kernel() finds no kernel for them.
constexpr RowPlan plan_rows(
    Pass pass, int64_t cols, int32_t width, int32_t element_bytes, int32_t cluster_limit,
    int32_t block_threads = kRowBlockThreads) {
  for (const ListedPlan& listed : plans_of(pass)) {
    const int32_t plan_width = width_in(listed, width, element_bytes);
    if (plan_width > 0 && cols <= listed.max_cols && listed.blocks <= cluster_limit) {
      return plan_from(listed, cols, plan_width, element_bytes, block_threads);
    }
  }
  return {};
}

// Rows that no block holds are cut into segments, a block each. One kernel leaves a partial of
// every segment in the workspace; each block of a second kernel merges the partials of its row and
// writes its segment. If the last block of a row to end merged the partials instead, that would
// take one more launch, to clear a counter, and a fence of 1 us a block. A block reads the partials
// from L2, at most 3/32 of the bytes of its segment: 64 * 2^k partials of 12 bytes (norms) beside
// 8 KB * 2^k of 16-bit elements, if segments have doubled in length k times.
//
// A segment of 4096 columns gives 128 threads 8 KB in flight, with eight blocks a multiprocessor.
// One row of 2^20 columns has 128 segments, for 132 multiprocessors. Segments double in length
// where there would be more than 64, 128, ..., 1024 of them.
inline constexpr int32_t kSegmentThreads = 128, kMaxSegments = 1024;
// This is the second launch bound of kernels for segments: how many blocks share the registers of a
// multiprocessor.
template <class T>
inline constexpr int32_t kSegmentBlocks = sizeof(T) == 8 ? 4 : 8;

struct Segments {
  int32_t cols;   // columns of a segment; the last one may have fewer
  int32_t count;  // segments of a row
};

// Cuts a row into segments of at least `segment` columns, at first at most `most` of them.
constexpr Segments plan_segments(int64_t cols, int64_t segment = kSegmentCols, int64_t most = 64) {
  while (ceil_div(cols, segment) > most) {
    segment *= 2;
    if (most < kMaxSegments) most *= 2;
  }
  return {static_cast<int32_t>(segment), static_cast<int32_t>(ceil_div(cols, segment))};
}

// How many rows does one launch take? Their data should still be in L2 when the second kernel reads
// it again: 16 MB, beside as much that this kernel writes, of the 40 MB of an A100 or the 50 MB of
// an H200.
inline constexpr int64_t kSegmentLaunchBytes = 16 << 20;

constexpr int64_t segment_rows(int64_t row_bytes) {
  return row_bytes < kSegmentLaunchBytes ? kSegmentLaunchBytes / row_bytes : 1;
}

// Where there are clusters (sm_90 and later), the blocks of a cluster hold a long row together,
// which takes one launch and reads the row once. CUDA promises clusters of 8 blocks on every such
// device; larger ones need an attribute of the kernel (read_limits in device.h), and 16 are the
// most that an H100 runs. plans.def says why blocks of masked clusters have 512 threads.
inline constexpr int32_t kMaxClusterBlocks = 16, kPortableClusterBlocks = 8;
inline constexpr int32_t kMaskedClusterThreads = 512;

// In spatial kernels the number of threads that share a column is a power of two. Each thread has
// kSpatialVectors loads in flight: with three blocks of 256 threads on a multiprocessor, four loads
// of 16 bytes a thread are 48 KB. A column of up to 256 indices is loaded once, into the registers
// of up to 64 threads. A longer one is loaded once into shared memory, by up to 128 threads. If it
// does not fit there, 32 threads load it twice.
inline constexpr int32_t kSpatialThreads = 256;
inline constexpr int32_t kTileIndices = 4;  // indices of a thread, whose loads are all in flight
inline constexpr int32_t kMaxRegisterThreads = 64, kMaxSharedThreads = 128, kStreamThreads = 32;
// With more than one vector of doubles, the exponentials would spill.
template <class T>
inline constexpr int kSpatialVectors = sizeof(T) == 8 ? 1 : kTileIndices;

// A strip in shared memory has up to 96 KB, so that two blocks share the 228 KB of a Hopper's
// multiprocessor. That is 24 indices a thread: 256 threads have 16 bytes for each index.
inline constexpr int32_t kStripIndices = 24;
inline constexpr int64_t kReduceBytes = 8 << 10;  // the most shared memory beside the strip

// This is the most threads that a spatial block has. A segment is at least a sector (32 bytes)
// wide, and up to kMaxSharedThreads threads share each column: that makes 2 * 128 threads with
// 16-byte vectors and 4 * 128 with doubles. With narrower vectors, blocks are limited to
// kMaxThreads.
template <class T, int kWidth>
inline constexpr int32_t kSpatialMaxThreads = kIsWide<T, kWidth> ? kSpatialThreads
    : sizeof(T) == 8                                             ? 512
                                                                 : kMaxThreads;

struct SpatialPlan {
  int32_t width;          // columns of a thread
  int32_t inner_threads;  // threads side by side in a segment
  int32_t dim_threads;    // threads that share a column
  int64_t segments;       // segments for each outer index
  int64_t shared_bytes;   // bytes of the strip in shared memory, if it is staged there; else 0
};

// Says how many threads share a column, and whether it is staged in shared memory. The number of
// threads fixes the bits of a column's results; it depends on dim_size and on how many tensors a
// kernel reads, and on nothing else.
struct SpatialDims {
  int32_t threads;
  bool is_staged;
};

// Returns how a column is held: in registers, or else in shared memory (staged), or else not at
// all, so that it is loaded twice.
constexpr SpatialDims plan_spatial_dims(int64_t dim_size, int32_t tensors) {
  int32_t threads = 1;
  while (threads < kMaxRegisterThreads && threads * kTileIndices < dim_size) threads *= 2;
  if (threads * kTileIndices >= dim_size) return {threads, /*is_staged=*/false};
  threads = kStreamThreads;
  while (threads < kMaxSharedThreads && threads * kStripIndices < dim_size * tensors) threads *= 2;
  if (threads * kStripIndices >= dim_size * tensors) return {threads, /*is_staged=*/true};
  return {kStreamThreads, /*is_staged=*/false};
}

// Plans the blocks of a kernel that reads `tensors` tensors, on a device where a block may have
// max_shared_bytes. If that is too little for the strips of a block, and always in doubles, the
// same number of threads loads columns twice.
constexpr SpatialPlan plan_spatial(
    int64_t dim_size, int64_t inner, int32_t width, int32_t element_bytes, int32_t tensors,
    int64_t max_shared_bytes) {
  const SpatialDims dims = plan_spatial_dims(dim_size, tensors);
  const int32_t vector_bytes = width * element_bytes;
  int32_t threads = ceil_div(kSectorBytes, vector_bytes);
  while (threads * dims.threads > kMaxThreads) threads /= 2;
  while (threads * dims.threads < kSpatialThreads && threads * width < inner) threads *= 2;
  const int64_t segments = ceil_div(inner, int64_t{threads} * width);
  SpatialPlan plan = {width, threads, dims.threads, segments, /*shared_bytes=*/0};
  if (dims.is_staged && element_bytes < 8) {
    const int32_t indices = round_up(dim_size, dims.threads * kTileIndices);
    plan.shared_bytes = int64_t{tensors} * indices * threads * vector_bytes;
  }
  if (plan.shared_bytes + kReduceBytes > max_shared_bytes) plan.shared_bytes = 0;
  return plan;
}

// In the backward pass of norms, the rows are divided into partitions. A block, or the blocks that
// share a row, walk over the rows of one partition and add up its column sums, the grad_weight and
// grad_bias of these rows, which they leave in memory as a partial. A block's 512 threads have up
// to 128 registers each, all that a multiprocessor has, and 32 KB of the next row in flight. One
// wave is one block for each multiprocessor; two blocks of half the threads would write twice the
// partials. A partial is a pair of accumulators for each column, written and read once: with the
// 132 partitions of a Hopper that is 0.13 of the input's bytes for 8192 rows of 16 bits.
//
// Returns how many multiprocessors a wave of clusters uses: 16 in each GPC. The blocks of a cluster
// lie in one GPC, which has 16 or 18 multiprocessors on a Hopper, and clusters of 4, 8 or 16 blocks
// fill 16 of them.
constexpr int64_t cluster_multiprocessors(int64_t multiprocessors) {
  constexpr int64_t kGpc = 16;
  return multiprocessors < kGpc ? multiprocessors : multiprocessors / kGpc * kGpc;
}

// Returns how many clusters of `blocks` blocks are in a wave, at least one.
constexpr int64_t wave_of(int64_t multiprocessors, int64_t blocks) {
  return multiprocessors > blocks ? multiprocessors / blocks : 1;
}

// A partition has at least this many rows, so that the partials take fewer bytes than the tensors:
// two thirds as many for four rows of 16-bit elements. A higher minimum does not pay: with five
// rows each, the rows of 132 partitions would need 106, which spares the partials of 26. But a
// fifth row costs 0.7 us, even with its loads in flight already, and L2 moves the partials of 53
// partitions of 4096 columns (3.5 MB) in that time.
inline constexpr int64_t kMinPartitionRows = 4;
// Where many blocks share a row, a wave has few partitions, each of many rows, which a thread adds
// one after the other. There are then several waves: enough for partitions of at most
// kMaxPartitionRows rows or, beyond 64 * 64 rows, for kAccuratePartitions partitions. A thread then
// makes at most max(64, r / 64) additions for each sum over r rows (docs/numerics_bounds.md).
// Clusters of four and more blocks may have 128 partitions in place of 64: the clusters of one wave
// do not end together, because not all GPCs have the same number of multiprocessors. On an H100,
// where a wave has 32 clusters of four, 64 partitions were 26 % and 132 partitions 44 % faster than
// 32; tools/tune measures 132, one partition for each multiprocessor.
inline constexpr int64_t kMaxPartitionRows = 64, kAccuratePartitions = 64;

// Returns the number of partitions: the fewest whole waves that keep the bound of
// numerics_bounds.md (above), but not so many that a partition would have fewer rows than
// kMinPartitionRows, or than a block holds. `most` partitions keep the bound for any number of
// rows.
constexpr int64_t count_partitions(
    int64_t rows, int32_t block_rows, int64_t wave, int64_t most = kAccuratePartitions) {
  const int64_t least_rows = block_rows > kMinPartitionRows ? block_rows : kMinPartitionRows;
  const int64_t useful = ceil_div(rows, least_rows);
  const int64_t of_max_rows = ceil_div(rows, kMaxPartitionRows);
  const int64_t accurate = of_max_rows < most ? of_max_rows : most;
  const int64_t waves = round_up(accurate, static_cast<int32_t>(wave));
  return useful < waves ? useful : waves;
}

// Is the plan of rows or, for Scope::kSegments, of their segments.
struct NormBackwardPlan : RowPlan {
  Segments segments;   // segments of a row, of about equal length
  int64_t partitions;  // partitions of the rows, for sums of columns
};

// Returns how many columns the longest row has that one block holds in registers. Its elements have
// `element_bytes` bytes, and it is aligned for vectors of `width` elements.
constexpr int64_t longest_in_registers(Pass pass, int32_t width, int32_t element_bytes) {
  int64_t longest = 0;
  for (const ListedPlan& listed : plans_of(pass)) {
    const bool is_held =
        listed.scope == Scope::kRegisters && width_in(listed, width, element_bytes) > 0;
    if (is_held && listed.max_cols > longest) longest = listed.max_cols;
  }
  return longest;
}

// Plans the backward pass of rows that are cut into segments of about equal length, as few as
// possible of at most `longest` columns each. `row` is the plan that plan_rows() returned.
constexpr NormBackwardPlan plan_norm_backward_segments(
    int64_t longest, int64_t rows, int64_t cols, RowPlan row, int32_t element_bytes,
    int64_t multiprocessors) {
  const int64_t least = ceil_div(cols, longest);
  const int32_t each = round_up(ceil_div(cols, least), row.width);
  const Segments segments = {each, static_cast<int32_t>(ceil_div(cols, each))};
  row.threads = threads_per_row(each, row.elements, row.width * element_bytes);
  const int64_t wave = wave_of(multiprocessors, segments.count);
  return {{row}, segments, count_partitions(rows, /*block_rows=*/1, wave)};
}

// Plans the backward pass of a norm: what holds a row, and how many partitions share the rows.
// `adds` says whether the kernels are those for a norm with a residual.
constexpr NormBackwardPlan plan_norm_backward(
    bool adds, int32_t cluster_limit, int64_t rows, int64_t cols, int32_t width,
    int32_t element_bytes, int64_t multiprocessors) {
  const Pass pass = adds ? Pass::kAddNormBackward : Pass::kNormBackward;
  const RowPlan row =
      plan_rows(pass, cols, width, element_bytes, cluster_limit, kNormBackwardThreads);
  if (row.scope == Scope::kSegments) {
    const int64_t longest = longest_in_registers(pass, width, element_bytes);
    return plan_norm_backward_segments(longest, rows, cols, row, element_bytes, multiprocessors);
  }
  const bool is_cluster = row.scope == Scope::kCluster;
  const int64_t used = is_cluster ? cluster_multiprocessors(multiprocessors) : multiprocessors;
  const int64_t wave = wave_of(used, row.blocks);
  const int64_t most = row.blocks > 2 ? 2 * kAccuratePartitions : kAccuratePartitions;
  return {{row}, /*segments=*/{}, count_partitions(rows, row.rows, wave, most)};
}

// The kernel that adds partials has 32 threads for each column of a block. A block has 32 columns,
// a cache line of floats. If there would then be fewer blocks than multiprocessors, it has 8
// columns, a sector of floats.
inline constexpr int32_t kMinFinishCols = 8, kMaxFinishCols = 32;

constexpr int32_t finish_cols(int64_t cols, int64_t multiprocessors) {
  return cols < multiprocessors * kMaxFinishCols ? kMinFinishCols : kMaxFinishCols;
}

}  // namespace fusedops::cuda
