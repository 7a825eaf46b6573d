#include <omp.h>

#include <algorithm>

#include "cpu/threads/fork.h"
#include "cpu/threads/parallel.h"
#include "cpu/threads/work_division.h"

namespace fusedops {

int64_t thread_count() { return omp_get_max_threads(); }
int64_t thread_index() { return omp_get_thread_num(); }

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context) {
  if (count <= 0) return;
  const auto threads = static_cast<int>(std::min(ceil_div(count, grain), thread_count()));
  if (threads == 1 || omp_in_parallel() || threads_are_lost()) return body(0, count, context);
  threads_are_used();
  FirstException thrown;
#pragma omp parallel num_threads(threads)
  {
    const int64_t each = ceil_div(count, omp_get_num_threads());
    const int64_t begin = omp_get_thread_num() * each, end = std::min(begin + each, count);
    if (begin < end) thrown.capture_from([&] { body(begin, end, context); });
  }
  thrown.rethrow();
}

}  // namespace fusedops
