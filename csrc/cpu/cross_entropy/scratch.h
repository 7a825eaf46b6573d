// Says what is kept for each segment of a long row in a cross entropy.
#pragma once

#include "cpu/threads/work_division.h"

namespace fusedops {

// Sums over the logits of a segment, or of a row, without the logit of the class.
struct LogitSums {
  double shift;  // what is subtracted from the logits before the exponential
  double sum;    // of the exponentials
  double total;  // of the logits
};

constexpr int64_t logit_sums_bytes(int64_t cols) {
  return row_segments(cols) * int64_t(sizeof(LogitSums));
}

}  // namespace fusedops
