// A Tile is the elements of a row that one thread holds in registers, as they were loaded.
//
// Layout: vector i of thread t begins at column (i * blockDim.x + t) * kWidth, so that neighbouring
// lanes read neighbouring vectors. blockDim.x threads share a row, and a block has blockDim.y rows.
// With kByWarp, vector i of thread t begins at column (i * 32 + t % 32) * kWidth of its warp's
// columns. The number of columns is a multiple of kWidth: a vector is inside the row or outside as
// a whole.
#pragma once

#include "args.h"
#include "cuda/block/vec.h"

namespace fusedops::cuda {

// This value of kThreads says that any number of warps share a row, and that each of them has
// neighbouring columns.
inline constexpr int kByWarp = -1;

// Returns how many columns after a thread's first vector its vector i begins. kThreads is kByWarp,
// or the number of threads that share a row if the plan fixes that number, or else 0.
template <int kWidth, int kThreads = 0>
FUSEDOPS_DEVICE int32_t columns_before(int i) {
  constexpr int32_t kApart = kThreads == kByWarp ? device::kWarpLanes : kThreads;
  return i * (kApart > 0 ? kApart : static_cast<int32_t>(blockDim.x)) * kWidth;
}

// Returns the first column of a thread's vector, counted from the row's first column or, with
// kByWarp, from the first column of the warp.
template <int kWidth, int kThreads = 0>
FUSEDOPS_DEVICE int32_t column_of(int vector) {
  const uint32_t lane = kThreads == kByWarp ? threadIdx.x % device::kWarpLanes : threadIdx.x;
  return columns_before<kWidth, kThreads>(vector) + static_cast<int32_t>(lane) * kWidth;
}

// Returns how many of a thread's vectors for_vectors() compares with the row's end at once. The
// result has to divide the number of vectors: it is 4, or else 5 (of 10 vectors), or else all.
constexpr int vectors_of_group(int vectors) {
  return vectors % 4 == 0 ? 4 : vectors % 5 == 0 ? 5 : vectors;
}

// Calls f(i, is_inside) for each vector i of a thread; is_inside says whether it is inside a row of
// `cols` columns. Where offsets are constants (kThreads != 0), one comparison finds out whether a
// group of vectors is inside the row for all threads of the row or warp, and one whether it is
// outside for all of them. Only in the group where the row ends does each vector take a predicate.
template <int kWidth, int kVectors, int kThreads, class F>
FUSEDOPS_DEVICE void for_vectors(int32_t cols, F f) {
  const int32_t left = cols - column_of<kWidth, kThreads>(0);
  constexpr int kGroup = kThreads != 0 ? vectors_of_group(kVectors) : 1;
  const auto offset_of = [](int i) { return columns_before<kWidth, kThreads>(i); };
#pragma unroll
  for (int first = 0; first < kVectors; first += kGroup) {
    if (kThreads != 0 && offset_of(first + kGroup) <= cols) {
#pragma unroll
      for (int i = first; i < first + kGroup; ++i) f(i, true);
    } else if (kThreads == 0 || offset_of(first) < cols) {
#pragma unroll
      for (int i = first; i < first + kGroup; ++i) f(i, offset_of(i) < left);
    } else {
#pragma unroll
      for (int i = first; i < first + kGroup; ++i) f(i, false);
    }
  }
}

// These functions return the address of a row. The kernels that hold rows in tiles read evenly
// spaced rows only. Runs of rows (RowSpacing), which CPU kernels read, would cost each kernel 8
// registers a thread, and therefore a sixth of the bytes in flight.
template <class T>
FUSEDOPS_DEVICE const T* row_of(const ConstRows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + row * rows.spacing.stride;
}
template <class T>
FUSEDOPS_DEVICE T* row_of(const Rows& rows, int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.spacing.stride;
}

// Returns the row of this thread in a launch with one row per threadIdx.y.
FUSEDOPS_DEVICE int64_t launch_row(int64_t first_row) {
  return first_row + static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// Tells the compiler how many threads share a row, if kThreads > 0. A thread's vectors are then a
// constant distance apart, which fits into load instructions, and a reduction has no branches.
template <int kThreads>
FUSEDOPS_DEVICE void assume_row_threads() {
  if constexpr (kThreads > 0) device::assume(blockDim.x == kThreads);
}

// Says which tensor a block has in a launch of the same number of blocks for each of `count`
// tensors.
struct StackBlock {
  int32_t tensor;
  uint32_t block, blocks;  // the number of the block in its tensor, and how many the tensor has

  FUSEDOPS_DEVICE explicit StackBlock(int32_t count)
      : blocks(gridDim.x / static_cast<uint32_t>(count)) {
    tensor = static_cast<int32_t>(blockIdx.x / blocks);
    block = blockIdx.x % blocks;
  }

  // Returns the row of this thread, with one row per threadIdx.y.
  FUSEDOPS_DEVICE int64_t row() const { return int64_t{block} * blockDim.y + threadIdx.y; }
};

// Calls store(i, offset, address) for the vectors of this thread that are inside a row of `cols`
// columns. The first address stays in registers, unless T is double, which leaves none free.
template <int kWidth, int kVectors, int kThreads = 0, class T, class Store>
FUSEDOPS_DEVICE void store_by(T* row, int32_t cols, Store store) {
  T* first = row + column_of<kWidth, kThreads>(0);
  if constexpr (sizeof(T) < 8) first = device::whole(first);
  for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
    const int32_t offset = columns_before<kWidth, kThreads>(i);
    if (is_inside) store(i, offset, first + offset);
  });
}

template <class T, int kWidth, int kVectors>
struct Tile {
  using Acc = AccumulatorOf<T>;
  Vec<T, kWidth> vectors[kVectors];

  FUSEDOPS_DEVICE Acc at(int i, int j) const { return vectors[i].at(j); }

  // Returns how many columns the threads of a row hold together.
  static FUSEDOPS_DEVICE int32_t step() {
    return static_cast<int32_t>(blockDim.x) * kVectors * kWidth;
  }

  // Returns the sum of every kStep-th element.
  template <int kStep = 1>
  FUSEDOPS_DEVICE Acc sum() const {
    constexpr int kCount = kVectors * kWidth / kStep;
    Acc values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = at(k * kStep / kWidth, k * kStep % kWidth);
    return tree_sum<kCount>(values);
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

  // Loads the thread's vectors of a row, with all loads before the first use. Elements outside the
  // row become `fill`.
  template <int kThreads = 0>
  FUSEDOPS_DEVICE void load(const T* row, int32_t cols, Acc fill) {
    load_by<kThreads>(
        device::whole(first_of<kThreads>(row)), cols,
        [](const T* from) { return Vec<T, kWidth>::load(from); },
        [fill] { return Vec<T, kWidth>::filled(fill); });
  }

  // Loads data that other rows read too, and keeps it in L1. Elements outside the row become zeros.
  FUSEDOPS_DEVICE void load_cached(const T* row, int32_t cols) {
    load_by<0>(
        first_of<0>(row), cols, [](const T* from) { return Vec<T, kWidth>::load_cached(from); },
        [] { return Vec<T, kWidth>{}; });
  }

 private:
  // Returns the address of this thread's first vector.
  template <int kThreads>
  static FUSEDOPS_DEVICE const T* first_of(const T* row) {
    return row + column_of<kWidth, kThreads>(0);
  }

  // Loads the vectors inside the row by load(address), and sets the others to outside(). Each
  // address is the thread's first one plus an offset that all threads share. If the addresses were
  // computed from columns, the compiler would keep them for the stores: 16 registers for 8 vectors,
  // too many for kernels that have 64.
  template <int kThreads, class Load, class Outside>
  FUSEDOPS_DEVICE void load_by(const T* first, int32_t cols, Load load, Outside outside) {
    for_vectors<kWidth, kVectors, kThreads>(cols, [&](int i, bool is_inside) {
      vectors[i] = is_inside ? load(first + columns_before<kWidth, kThreads>(i)) : outside();
    });
  }
};

}  // namespace fusedops::cuda
