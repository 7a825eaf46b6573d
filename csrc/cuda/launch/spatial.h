// Launches kernels over a dimension that is not the last. This is host code, the same for a GPU and
// for the emulator.
#pragma once

#include "cuda/launch/kernels.h"

namespace fusedops::cuda {

// Launches kernel(args, first_segment, is_staged) with a block for each segment of inner columns.
// A block reads its segment in each of `tensors` tensors; what it reads of one is a strip.
template <class Strip, class Args>
Status launch_strips(DType dtype, int32_t width, int32_t tensors, const Args& args, Stream stream) {
  const SpatialPlan plan = plan_spatial(
      args.dim_size, args.inner, width, size_of(dtype), tensors, device::max_shared_bytes());
  const auto kernel = find_kernel<Strip>(dtype, width);
  const dim3 threads(plan.inner_threads, plan.dim_threads);
  const int64_t blocks = args.outer * plan.segments;
  return for_each_launch(blocks, device::max_grid(), [&](int64_t first, int64_t count) {
    return device::launch_with_shared(
        kernel, plan.shared_bytes, count, threads, stream, args, first, plan.shared_bytes > 0);
  });
}

}  // namespace fusedops::cuda
