// What the launches of kernels over a dimension that is not the last have in common. Host code, the
// same for a GPU and for the emulator.
#pragma once

#include "cuda/launch/kernels.h"

namespace fusedops::cuda {

// The kernel for rows and results of these dtypes that stages strips as `plan` says.
template <class Kernel>
FunctionOf<Kernel> find_kernel(DType rows, DType results, const SpatialPlan& plan) {
  return find_kernel<Kernel>(rows, results, plan.width, plan.staging);
}

// Launches kernel(args, first_segment) with a block for each segment of inner columns.
template <class Args>
Status launch_inner_segments(
    void (*kernel)(Args, int64_t), const SpatialPlan& plan, const Args& args, Stream stream) {
  if (kernel == nullptr) return device::kInvalidValue;
  const dim3 threads(plan.inner_threads, plan.dim_threads);
  const int64_t blocks = args.outer * plan.segments;
  return for_each_launch(blocks, device::max_grid(), [&](int64_t first, int64_t count) {
    return device::launch_with_shared(
        kernel, plan.shared_bytes, count, threads, stream, args, first);
  });
}

}  // namespace fusedops::cuda
