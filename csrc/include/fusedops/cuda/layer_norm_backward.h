// Layer normalisation along rows, backward.
//
// With n = (input - mean) * rstd and g = grad_output * weight, along each row:
//   grad_input = (g - mean(g) - n * mean(g * n)) * rstd
// and along each column: grad_weight = sum(grad_output * n), grad_bias = sum(grad_output).
//
// Contract: as in layer_norm.h. _registers reads input and grad_output once: every block walks over
// rows, keeps its part of the column sums in registers and leaves it in the workspace; _finish adds
// the parts. Longer rows (_rows_looped) get their column sums from a kernel of their own
// (_column_parts). Workspace: [2][parts][cols] accumulators, grad_weight's parts first.
//
// Numerics: float (double for double), rounded once; no atomics, every order of summation is fixed
// by rows, cols, dtype and alignment. A row's grad_input does not depend on the other rows.
#pragma once

#include "fusedops/cuda/layer_norm.h"

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

  FUSEDOPS_DEVICE void store_to(T* to, Pair<Acc> means, Acc rstd) const {
    Acc result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      result[j] = (weighted[j] - (means.first + normal[j] * means.second)) * rstd;
    }
    store(to, result);
  }
};

template <class Acc>
FUSEDOPS_DEVICE Acc* workspace_part(const LayerNormBackward& args, int64_t part) {
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
  const int32_t rows = blockDim.y;
  for (int32_t column = threadIdx.y * blockDim.x + threadIdx.x; column < cols;
       column += blockDim.x * blockDim.y) {
    Acc sum = 0;
    for (int32_t row = 0; row < rows; ++row) sum += shared[row * cols + column];
    to[column] = sum;
  }
  __syncthreads();
}

// A tile of a row as loaded; it begins at column `start`. A row past the last has no columns.
template <class T, int kWidth, int kVectors>
struct NormBackwardTile {
  using Acc = AccumulatorOf<T>;
  Tile<T, kWidth, kVectors> grads, inputs;
  Acc mean = 0, rstd = 0;
  int64_t start = 0;
  int32_t cols = 0;  // from start on

  FUSEDOPS_DEVICE void load(const LayerNormBackward& args, int64_t row, int64_t at = 0) {
    start = at;
    cols = row < args.rows ? static_cast<int32_t>(args.cols - start) : 0;
    grads.load(row_of<T>(args.grad_output, row) + start, cols, 0);
    inputs.load(row_of<T>(args.input, row) + start, cols, 0);
    if (cols == 0) return;
    mean = static_cast<const Acc*>(args.mean)[row];
    rstd = static_cast<const Acc*>(args.rstd)[row];
  }

  // Outside the row every product with the result is zero.
  template <class W>
  FUSEDOPS_DEVICE NormGradient<T, kWidth> gradient(const ConstColumns& weight, int i) const {
    const int32_t column = column_of<kWidth>(i);
    Acc scale[kWidth] = {};
    if (column < cols) load_parameter<W>(scale, weight, start + column, Acc(1));
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

// Two sets of slots in turn: one barrier a row is then enough.
template <class T, class W, int kWidth, int kVectors>
FUSEDOPS_KERNEL(kNormBackwardThreads)
layer_norm_backward_registers(LayerNormBackward args) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Pair<Acc>, slots, 2 * kMaxWarps);
  FUSEDOPS_SHARED(Acc, column_sums, kNormBackwardThreads * kVectors * kWidth);
  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  Acc weight_sums[kVectors][kWidth] = {}, bias_sums[kVectors][kWidth] = {};
  int32_t turn = 0;

  NormBackwardTile<T, kWidth, kVectors> loaded;
  loaded.load(args, launch_row(0));
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < args.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    const int32_t cols = loaded.cols;
    const Acc rstd = loaded.rstd;
    NormGradient<T, kWidth> parts[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      parts[i] = loaded.template gradient<W>(args.weight, i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        weight_sums[i][j] += parts[i].grad[j] * parts[i].normal[j];
        bias_sums[i][j] += parts[i].grad[j];
      }
    }
    loaded.load(args, row + step);

    if (!args.grad_input.data) continue;
    Pair<Acc> part_sums[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) part_sums[i] = parts[i].sums();
    const Pair<Acc> sums = row_reduce<Sum>(tree_sum<kVectors>(part_sums), slots + turn * kMaxWarps);
    turn ^= 1;

    const Pair<Acc> means{sums.first * share, sums.second * share};
    T* const grad_input = row_of<T>(args.grad_input, row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column < cols) parts[i].store_to(grad_input + column, means, rstd);
    }
  }

  const auto cols = static_cast<int32_t>(args.cols);
  const int64_t part = blockIdx.x, parts = gridDim.x;
  if (args.grad_weight.data) {
    write_column_sums(weight_sums, cols, column_sums, workspace_part<Acc>(args, part));
  }
  if (args.grad_bias.data) {
    write_column_sums(bias_sums, cols, column_sums, workspace_part<Acc>(args, parts + part));
  }
}

// grad_input of rows of any length: one row a block, read twice.
template <class T, class W, int kWidth>
FUSEDOPS_KERNEL(kLoopThreads)
layer_norm_backward_rows_looped(LayerNormBackward args, int64_t first_row) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, 2>;
  FUSEDOPS_SHARED(Pair<Acc>, slots, kMaxWarps);
  const Acc share = device::reciprocal(static_cast<Acc>(args.cols));
  const int64_t row = launch_row(first_row), step = int64_t{blockDim.x} * kVectors * kWidth;

  NormBackwardTile<T, kWidth, kVectors> tile;
  Pair<Acc> sums{0, 0};
  for (int64_t start = 0; start < args.cols; start += step) {
    tile.load(args, row, start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      sums = sums + tile.template gradient<W>(args.weight, i).sums();
    }
  }
  sums = row_reduce<Sum>(sums, slots);

  const Pair<Acc> means{sums.first * share, sums.second * share};
  T* const grad_input = row_of<T>(args.grad_input, row);
  for (int64_t start = 0; start < args.cols; start += step) {
    tile.load(args, row, start);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t column = column_of<kWidth>(i);
      if (column < tile.cols) {
        const NormGradient<T, kWidth> part = tile.template gradient<W>(args.weight, i);
        part.store_to(grad_input + start + column, means, tile.rstd);
      }
    }
  }
}

// Column sums over a share of the rows: block b holds column tile b % tiles of part b / tiles, each
// thread one vector of columns; kRows rows are in flight at a time.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kColumnThreads)
layer_norm_backward_column_parts(LayerNormBackward args, int64_t parts) {
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
      mean[r] = static_cast<const Acc*>(args.mean)[row];
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

  store(workspace_part<Acc>(args, part) + column, weight_sums);
  store(workspace_part<Acc>(args, parts + part) + column, bias_sums);
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
FUSEDOPS_KERNEL(kMaxThreads)
layer_norm_backward_finish(LayerNormBackward args, int64_t parts) {
  constexpr int32_t kSide = device::kWarpLanes, kPitch = kSide + 1;  // one more: no bank conflict
  FUSEDOPS_SHARED(Pair<Acc>, sums, kSide * kPitch);
  const int64_t first_column = int64_t{blockIdx.x} * kSide;
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

}  // namespace fusedops::cuda
