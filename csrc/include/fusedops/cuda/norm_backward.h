// LayerNorm, StdNorm and RMSNorm along rows, backward.
//
// With n = (input - mean) * rstd, w = weight + weight_offset and g = grad_output * w, along each
// row:
//   gradient = (g - mean(g) - n * mean(g * n)) * rstd + grad_sum, of RMSNorm without mean(g),
//   of StdNorm with sum(g * n) / ((cols - 1) * std * rstd) in place of mean(g * n),
//   grad_input = gradient, grad_branch = dropout(gradient)
// and along each column: grad_weight = sum(grad_output * n), grad_bias = sum(grad_output).
//
// Contract: as in norm.h; kAdd: whether there is a grad_sum or a grad_branch is wanted. _registers
// reads input and grad_output once: every block walks over rows, keeps its part of the column sums
// in registers and leaves it in the workspace; _finish adds the parts. Longer rows go by segments
// (_row_parts, _rows) or clusters (_rows_cluster) and get their column sums from a kernel of their
// own (_column_parts). Workspace: [2][parts][cols] accumulators, grad_weight's parts first; in the
// same place before that, of rows by segments, [rows][segments] pairs, the sums of g and g * n.
//
// Numerics: float (double for double), each result rounded once; no atomics, every order of
// summation is fixed by rows, cols, dtype and alignment. A row's gradient does not depend on the
// other rows.
#pragma once

#include "fusedops/cuda/norm.h"

namespace fusedops::cuda {

// One vector of one row, as floats.
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
FUSEDOPS_DEVICE Acc* workspace_part(const NormBackward& args, int64_t part) {
  return static_cast<Acc*>(args.workspace) + part * args.cols;
}

// Adds the rows' column sums of a block in order of threadIdx.y and writes them out. Every thread
// brings the columns of its tile.
template <int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void write_column_sums(
    const Acc (&own)[kVectors][kWidth], int32_t cols, Acc* shared, Acc* to) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t column = column_of<kWidth>(i);
    if (column < cols) store(shared + threadIdx.y * cols + column, own[i]);
  }
  __syncthreads();
  // Errors grow with 16 + 8 additions, not with the 128 rows that a block may hold.
  constexpr int32_t kSummedRows = 16;
  const int32_t rows = blockDim.y;
  for (int32_t column = threadIdx.y * blockDim.x + threadIdx.x; column < cols;
       column += blockDim.x * blockDim.y) {
    Acc sum = 0;
    for (int32_t first = 0; first < rows; first += kSummedRows) {
      Acc part = 0;
      for (int32_t row = first; row < first + kSummedRows && row < rows; ++row) {
        part += shared[row * cols + column];
      }
      sum += part;
    }
    to[column] = sum;
  }
  __syncthreads();
}

// A tile of a row as loaded; it begins at column `start`, of which `cols` are left. A row past the
// last has no columns.
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

  // Outside the row every product with the result is zero.
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

// A tile of the gradients that reach a row from its sum; zeros where there are none.
template <class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE void load_sums(
    Tile<T, kWidth, kVectors>& tile, const NormBackward& args, int64_t row, int64_t start,
    int32_t cols) {
  tile.load(row_of<T>(args.grad_sum, row) + start, args.grad_sum.data ? cols : 0, 0);
}

// Where the gradients of a row go; with kAdd, with what is added to them and drops out on the way.
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

// Walks over the rows of one of `parts` parts. Two sets of slots in turn: one barrier a row is then
// enough.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_DEVICE void norm_backward_part(const NormBackward& args, int64_t part, int64_t parts) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Pair<Acc>, slots, 2 * kMaxWarps);
  FUSEDOPS_SHARED(Acc, column_sums, kNormBackwardThreads * kVectors * kWidth);
  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));
  const int64_t step = parts * blockDim.y;
  Acc weight_sums[kVectors][kWidth] = {}, bias_sums[kVectors][kWidth] = {};
  int32_t turn = 0;

  const auto all_cols = static_cast<int32_t>(args.cols);
  NormBackwardTile<T, kWidth, kVectors> loaded;
  loaded.load(args, part * blockDim.y + threadIdx.y, 0, all_cols);
  for (int64_t first = part * blockDim.y; first < args.rows; first += step) {
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
    Pair<Acc> part_sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) part_sums[i] = gradients[i].sums();
    const Pair<Acc> sums = row_reduce<Sum>(tree_sum<kVectors>(part_sums), slots + turn * kMaxWarps);
    turn ^= 1;

    const Pair<Acc> means = means_of(args, sums, share, rstd);
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
    write_column_sums(weight_sums, all_cols, column_sums, workspace_part<Acc>(args, part));
  }
  if (args.grad_bias.data) {
    write_column_sums(bias_sums, all_cols, column_sums, workspace_part<Acc>(args, parts + part));
  }
}

// One block a multiprocessor: unasked the compiler makes room for two of narrow vectors, and
// spills.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_backward_registers(NormBackward args) {
  norm_backward_part<T, kWidth, kVectors, kAdd>(args, blockIdx.x, gridDim.x);
}

template <class T, int kWidth, int kVectors>
FUSEDOPS_KERNEL(kNormBackwardThreads, 1)
norm_stack_backward_registers(NormStackBackward stack) {
  const StackBlock at(stack.count);
  norm_backward_part<T, kWidth, kVectors, false>(stack[at.tensor], at.block, at.blocks);
}

template <class T, int kWidth>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_backward_row_parts(NormBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 2>;
  FUSEDOPS_SHARED(Pair<Acc>, slots, kMaxWarps);
  const Segment segment(segments, args.cols, first_row, blockIdx.x);

  NormBackwardTile<T, kWidth, kVectors> tile;
  Pair<Acc> sums{0, 0};
  for (int32_t start = 0; start < segment.cols; start += tile.grads.step()) {
    tile.load(args, segment.row, segment.start + start, segment.cols - start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) sums = sums + tile.gradient(args, i).sums();
  }
  sums = row_reduce<Sum>(sums, slots);
  if (threadIdx.x == 0) {
    parts_of<Pair<Acc>>(args.workspace, segments, segment.row)[segment.index] = sums;
  }
}

template <class T, int kWidth, bool kAdd>
FUSEDOPS_KERNEL(kSegmentThreads, kSegmentBlocks<T>)
norm_backward_rows(NormBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 2>;
  FUSEDOPS_SHARED(Pair<Acc>, slots, kMaxWarps);
  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));
  const Segment segment(segments, args.cols, first_row, backwards(blockIdx.x));

  NormBackwardTile<T, kWidth, kVectors> tile;
  tile.load(args, segment.row, segment.start, segment.cols);
  const auto* const parts = parts_of<Pair<Acc>>(args.workspace, segments, segment.row);
  const Pair<Acc> sums = row_reduce<Sum>(sum_of(parts, segments.count), slots);

  const Pair<Acc> means = means_of(args, sums, share, tile.rstd);
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

// The same with the row in the registers of a cluster: one launch, and it is read once.
template <class T, int kWidth, int kVectors, bool kAdd>
FUSEDOPS_KERNEL(kNormBackwardThreads)
norm_backward_rows_cluster(NormBackward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Pair<Acc>, slots, Cluster::kSlots);
  const int64_t row = first_row + blockIdx.x / kClusterBlocks;
  const auto [start, cols] = Cluster::part_of<kWidth>(static_cast<int32_t>(args.cols));

  NormBackwardTile<T, kWidth, kVectors> tile;
  tile.load(args, row, start, cols);
  Tile<T, kWidth, kVectors> added;
  if constexpr (kAdd) load_sums(added, args, row, start, cols);
  Pair<Acc> part_sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) part_sums[i] = tile.gradient(args, i).sums();
  const Pair<Acc> sums = Cluster::reduce<Sum>(tree_sum<kVectors>(part_sums), slots);

  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));
  const Pair<Acc> means = means_of(args, sums, share, tile.rstd);
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

// Column sums over a share of the rows: block b holds column tile b % tiles of part b / tiles, each
// thread one vector of columns; kRows rows are in flight at a time.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kColumnThreads)
norm_backward_column_parts(NormBackward args, int64_t parts) {
  using Acc = AccumulatorOf<T>;
  constexpr int kRows = 4;
  const uint32_t tiles = gridDim.x / static_cast<uint32_t>(parts), part = blockIdx.x / tiles;
  const int64_t column = (int64_t{blockIdx.x % tiles} * blockDim.x + threadIdx.x) * kWidth;
  if (column >= args.cols) return;
  Acc weight_sums[kWidth] = {}, bias_sums[kWidth] = {};

  for (int64_t first = part; first < args.rows; first += parts * kRows) {
    Vec<T, kWidth> grads[kRows], inputs[kRows];
    Acc mean[kRows], rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * parts;
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

  if (args.grad_weight.data) store(workspace_part<Acc>(args, part) + column, weight_sums);
  if (args.grad_bias.data) store(workspace_part<Acc>(args, parts + part) + column, bias_sums);
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

// Adds the parts. A block of 32 x 32 threads owns 32 columns: the lanes of a warp stand beside each
// other for loading, and above each other for the last sum.
template <class Acc>
FUSEDOPS_DEVICE void sum_parts(const NormBackward& args, int64_t parts, int64_t block) {
  constexpr int32_t kSide = device::kWarpLanes, kPitch = kSide + 1;  // one more: no bank conflict
  FUSEDOPS_SHARED(Pair<Acc>, sums, kSide * kPitch);
  const int64_t first_column = block * kSide;
  const int64_t own = first_column + threadIdx.x;

  Pair<Acc> sum{0, 0};
  if (own < args.cols) {
    for (int64_t part = threadIdx.y; part < parts; part += kSide) {
      if (args.grad_weight.data) sum.first += workspace_part<Acc>(args, part)[own];
      if (args.grad_bias.data) sum.second += workspace_part<Acc>(args, parts + part)[own];
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
norm_backward_finish(NormBackward args, int64_t parts) {
  sum_parts<Acc>(args, parts, blockIdx.x);
}

template <class Acc>
FUSEDOPS_KERNEL(kMaxThreads)
norm_stack_backward_finish(NormStackBackward stack, int64_t parts) {
  const StackBlock at(stack.count);
  sum_parts<Acc>(stack[at.tensor], parts, at.block);
}

}  // namespace fusedops::cuda
