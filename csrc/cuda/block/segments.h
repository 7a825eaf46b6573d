// Says for rows that are cut into segments which segment of which row a block has, and where the
// segment's partial result lies in the workspace.
//
// Contract: kernel(args, first_row, segments) has kSegmentThreads threads a block and
// segments.count blocks a row. The second of two kernels takes the segments backwards, so that it
// begins with those that the first kernel read last, which are in L2.
#pragma once

#include "cuda/block/device.h"
#include "cuda/launch/plan.h"

namespace fusedops::cuda {

struct Segment {
  int64_t row, start;
  int32_t index;  // the segment's number in its row
  int32_t cols;   // the segment's columns, from `start` on

  // Finds the segment of `block`, in rows of `cols` columns.
  FUSEDOPS_DEVICE Segment(Segments segments, int64_t cols, int64_t first_row, uint32_t block) {
    const auto count = static_cast<uint32_t>(segments.count);
    row = first_row + block / count;
    index = static_cast<int32_t>(block % count);
    start = int64_t{index} * segments.cols;
    this->cols = columns_of(segments, cols, index);
  }

  // Returns the number of columns in a segment; the last one of a row may have fewer.
  static FUSEDOPS_DEVICE int32_t columns_of(Segments segments, int64_t cols, int32_t index) {
    const int64_t left = cols - int64_t{index} * segments.cols;
    return left < segments.cols ? static_cast<int32_t>(left) : segments.cols;
  }
};

// Returns the number that `block` gets if blocks are counted from the end of the grid.
FUSEDOPS_DEVICE uint32_t backwards(uint32_t block) { return gridDim.x - 1 - block; }

// Returns the address of a row's partial results, one for each of its segments.
template <class Partial>
FUSEDOPS_DEVICE Partial* partials_of(void* workspace, Segments segments, int64_t row) {
  return static_cast<Partial*>(workspace) + row * segments.count;
}

// Leaves the partial result of a segment, which all threads of the block have, in the workspace.
template <class Partial>
FUSEDOPS_DEVICE void save_partial(
    void* workspace, Segments segments, const Segment& segment, const Partial& partial) {
  if (threadIdx.x > 0) return;
  partials_of<Partial>(workspace, segments, segment.row)[segment.index] = partial;
}

// Returns the sum of this thread's share of the partials; the shares of all threads of the block
// add up to the total.
template <class Acc>
FUSEDOPS_DEVICE Acc sum_of(const Acc* partials, int32_t count) {
  Acc sum{};
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) sum = sum + partials[i];
  return sum;
}

}  // namespace fusedops::cuda
