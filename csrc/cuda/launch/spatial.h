// What the launches of kernels over a dimension that is not the last have in common. Host code, the
// same for a GPU and for the emulator.
#pragma once

#include "cuda/launch/dispatch.h"

namespace fusedops::cuda {

// f(where elements are kept, as a type).
template <class T, class F>
Status with_keep(SpatialKeep keep, F f) {
  if constexpr (sizeof(T) < 8) {
    if (keep == kKeepRegisters) return f(Int<kKeepRegisters>{});
    if (keep == kKeepShared) return f(Int<kKeepShared>{});
  }
  return f(Int<kKeepNothing>{});
}

template <class Args>
Status launch_inner_segments(
    void (*kernel)(Args, int64_t), const SpatialPlan& plan, const Args& args, Stream stream) {
  const dim3 threads(plan.inner_threads, plan.dim_threads);
  const int64_t blocks = args.outer * plan.segments;
  return for_each_launch(blocks, device::max_grid(), [&](int64_t first, int64_t count) {
    return device::launch_with_shared(
        kernel, plan.shared_bytes, count, threads, stream, args, first);
  });
}

}  // namespace fusedops::cuda
