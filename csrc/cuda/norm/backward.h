// Computes the gradients of the norms of norm_kinds.def along rows.
//
// With n = (input - mean) * rstd, w = weight + weight_offset and g = grad_output * w, along each
// row:
//   gradient = (g - mean(g) - n * mean(g * n)) * rstd + grad_sum,
//   grad_input = gradient, grad_branch = dropout(gradient)
// and along each column: grad_weight = sum(grad_output * n), grad_bias = sum(grad_output).
// Norms without a mean leave out mean(g). In place of mean(g * n), StdNorm has
// sum(g * n) / ((cols - 1) * std * rstd), and L2Norm has sum(g * n), or 0 where the norm is at most
// eps.
//
// Contract: as in forward.h. With kAdd there may be a grad_sum, and a grad_branch may be wanted.
// Every block walks over the rows of its partition, keeps the sums of its columns in registers and
// leaves them in the workspace as a partial; _finish adds the partials. The kernels differ in what
// holds a row: one block (_registers), a cluster of blocks (_cluster), or a block for each segment
// (_segments). The first two read input and grad_output once. _segments needs the sums along each
// row from a kernel before it (_row_partials), which reads both tensors too.
// Workspace: [2][partitions][cols] accumulators, first those of grad_weight. For rows in segments
// [rows][segments] pairs follow, the sums of g and of g * n.
//
// Numerics: results are computed in float (double for double), and each is rounded once. There are
// no atomics: rows, cols, dtype, alignment and the device's multiprocessors fix every order of
// summation. A row's gradient does not depend on the other rows.
#pragma once

#include "cuda/block/cluster.h"
#include "cuda/block/philox.h"
#include "cuda/block/reduce.h"
#include "cuda/block/segments.h"
#include "cuda/block/tile.h"
#include "cuda/launch/plan.h"
#include "cuda/norm/common.h"

namespace fusedops::cuda {

// Holds one vector of a row, widened to accumulators: grad_output, n and g of the formulas above.
template <class T, int kWidth>
struct NormGradient {
  using Acc = AccumulatorOf<T>;
  Acc grad[kWidth], normal[kWidth], weighted[kWidth];

  // Adds the vector's g and g * n to the sums along a row.
  FUSEDOPS_DEVICE void add_to(Pair<Acc>& sums) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sums.first += weighted[j];
      sums.second += weighted[j] * normal[j];
    }
  }

  // Sets `values` to the gradient without grad_sum. `means` are those of g and g * n.
  FUSEDOPS_DEVICE void result(Acc (&values)[kWidth], Pair<Acc> means, Acc rstd) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = (weighted[j] - (means.first + normal[j] * means.second)) * rstd;
    }
  }
};

// Returns the sums of g and g * n over a thread's vectors. In unaligned rows, the vectors of a
// group (vectors_of_group) are added one after the other.
template <class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE Pair<AccumulatorOf<T>> sums_of(
    const NormGradient<T, kWidth> (&gradients)[kVectors]) {
  constexpr int kGroup = kIsWide<T, kWidth> ? 1 : vectors_of_group(kVectors);
  Pair<AccumulatorOf<T>> sums[kVectors / kGroup] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) gradients[i].add_to(sums[i / kGroup]);
  return tree_sum<kVectors / kGroup>(sums);
}

// Points to the sums of g and of g * n that norm_backward_row_partials has left in the workspace:
// `count` pairs for each row, one for each of its segments.
struct RowPartials {
  const void* pairs;
  int32_t count;
};

// Returns the address of a partial, which has args.cols accumulators. The partials of grad_bias
// follow those of grad_weight: their indices begin at the number of partitions.
template <class Acc>
FUSEDOPS_DEVICE Acc* partial_at(const NormBackward& args, int64_t index) {
  return static_cast<Acc*>(args.workspace) + index * args.cols;
}

// Adds up, in order of threadIdx.y, the column sums that the threads of each row of the block have
// left in shared memory, and writes the totals to `to`. All threads of the block must call it.
template <class Acc>
FUSEDOPS_DEVICE void add_column_sums(const Acc* shared, int32_t cols, Acc* to) {
  __syncthreads();
  // There are two levels, so that the error grows with at most 16 + 16 additions. A block may have
  // 256 rows, of two threads each.
  constexpr int32_t kSummedRows = 16;
  const int32_t rows = blockDim.y;
  for (int32_t column = threadIdx.y * blockDim.x + threadIdx.x; column < cols;
       column += blockDim.x * blockDim.y) {
    Acc sum = 0;
    for (int32_t first = 0; first < rows; first += kSummedRows) {
      Acc partial = 0;
      for (int32_t row = first; row < first + kSummedRows && row < rows; ++row) {
        partial += shared[row * cols + column];
      }
      sum += partial;
    }
    to[column] = sum;
  }
  __syncthreads();
}

// Writes the column sums of a block to `to`. Every thread passes the sums of its columns. With
// kByWarp a block has one row at a time, so that these sums are the block's.
template <int kThreads, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void write_column_sums(
    const Acc (&own)[kVectors][kWidth], int32_t cols, Acc* shared, Acc* to) {
  for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
    if (!is_inside) return;
    const int32_t column = column_of<kWidth, kThreads>(i);
    if constexpr (kThreads == kByWarp) {
      store(to + column, own[i]);
    } else {
      store_plain(shared + threadIdx.y * cols + column, own[i]);
    }
  });
  if constexpr (kThreads != kByWarp) add_column_sums(shared, cols, to);
}

// Loads one vector of the factors of a row's gradients: the weight with its offset, or 1 without a
// weight. The factors of columns outside the row are zeros.
template <class T, int kWidth, class Acc>
FUSEDOPS_DEVICE void load_scale(
    Acc (&scale)[kWidth], const NormBackward& args, int64_t column, bool is_inside) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) scale[j] = 0;
  if (!is_inside) return;
  with_wider<T>(
      args.weight.dtype, [&](auto type) { load_weight<decltype(type)>(scale, args, column); });
}

// Loads the factors of the `cols` columns from `start` on, which every row needs again. If
// kThreads != 0, a thread's vectors are a constant distance apart, and the factors are kept in
// `shared`, which has room for the elements of all threads of the block: from L1, an unaligned row
// would take a load and a conversion for each element, and in registers, the factors would leave
// fewer registers for loads of the row. If kThreads is 0, the factors are read from L1.
template <class T, int kWidth, int kVectors, int kThreads>
class RowScales {
 public:
  using Acc = AccumulatorOf<T>;

  FUSEDOPS_DEVICE RowScales(const NormBackward& args, int64_t start, int32_t cols, Acc* shared)
      : args_(args), start_(start) {
    if constexpr (kThreads != 0) {
      const uint32_t group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
      factors_ = shared + group * kLanes * kElements + lane * kTogether;
      if (threadIdx.y == 0) store_factors(cols);
      __syncthreads();
    }
  }

  // Loads the factors of vector i, which are zeros for columns outside the row. `cols`, the end of
  // the row, is read only where factors come from L1.
  FUSEDOPS_DEVICE void load(Acc (&scale)[kWidth], int i, int32_t cols) const {
    if constexpr (kThreads == 0) {
      const int32_t column = column_of<kWidth>(i);
      load_scale<T>(scale, args_, start_ + column, column < cols);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) scale[j] = factors_[place_of(i * kWidth + j)];
    }
  }

 private:
  static constexpr int kElements = kVectors * kWidth;
  static constexpr int kLanes = kThreads == kByWarp ? device::kWarpLanes : kThreads;
  // This many of a thread's elements are adjacent in shared memory, for loads of up to 16 bytes.
  static constexpr int kTogether = kElements % 4 == 0 ? 4 : kElements % 2 == 0 ? 2 : 1;
  // Returns the place of this thread's element, counted from factors_.
  static constexpr int32_t place_of(int element) {
    return element / kTogether * kTogether * kLanes + element % kTogether;
  }

  FUSEDOPS_DEVICE void store_factors(int32_t cols) {
    for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
      Acc scale[kWidth];
      load_scale<T>(scale, args_, start_ + column_of<kWidth, kThreads>(i), is_inside);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) factors_[place_of(i * kWidth + j)] = scale[j];
    });
  }

  const NormBackward& args_;
  int64_t start_;
  Acc* factors_;
};

// Holds a tile of a row as it was loaded, from column `start` on, where the row has `cols` columns
// left. A row past the last one has none.
template <class T, int kWidth, int kVectors>
struct NormBackwardTile {
  using Acc = AccumulatorOf<T>;
  Tile<T, kWidth, kVectors> grads, inputs;
  Acc mean = 0, rstd = 0;
  int64_t start = 0;
  int32_t cols = 0;

  template <int kThreads = 0>
  FUSEDOPS_DEVICE void load(const NormBackward& args, int64_t row, int64_t at, int32_t left) {
    start = at;
    cols = row < args.rows ? left : 0;
    grads.template load<kThreads>(row_of<T>(args.grad_output, row) + start, cols, 0);
    inputs.template load<kThreads>(row_of<T>(args.input, row) + start, cols, 0);
    if (cols <= 0) return;
    if (has_mean(args)) mean = static_cast<const Acc*>(args.mean)[row];
    rstd = static_cast<const Acc*>(args.rstd)[row];
  }

  // Returns grad_output, n and g of vector i, whose factors are `scale`. Columns outside the row
  // have a grad_output of zero, so that they add nothing to sums.
  FUSEDOPS_DEVICE NormGradient<T, kWidth> gradient(const Acc (&scale)[kWidth], int i) const {
    NormGradient<T, kWidth> result;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      result.grad[j] = grads.at(i, j);
      result.normal[j] = (inputs.at(i, j) - mean) * rstd;
      result.weighted[j] = result.grad[j] * scale[j];
    }
    return result;
  }
};

// Loads grad_sum, or zeros if there is none.
template <int kThreads, class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE void load_grad_sum(
    Tile<T, kWidth, kVectors>& tile, const NormBackward& args, int64_t row, int64_t start,
    int32_t cols) {
  const int32_t held = args.grad_sum.data ? cols : 0;
  tile.template load<kThreads>(row_of<T>(args.grad_sum, row) + start, held, 0);
}

// Stores the gradients of a row from column `start` on. With kAdd it adds grad_sum first, and
// applies dropout to grad_branch. kKeepsAddresses says that addresses stay in registers, because
// offsets are constants.
template <class T, bool kAdd, bool kKeepsAddresses>
class NormGradientRow {
 public:
  using Acc = AccumulatorOf<T>;

  FUSEDOPS_DEVICE NormGradientRow(const NormBackward& args, int64_t row, int64_t start)
      : args_(args),
        start_(start),
        grad_input_(row_of<T>(args.grad_input, row) + start),
        grad_branch_(branch_row(args, row, start)),
        dropout_(args.dropout, row) {
    if constexpr (kKeepsAddresses) {
      grad_input_ = device::whole(grad_input_);
      grad_branch_ = device::whole(grad_branch_);
    }
  }

  // Stores the gradients of one vector, `offset` columns after `start`. With kAdd, it overwrites
  // `values`.
  template <int kWidth>
  FUSEDOPS_DEVICE void store(
      int32_t offset, Acc (&values)[kWidth], const Vec<T, kWidth>& grad_sum) const {
    if constexpr (!kAdd) {
      cuda::store(grad_input_ + offset, values);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] += grad_sum.at(j);
      if (args_.grad_input.data) cuda::store(grad_input_ + offset, values);
      if (!args_.grad_branch.data) return;
      dropout_.apply(values, static_cast<int32_t>(start_ + offset));
      with_narrower<T>(args_.grad_branch.dtype, [&](auto type) {
        cuda::store(static_cast<decltype(type)*>(grad_branch_) + offset, values);
      });
    }
  }

 private:
  // Returns the address of a row's gradients in grad_branch, whose dtype may be narrower than T.
  static FUSEDOPS_DEVICE void* branch_row(const NormBackward& args, int64_t row, int64_t start) {
    if constexpr (!kAdd) return nullptr;  // without kAdd there is no branch
    return with_narrower<T>(args.grad_branch.dtype, [&](auto type) -> void* {
      return row_of<decltype(type)>(args.grad_branch, row) + start;
    });
  }

  const NormBackward& args_;
  int64_t start_;
  T* grad_input_;
  void* grad_branch_;
  DropoutRow<Acc> dropout_;
};

// Is the scope of a block that has one segment of each row. The sums of all segments are in the
// workspace.
class RowsInSegments {
 public:
  static constexpr int kThreads = 0;

  struct Columns {
    int64_t start;
    int32_t cols;
  };

  FUSEDOPS_DEVICE RowsInSegments(Segments segments, int32_t index, RowPartials partials)
      : segments_(segments), index_(index), partials_(partials) {}

  template <int kElements>
  FUSEDOPS_DEVICE Columns own_columns(int32_t cols) const {
    return {int64_t{index_} * segments_.cols, Segment::columns_of(segments_, cols, index_)};
  }
  // Does nothing: the blocks of a row exchange no values.
  FUSEDOPS_DEVICE void join() {}
  // Returns the sums along a row, from the workspace.
  template <class Acc>
  FUSEDOPS_DEVICE Pair<Acc> saved_sums(int64_t row) {
    const auto* const pairs = static_cast<const Pair<Acc>*>(partials_.pairs);
    return block_.reduce<Sum>(sum_of(pairs + row * partials_.count, partials_.count));
  }

 private:
  Segments segments_;
  int32_t index_;
  RowPartials partials_;
  OneBlock block_;
};

// Returns the sums along a row. `own` are those of this thread's columns.
template <class Scope, class Acc>
FUSEDOPS_DEVICE Pair<Acc> row_sums(Scope& scope, Pair<Acc> own, int64_t row) {
  if constexpr (std::is_same_v<Scope, RowsInSegments>) {
    return scope.template saved_sums<Acc>(row);
  } else {
    return scope.template reduce<Sum>(own);
  }
}

// Partition `index` of `count` has every count-th group of blockDim.y rows, from first_row on.
struct RowPartition {
  int64_t index, count, first_row = 0;
};

// Computes the gradients of a partition's rows, and leaves its sums of columns in the workspace.
// The loads of the next row are in flight while the sums along a row are computed and its gradients
// are stored.
template <class T, int kWidth, int kVectors, bool kAdd, class Rows>
FUSEDOPS_DEVICE void norm_backward_partition(
    const NormBackward& args, Rows rows, RowPartition partition) {
  using Acc = AccumulatorOf<T>;
  constexpr int kThreads = Rows::kThreads;
  // This memory holds the factors first, and the column sums after the loop.
  FUSEDOPS_SHARED(Acc, shared, kNormBackwardThreads * kVectors * kWidth);
  const Acc inverse_cols = device::reciprocal(static_cast<Acc>(args.cols));
  const auto [start, own_cols] =
      rows.template own_columns<kWidth * kVectors>(static_cast<int32_t>(args.cols));
  const int64_t step = partition.count * blockDim.y;
  Acc weight_sums[kVectors][kWidth] = {}, bias_sums[kVectors][kWidth] = {};

  const RowScales<T, kWidth, kVectors, kThreads> scales(args, start, own_cols, shared);

  int64_t first = partition.first_row + partition.index * blockDim.y;
  NormBackwardTile<T, kWidth, kVectors> loaded;
  loaded.template load<kThreads>(args, first + threadIdx.y, start, own_cols);
  rows.join();
  for (; first < args.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    const int32_t cols = loaded.cols;
    const Acc rstd = loaded.rstd;
    NormGradient<T, kWidth> gradients[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc scale[kWidth];
      scales.load(scale, i, cols);
      gradients[i] = loaded.gradient(scale, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        weight_sums[i][j] += gradients[i].grad[j] * gradients[i].normal[j];
        bias_sums[i][j] += gradients[i].grad[j];
      }
    }
    loaded.template load<kThreads>(args, row + step, start, own_cols);

    if (!args.grad_input.data && !args.grad_branch.data) continue;
    Tile<T, kWidth, kVectors> added;
    if constexpr (kAdd) load_grad_sum<kThreads>(added, args, row, start, cols);
    const Pair<Acc> sums = row_sums(rows, sums_of(gradients), row);

    const Pair<Acc> means = means_of(args, sums, inverse_cols, rstd);
    if (kThreads != 0 && cols <= 0) continue;
    const int32_t own = kThreads != 0 ? column_of<kWidth, kThreads>(0) : 0;
    const NormGradientRow<T, kAdd, (kThreads != 0)> to(args, row, start + own);
    for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
      if (!is_inside) return;
      Acc values[kWidth];
      gradients[i].result(values, means, rstd);
      const int32_t column =
          kThreads != 0 ? columns_before<kWidth, kThreads>(i) : column_of<kWidth>(i);
      to.store(column, values, added.vectors[i]);
    });
  }

  if constexpr (kThreads != 0) __syncthreads();  // the column sums overwrite the factors
  Acc* const weight_partial = partial_at<Acc>(args, partition.index) + start;
  Acc* const bias_partial = partial_at<Acc>(args, partition.count + partition.index) + start;
  if (args.grad_weight.data) {
    write_column_sums<kThreads>(weight_sums, own_cols, shared, weight_partial);
  }
  if (args.grad_bias.data) {
    write_column_sums<kThreads>(bias_sums, own_cols, shared, bias_partial);
  }
}

// The launch bound of this kernel and those below is one block a multiprocessor: without it the
// compiler makes room for two blocks of unaligned rows, and registers spill.
template <class T, int kWidth, int kVectors, bool kAdd, int kThreads = 0>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_backward_registers(NormBackward args) {
  assume_row_threads<kThreads>();
  norm_backward_partition<T, kWidth, kVectors, kAdd>(
      args, RowInBlock<kThreads>(), {blockIdx.x, gridDim.x});
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_stack_backward_registers(NormStackBackward stack) {
  const StackBlock at(stack.count);
  norm_backward_partition<T, kWidth, kVectors, /*kAdd=*/false>(
      stack[at.tensor], OneBlock(), {at.block, at.blocks});
}

template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_backward_cluster(NormBackward args) {
  const uint32_t blocks = device::cluster_blocks();
  norm_backward_partition<T, kWidth, kVectors, kAdd>(
      args, ClusterOf<T, kWidth>(), {blockIdx.x / blocks, gridDim.x / blocks});
}

// A partition has segments.count neighbouring blocks, one for each segment.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_backward_segments(
    NormBackward args, int64_t first_row, Segments segments, RowPartials partials) {
  const auto count = static_cast<uint32_t>(segments.count);
  const auto index = static_cast<int32_t>(blockIdx.x % count);
  norm_backward_partition<T, kWidth, kVectors, kAdd>(
      args, RowsInSegments(segments, index, partials),
      {blockIdx.x / count, gridDim.x / count, first_row});
}

// Leaves the sums of g and g * n along a segment in the workspace.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_backward_row_partials(NormBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/2>;
  FUSEDOPS_SHARED(Pair<Acc>, shared_sums, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, blockIdx.x);

  NormBackwardTile<T, kWidth, kVectors> tile;
  Pair<Acc> sums{0, 0};
  for (int32_t start = 0; start < segment.cols; start += tile.grads.step()) {
    tile.load(args, segment.row, segment.start + start, segment.cols - start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      AccumulatorOf<T> scale[kWidth];
      load_scale<T>(scale, args, tile.start + column, column < tile.cols);
      Pair<AccumulatorOf<T>> own{0, 0};
      tile.gradient(scale, i).add_to(own);
      sums = sums + own;
    }
  }
  save_partial(args.workspace, segments, segment, row_reduce<Sum>(sums, shared_sums));
}

template <class Acc>
FUSEDOPS_DEVICE void store_as(const Columns& columns, int64_t column, Acc value) {
  with_narrower<Acc>(columns.dtype, [&](auto type) {
    round_to(value, static_cast<decltype(type)*>(columns.data)[column]);
  });
}

// Returns the sums of a column over every 32nd partition from threadIdx.y on. 32 threads with five
// partitions in flight each cover the 132 partitions of a Hopper (one per multiprocessor) in one
// pass.
template <class Acc>
FUSEDOPS_DEVICE Pair<Acc> own_share(const NormBackward& args, int64_t partitions, int64_t column) {
  constexpr int32_t kLanes = device::kWarpLanes, kInFlight = 5;
  Pair<Acc> sum{0, 0};
#pragma unroll 1
  for (int64_t first = threadIdx.y; first < partitions; first += kInFlight * kLanes) {
    Pair<Acc> loaded[kInFlight];
#pragma unroll
    for (int32_t i = 0; i < kInFlight; ++i) {
      const int64_t partition = first + i * kLanes;
      const bool exists = partition < partitions;
      const Acc* const weight = partial_at<Acc>(args, partition) + column;
      const Acc* const bias = partial_at<Acc>(args, partitions + partition) + column;
      loaded[i].first = exists && args.grad_weight.data ? *weight : Acc(0);
      loaded[i].second = exists && args.grad_bias.data ? *bias : Acc(0);
    }
#pragma unroll
    for (int32_t i = 0; i < kInFlight; ++i) sum = sum + loaded[i];
  }
  return sum;
}

// Adds up the partials of all partitions, and stores grad_weight and grad_bias. A block has
// blockDim.x columns and 32 threads for each column. Neighbouring threads load neighbouring
// columns; then each warp adds up one column.
template <class Acc>
FUSEDOPS_DEVICE void sum_partials(const NormBackward& args, int64_t partitions, int64_t block) {
  constexpr int32_t kLanes = device::kWarpLanes, kPitch = kLanes + 1;  // avoids bank conflicts
  FUSEDOPS_SHARED(Pair<Acc>, sums, kMaxFinishCols * kPitch);
  const int64_t first_column = block * blockDim.x;
  const int64_t own = first_column + threadIdx.x;
  Pair<Acc> sum{0, 0};
  device::wait_for_launch_ahead();
  if (own < args.cols) sum = own_share<Acc>(args, partitions, own);
  sums[threadIdx.x * kPitch + threadIdx.y] = sum;
  __syncthreads();

  const int32_t thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int32_t lane = thread % kLanes, warp = thread / kLanes;
  sum = warp_reduce<Sum>(sums[warp * kPitch + lane], kLanes);
  const int64_t column = first_column + warp;
  if (lane != 0 || column >= args.cols) return;
  if (args.grad_weight.data) store_as(args.grad_weight, column, sum.first);
  if (args.grad_bias.data) store_as(args.grad_bias, column, sum.second);
}

template <class Acc>
FUSEDOPS_KERNEL(kMaxThreads)
norm_backward_finish(NormBackward args, int64_t partitions) {
  sum_partials<Acc>(args, partitions, blockIdx.x);
}

template <class Acc>
FUSEDOPS_KERNEL(kMaxThreads)
norm_stack_backward_finish(NormStackBackward stack, int64_t partitions) {
  const StackBlock at(stack.count);
  sum_partials<Acc>(stack[at.tensor], partitions, at.block);
}

}  // namespace fusedops::cuda
