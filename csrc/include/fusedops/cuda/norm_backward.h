// LayerNorm, StdNorm and RMSNorm along rows, backward.
//
// With n = (input - mean) * rstd, w = weight + weight_offset and g = grad_output * w, along each
// row:
//   gradient = (g - mean(g) - n * mean(g * n)) * rstd + grad_sum,
//   grad_input = gradient, grad_branch = dropout(gradient)
// and along each column: grad_weight = sum(grad_output * n), grad_bias = sum(grad_output).
// RMSNorm leaves out mean(g). StdNorm has sum(g * n) / ((cols - 1) * std * rstd) in place of
// mean(g * n).
//
// Contract: as in norm_forward.h. kAdd says whether there is a grad_sum, or a grad_branch is
// wanted. _registers reads input and grad_output once: every block walks over the rows of its
// partition, keeps their column sums in registers and leaves them in the workspace as a partial;
// _finish adds the partials. Longer rows are cut into segments (_row_partials, _rows) or held by
// clusters (_rows_cluster), and a kernel of its own makes their column sums (_column_partials).
// Workspace: [2][partitions][cols] accumulators, first those of grad_weight. Rows in segments use
// the same memory before that, for [rows][segments] pairs: the sums of g and of g * n.
//
// Numerics: computed in float (double for double), each result rounded once. There are no atomics:
// rows, cols, dtype and alignment fix every order of summation. A row's gradient does not depend on
// the other rows.
#pragma once

#include "fusedops/cuda/cluster.h"
#include "fusedops/cuda/launch_plan.h"
#include "fusedops/cuda/norm_common.h"
#include "fusedops/cuda/philox.h"
#include "fusedops/cuda/reduce.h"
#include "fusedops/cuda/segments.h"
#include "fusedops/cuda/tile.h"

namespace fusedops::cuda {

// One vector of a row, widened to accumulators.
template <class T, int kWidth>
struct NormGradient {
  using Acc = AccumulatorOf<T>;
  Acc grad[kWidth], normal[kWidth], weighted[kWidth];

  FUSEDOPS_DEVICE Pair<Acc> sums() const {
    Pair<Acc> sums{0, 0};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sums.first += weighted[j];
      sums.second += weighted[j] * normal[j];
    }
    return sums;
  }

  // The gradient of the values that were normalised.
  FUSEDOPS_DEVICE void result(Acc (&values)[kWidth], Pair<Acc> means, Acc rstd) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = (weighted[j] - (means.first + normal[j] * means.second)) * rstd;
    }
  }
};

template <class Acc>
FUSEDOPS_DEVICE Acc* partial_at(const NormBackward& args, int64_t index) {
  return static_cast<Acc*>(args.workspace) + index * args.cols;
}

// Adds the column sums of the rows of a block, in order of threadIdx.y, and writes them out. Every
// thread passes the columns of its tile.
template <int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void write_column_sums(
    const Acc (&own)[kVectors][kWidth], int32_t cols, Acc* shared, Acc* to) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth>(i);
    if (column < cols) store(shared + threadIdx.y * cols + column, own[i]);
  }
  __syncthreads();
  // In two levels: the error grows with 16 + 8 additions, not with the 128 rows of a block.
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

// A tile of a row as it was loaded, from column `start` on; the row has `cols` columns from there.
// A row past the last has none.
template <class T, int kWidth, int kVectors>
struct NormBackwardTile {
  using Acc = AccumulatorOf<T>;
  Tile<T, kWidth, kVectors> grads, inputs;
  Acc mean = 0, rstd = 0;
  int64_t start = 0;
  int32_t cols = 0;

  FUSEDOPS_DEVICE void load(const NormBackward& args, int64_t row, int64_t at, int32_t left) {
    start = at;
    cols = row < args.rows ? left : 0;
    grads.load(row_of<T>(args.grad_output, row) + start, cols, 0);
    inputs.load(row_of<T>(args.input, row) + start, cols, 0);
    if (cols == 0) return;
    if (has_mean(args)) mean = static_cast<const Acc*>(args.mean)[row];
    rstd = static_cast<const Acc*>(args.rstd)[row];
  }

  // Columns outside the row have a weight and a gradient of zero, so that they add nothing to sums.
  FUSEDOPS_DEVICE NormGradient<T, kWidth> gradient(const NormBackward& args, int i) const {
    const int32_t column = column_of<kWidth>(i);
    Acc scale[kWidth] = {};
    if (column < cols) {
      if (is_wider<T>(args.weight)) {
        load_weight<float>(scale, args, start + column);
      } else {
        load_weight<T>(scale, args, start + column);
      }
    }
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

// A tile of grad_sum; zeros where there is none.
template <class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE void load_sums(
    Tile<T, kWidth, kVectors>& tile, const NormBackward& args, int64_t row, int64_t start,
    int32_t cols) {
  tile.load(row_of<T>(args.grad_sum, row) + start, args.grad_sum.data ? cols : 0, 0);
}

// Stores the gradients of a row. With kAdd it adds grad_sum first, and applies dropout to
// grad_branch.
template <class T, bool kAdd>
class NormGradientRow {
 public:
  using Acc = AccumulatorOf<T>;

  FUSEDOPS_DEVICE NormGradientRow(const NormBackward& args, int64_t row)
      : grad_input_(row_of<T>(args.grad_input, row)),
        grad_branch_(row_of<T>(args.grad_branch, row)),
        wants_input_(args.grad_input.data),
        wants_branch_(args.grad_branch.data),
        dropout_(args.dropout, row) {}

  template <int kWidth>
  FUSEDOPS_DEVICE void store(
      int64_t column, Acc (&values)[kWidth], const Vec<T, kWidth>& sums) const {
    if constexpr (!kAdd) {
      cuda::store(grad_input_ + column, values);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] += sums.at(j);
      if (wants_input_) cuda::store(grad_input_ + column, values);
      if (!wants_branch_) return;
      dropout_.apply(values, static_cast<int32_t>(column));
      cuda::store(grad_branch_ + column, values);
    }
  }

 private:
  T *grad_input_, *grad_branch_;
  bool wants_input_, wants_branch_;
  DropoutRow<Acc> dropout_;
};

// The rows of one partition. Two sets of shared sums take turns, so that each row needs only one
// barrier.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_DEVICE void norm_backward_partition(
    const NormBackward& args, int64_t partition, int64_t partitions) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Pair<Acc>, shared_sums, 2 * kMaxWarps);
  FUSEDOPS_SHARED(Acc, column_sums, kNormBackwardThreads * kVectors * kWidth);
  const Acc inverse_cols = device::reciprocal(static_cast<Acc>(args.cols));
  const int64_t step = partitions * blockDim.y;
  Acc weight_sums[kVectors][kWidth] = {}, bias_sums[kVectors][kWidth] = {};
  int32_t turn = 0;  // which set of shared sums

  const auto all_cols = static_cast<int32_t>(args.cols);
  NormBackwardTile<T, kWidth, kVectors> loaded;
  loaded.load(args, partition * blockDim.y + threadIdx.y, 0, all_cols);
  for (int64_t first = partition * blockDim.y; first < args.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    const int32_t cols = loaded.cols;
    const Acc rstd = loaded.rstd;
    NormGradient<T, kWidth> gradients[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      gradients[i] = loaded.gradient(args, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        weight_sums[i][j] += gradients[i].grad[j] * gradients[i].normal[j];
        bias_sums[i][j] += gradients[i].grad[j];
      }
    }
    loaded.load(args, row + step, 0, all_cols);

    if (!args.grad_input.data && !args.grad_branch.data) continue;
    Tile<T, kWidth, kVectors> added;
    if constexpr (kAdd) load_sums(added, args, row, 0, cols);
    Pair<Acc> vector_sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vector_sums[i] = gradients[i].sums();
    const Pair<Acc> sums =
        row_reduce<Sum>(tree_sum<kVectors>(vector_sums), shared_sums + turn * kMaxWarps);
    turn ^= 1;

    const Pair<Acc> means = means_of(args, sums, inverse_cols, rstd);
    const NormGradientRow<T, kAdd> to(args, row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column >= cols) continue;
      Acc values[kWidth];
      gradients[i].result(values, means, rstd);
      to.store(column, values, added.vectors[i]);
    }
  }

  if (args.grad_weight.data) {
    write_column_sums(weight_sums, all_cols, column_sums, partial_at<Acc>(args, partition));
  }
  if (args.grad_bias.data) {
    write_column_sums(
        bias_sums, all_cols, column_sums, partial_at<Acc>(args, partitions + partition));
  }
}

// Bound to one block a multiprocessor: without the bound the compiler makes room for two blocks of
// narrow vectors, and spills.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_backward_registers(NormBackward args) {
  norm_backward_partition<T, kWidth, kVectors, kAdd>(args, blockIdx.x, gridDim.x);
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_stack_backward_registers(NormStackBackward stack) {
  const StackBlock at(stack.count);
  norm_backward_partition<T, kWidth, kVectors, false>(stack[at.tensor], at.block, at.blocks);
}

template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_backward_row_partials(NormBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 2>;
  FUSEDOPS_SHARED(Pair<Acc>, shared_sums, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, blockIdx.x);

  NormBackwardTile<T, kWidth, kVectors> tile;
  Pair<Acc> sums{0, 0};
  for (int32_t start = 0; start < segment.cols; start += tile.grads.step()) {
    tile.load(args, segment.row, segment.start + start, segment.cols - start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) sums = sums + tile.gradient(args, i).sums();
  }
  sums = row_reduce<Sum>(sums, shared_sums);
  if (threadIdx.x == 0) {
    partials_of<Pair<Acc>>(args.workspace, segments, segment.row)[segment.index] = sums;
  }
}

template <class T, int kWidth, bool kAdd>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_backward_rows(NormBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 2>;
  FUSEDOPS_SHARED(Pair<Acc>, shared_sums, kMaxWarps);
  const Acc inverse_cols = device::reciprocal(static_cast<Acc>(args.cols));
  const Segment segment(segments, args.cols, first_row, backwards(blockIdx.x));

  NormBackwardTile<T, kWidth, kVectors> tile;
  tile.load(args, segment.row, segment.start, segment.cols);
  const auto* const partials = partials_of<Pair<Acc>>(args.workspace, segments, segment.row);
  const Pair<Acc> sums = row_reduce<Sum>(sum_of(partials, segments.count), shared_sums);

  const Pair<Acc> means = means_of(args, sums, inverse_cols, tile.rstd);
  const NormGradientRow<T, kAdd> gradients(args, segment.row);
  for (int32_t start = 0; start < segment.cols; start += tile.grads.step()) {
    const int64_t at = segment.start + start;
    if (start > 0) tile.load(args, segment.row, at, segment.cols - start);
    Tile<T, kWidth, kVectors> added;
    if constexpr (kAdd) load_sums(added, args, segment.row, at, tile.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column >= tile.cols) continue;
      Acc values[kWidth];
      tile.gradient(args, i).result(values, means, tile.rstd);
      gradients.store(at + column, values, added.vectors[i]);
    }
  }
}

// The same with the row in the registers of a cluster: it takes one launch and reads the row once.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kNormBackwardThreads)
norm_backward_rows_cluster(NormBackward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Pair<Acc>, shared_sums, Cluster::kSharedValues);
  const int64_t row = first_row + blockIdx.x / kClusterBlocks;
  const auto [start, cols] = Cluster::own_columns<kWidth>(static_cast<int32_t>(args.cols));

  NormBackwardTile<T, kWidth, kVectors> tile;
  tile.load(args, row, start, cols);
  Tile<T, kWidth, kVectors> added;
  if constexpr (kAdd) load_sums(added, args, row, start, cols);
  Pair<Acc> vector_sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) vector_sums[i] = tile.gradient(args, i).sums();
  const Pair<Acc> sums = Cluster::reduce<Sum>(tree_sum<kVectors>(vector_sums), shared_sums);

  const Acc inverse_cols = device::reciprocal(static_cast<Acc>(args.cols));
  const Pair<Acc> means = means_of(args, sums, inverse_cols, tile.rstd);
  const NormGradientRow<T, kAdd> gradients(args, row);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth>(i);
    if (column >= cols) continue;
    Acc values[kWidth];
    tile.gradient(args, i).result(values, means, tile.rstd);
    gradients.store(start + column, values, added.vectors[i]);
  }
  Cluster::leave();
}

// The column sums of a partition of long rows. column_blocks blocks side by side have the columns
// of a partition, each thread one vector of them; kRows rows are in flight at a time.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kColumnThreads)
norm_backward_column_partials(NormBackward args, int64_t partitions) {
  using Acc = AccumulatorOf<T>;
  constexpr int kRows = 4;
  const uint32_t column_blocks = gridDim.x / static_cast<uint32_t>(partitions);
  const uint32_t partition = blockIdx.x / column_blocks;
  const int64_t column = (int64_t{blockIdx.x % column_blocks} * blockDim.x + threadIdx.x) * kWidth;
  if (column >= args.cols) return;
  Acc weight_sums[kWidth] = {}, bias_sums[kWidth] = {};

  for (int64_t first = partition; first < args.rows; first += partitions * kRows) {
    Vec<T, kWidth> grads[kRows], inputs[kRows];
    Acc mean[kRows], rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * partitions;
      grads[r] = inputs[r] = Vec<T, kWidth>::filled(0);
      mean[r] = rstd[r] = 0;
      if (row >= args.rows) continue;
      grads[r] = Vec<T, kWidth>::load(row_of<T>(args.grad_output, row) + column);
      inputs[r] = Vec<T, kWidth>::load(row_of<T>(args.input, row) + column);
      if (has_mean(args)) mean[r] = static_cast<const Acc*>(args.mean)[row];
      rstd[r] = static_cast<const Acc*>(args.rstd)[row];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc grad = grads[r].at(j);
        weight_sums[j] += grad * ((inputs[r].at(j) - mean[r]) * rstd[r]);
        bias_sums[j] += grad;
      }
    }
  }

  if (args.grad_weight.data) store(partial_at<Acc>(args, partition) + column, weight_sums);
  if (args.grad_bias.data) store(partial_at<Acc>(args, partitions + partition) + column, bias_sums);
}

template <class Acc>
FUSEDOPS_DEVICE void store_as(const Columns& columns, int64_t column, Acc value) {
  switch (columns.dtype) {
    case DType::kFloat64:
      static_cast<double*>(columns.data)[column] = value;
      break;
    case DType::kFloat32:
      static_cast<float*>(columns.data)[column] = static_cast<float>(value);
      break;
    case DType::kFloat16:
      narrow(static_cast<float>(value), static_cast<Half*>(columns.data)[column]);
      break;
    case DType::kBFloat16:
      narrow(static_cast<float>(value), static_cast<BFloat16*>(columns.data)[column]);
      break;
  }
}

// Adds the partials of all partitions. A block of 32 x 32 threads has 32 columns: to load, the
// lanes of a warp have neighbouring columns; to add up, a warp has one column.
template <class Acc>
FUSEDOPS_DEVICE void sum_partials(const NormBackward& args, int64_t partitions, int64_t block) {
  constexpr int32_t kSide = device::kWarpLanes, kPitch = kSide + 1;  // avoids bank conflicts
  FUSEDOPS_SHARED(Pair<Acc>, sums, kSide * kPitch);
  const int64_t first_column = block * kSide;
  const int64_t own = first_column + threadIdx.x;

  Pair<Acc> sum{0, 0};
  if (own < args.cols) {
    for (int64_t partition = threadIdx.y; partition < partitions; partition += kSide) {
      if (args.grad_weight.data) sum.first += partial_at<Acc>(args, partition)[own];
      if (args.grad_bias.data) sum.second += partial_at<Acc>(args, partitions + partition)[own];
    }
  }
  sums[threadIdx.y * kPitch + threadIdx.x] = sum;
  __syncthreads();

  sum = warp_reduce<Sum>(sums[threadIdx.x * kPitch + threadIdx.y], kSide);
  const int64_t column = first_column + threadIdx.y;
  if (threadIdx.x != 0 || column >= args.cols) return;
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
