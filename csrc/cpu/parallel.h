// How the CPU kernels share work among threads. Each library links one implementation: torch's
// threads, or OpenMP where there is no torch.
#pragma once

#include <cstdint>

namespace fusedops {

// Threads that a parallel_for() may use.
int64_t thread_count();

// body(begin, end, context) over [0, count), in runs of at least `grain` but for the last, side by
// side. What one of them throws is thrown here, once all are done.
using RangeBody = void (*)(int64_t begin, int64_t end, const void* context);
void parallel_for(int64_t count, int64_t grain, RangeBody body, const void* context);

template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  const RangeBody body = [](int64_t begin, int64_t end, const void* context) {
    (*static_cast<const F*>(context))(begin, end);
  };
  parallel_for(count, grain, body, &f);
}

}  // namespace fusedops
