// Rows that several blocks share: which segment of which row a block has, and where it leaves what
// it found of it.
//
// Contract: a kernel(args, first_row, segments) of kSegmentThreads threads and segments.count
// blocks a row. The second of two kernels walks backwards, so that it begins with what the first
// one read last.
#pragma once

#include "fusedops/cuda/launch_plan.h"
#include "fusedops/device.h"

namespace fusedops::cuda {

struct Segment {
  int64_t row, start;
  int32_t index, cols;  // from start on

  // The segment of a row of `cols` columns that a block has.
  FUSEDOPS_DEVICE Segment(Segments segments, int64_t cols, int64_t first_row, uint32_t block) {
    const auto count = static_cast<uint32_t>(segments.count);
    row = first_row + block / count;
    index = static_cast<int32_t>(block % count);
    start = int64_t{index} * segments.cols;
    this->cols = columns_of(segments, cols, index);
  }

  static FUSEDOPS_DEVICE int32_t columns_of(Segments segments, int64_t cols, int32_t index) {
    const int64_t left = cols - int64_t{index} * segments.cols;
    return left < segments.cols ? static_cast<int32_t>(left) : segments.cols;
  }
};

FUSEDOPS_DEVICE uint32_t backwards(uint32_t block) { return gridDim.x - 1 - block; }

// One of each segment of the row.
template <class Part>
FUSEDOPS_DEVICE Part* parts_of(void* workspace, Segments segments, int64_t row) {
  return static_cast<Part*>(workspace) + row * segments.count;
}

// What a thread has of the sum of all parts.
template <class Acc>
FUSEDOPS_DEVICE Acc sum_of(const Acc* parts, int32_t count) {
  Acc sum{};
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) sum = sum + parts[i];
  return sum;
}

}  // namespace fusedops::cuda
