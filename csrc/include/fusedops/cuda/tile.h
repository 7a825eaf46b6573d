// The elements of a row that one thread holds in registers, as they were loaded.
//
// Layout: vector i of thread t begins at column (i * blockDim.x + t) * kWidth, so that neighbouring
// lanes read neighbouring vectors. blockDim.x threads share a row, and a block has blockDim.y rows.
// cols is a multiple of kWidth: a vector as a whole is inside the row or outside.
#pragma once

#include "fusedops/args.h"
#include "fusedops/cuda/vec.h"

namespace fusedops::cuda {

template <int kWidth>
FUSEDOPS_DEVICE int32_t column_of(int vector) {
  return static_cast<int32_t>(vector * blockDim.x + threadIdx.x) * kWidth;
}

// Rows are evenly spaced here. Runs of rows, which the CPU reads, would cost every kernel 8
// registers, and with them a sixth of the bytes in flight.
template <class T>
FUSEDOPS_DEVICE const T* row_of(const ConstRows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + row * rows.spacing.stride;
}
template <class T>
FUSEDOPS_DEVICE T* row_of(const Rows& rows, int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.spacing.stride;
}

// The row of this thread in a launch with one row per threadIdx.y.
FUSEDOPS_DEVICE int64_t launch_row(int64_t first_row) {
  return first_row + static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// A block of a launch that has the same number of blocks for each of `count` tensors.
struct StackBlock {
  int32_t tensor;
  uint32_t block, blocks;  // of the tensor

  FUSEDOPS_DEVICE explicit StackBlock(int32_t count)
      : blocks(gridDim.x / static_cast<uint32_t>(count)) {
    tensor = static_cast<int32_t>(blockIdx.x / blocks);
    block = blockIdx.x % blocks;
  }

  // The row of this thread, with one row per threadIdx.y.
  FUSEDOPS_DEVICE int64_t row() const { return int64_t{block} * blockDim.y + threadIdx.y; }
};

template <class T, int kWidth, int kVectors>
struct Tile {
  using Acc = AccumulatorOf<T>;
  Vec<T, kWidth> vectors[kVectors];

  FUSEDOPS_DEVICE Acc at(int i, int j) const { return vectors[i].at(j); }

  // Columns that all threads of a row hold together.
  static FUSEDOPS_DEVICE int32_t step() {
    return static_cast<int32_t>(blockDim.x) * kVectors * kWidth;
  }

  FUSEDOPS_DEVICE Acc sum() const {
    Acc values[kVectors * kWidth];
#pragma unroll
    for (int k = 0; k < kVectors * kWidth; ++k) values[k] = at(k / kWidth, k % kWidth);
    return tree_sum<kVectors * kWidth>(values);
  }

  FUSEDOPS_DEVICE Acc max() const {
    Acc max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) max = device::maximum(max, at(i, j));
    }
    return max;
  }

  // All loads are issued before the first use. Elements outside the row are `fill`.
  FUSEDOPS_DEVICE void load(const T* row, int32_t cols, Acc fill) {
    load_by(
        row, cols, [](const T* from) { return Vec<T, kWidth>::load(from); },
        [fill] { return Vec<T, kWidth>::filled(fill); });
  }

  // For what other rows read too: it stays in L1. Elements outside the row are zeros.
  FUSEDOPS_DEVICE void load_cached(const T* row, int32_t cols) {
    load_by(
        row, cols, [](const T* from) { return Vec<T, kWidth>::load_cached(from); },
        [] { return Vec<T, kWidth>{}; });
  }

 private:
  // Addresses are the thread's first one plus offsets that all threads share. Computed from columns
  // they would be kept for the stores: 16 registers for 8 vectors, and kernels of 64 would spill.
  template <class Load, class Outside>
  FUSEDOPS_DEVICE void load_by(const T* row, int32_t cols, Load load, Outside outside) {
    const T* const own = row + column_of<kWidth>(0);
    const int32_t left = cols - column_of<kWidth>(0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t offset = i * static_cast<int32_t>(blockDim.x) * kWidth;
      vectors[i] = offset < left ? load(own + offset) : outside();
    }
  }
};

}  // namespace fusedops::cuda
