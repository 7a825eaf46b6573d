#include <torch/csrc/stable/ops.h>

#include "cpu/threads/fork.h"
#include "cpu/threads/interpreter_exit.h"
#include "cpu/threads/parallel.h"

namespace fusedops {

int64_t thread_count() { return torch::stable::get_num_threads(); }

int64_t thread_index() {
  uint32_t index;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_get_thread_idx(&index));
  return index;
}

namespace {

// Exceptions are captured, because torch would replace one from a body by a message of its own, and
// print it.
void divide(int64_t count, int64_t grain, RangeBody body, const void* context) {
  FirstException thrown;
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    thrown.capture_from([&] { body(begin, end, context); });
  });
  thrown.rethrow();
}

}  // namespace

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context) {
  if (count <= 0) return;
  wait_while_interpreter_exits();
  if (count <= grain || threads_are_lost()) {
    body(0, count, context);
  } else {
    threads_are_used();
    divide(count, grain, body, context);
  }
  wait_while_interpreter_exits();
}

}  // namespace fusedops
