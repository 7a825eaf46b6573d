#include <torch/csrc/stable/ops.h>

#include "cpu/parallel.h"

namespace fusedops {

int64_t thread_count() { return torch::stable::get_num_threads(); }

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context) {
  torch::stable::parallel_for(
      0, count, grain, [&](int64_t begin, int64_t end) { body(begin, end, context); });
}

}  // namespace fusedops
