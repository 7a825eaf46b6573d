// Says what a cross entropy keeps for each segment of a long row.
#pragma once

#include "cpu/threads/work_division.h"

namespace fusedops {

// Holds sums over the columns of a segment, or of a row.
struct LogitSums {
  double shift;        // what is subtracted from the logits before the exponential
  double sum;          // the sum of the exponentials, without that of the class
  double differences;  // the sum of the logits' differences from the shift
  double cols;         // the number of columns
};

constexpr int64_t logit_sums_bytes(int64_t cols) {
  return row_segments(cols) * int64_t(sizeof(LogitSums));
}

}  // namespace fusedops
