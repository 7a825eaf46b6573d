// parallel_for() on threads of its own, for ThreadSanitizer, which does not see how OpenMP orders
// what its threads do. Torch's threads are OpenMP's too.
#include <algorithm>
#include <thread>
#include <vector>

#include "cpu/threads/parallel.h"

namespace fusedops {
namespace {

thread_local int64_t index_of_thread = 0;

}  // namespace

int64_t thread_count() { return 3; }
int64_t thread_index() { return index_of_thread; }

void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context) {
  if (count <= 0) return;
  const int64_t each = std::max(grain, (count + thread_count() - 1) / thread_count());
  FirstException thrown;
  std::vector<std::thread> threads;
  for (int64_t begin = each; begin < count; begin += each) {
    threads.emplace_back([&, begin, index = begin / each] {
      index_of_thread = index;
      thrown.capture_from([&] { body(begin, std::min(begin + each, count), context); });
    });
  }
  thrown.capture_from([&] { body(0, std::min(each, count), context); });
  for (std::thread& thread : threads) thread.join();
  thrown.rethrow();
}

}  // namespace fusedops
