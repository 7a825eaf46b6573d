#include <torch/csrc/stable/ops.h>

#include "cpu/interpreter_exit.h"
#include "cpu/parallel.h"

namespace fusedops {

int64_t thread_count() { return torch::stable::get_num_threads(); }

int64_t thread_index() {
  uint32_t index;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_get_thread_idx(&index));
  return index;
}

// torch would make a message of its own of what a body throws, and print it.
void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context) {
  wait_while_interpreter_exits();
  FirstException thrown;
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    thrown.keep_from([&] { body(begin, end, context); });
  });
  wait_while_interpreter_exits();
  thrown.rethrow();
}

}  // namespace fusedops
