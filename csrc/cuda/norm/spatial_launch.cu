// Launches LayerNorm and RMSNorm over a dimension that is not the last. The emulator compiles this
// file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/launch/spatial.h"
#include "cuda/norm/kernels.h"

namespace fusedops::cuda {

Status launch(const SpatialNormForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (!fits(args.weight, dtype) || !fits(args.bias, dtype)) return device::kInvalidValue;
  const int32_t width = pick_wide_or_single(dtype, args.inner, {args.input, args.output});
  return launch_strips<SpatialNormForwardStrip>(dtype, width, /*tensors=*/1, args, stream);
}

// Holds the plan of the sums for grad_weight and grad_bias. `inner_threads` threads share kChannels
// channels (indices of dim_size), and a block has `channel_threads` times as many channels. Each
// partition takes every partitions-th segment of inner columns. There are enough partitions for
// four blocks on each multiprocessor, and at least 64, so that sums over r columns have at most r /
// 64 additions in a thread. If there are fewer segments, each is a partition. The number of
// partitions depends on the sizes and the device.
struct ChannelPlan {
  int32_t width, inner_threads, channel_threads;
  int64_t partitions, blocks;
};

inline int32_t width_of(const SpatialNormBackward& args) {
  return pick_wide_or_single(
      args.input.dtype, args.inner, {args.grad_output, args.input, args.grad_input});
}

inline ChannelPlan plan_channels(const SpatialNormBackward& args, int32_t width) {
  int32_t inner_threads = 1;
  while (inner_threads < kChannelThreads && inner_threads * width < args.inner) inner_threads *= 2;
  const int32_t channel_threads = kChannelThreads / inner_threads;
  const int64_t groups = ceil_div(args.dim_size, int64_t{channel_threads} * kChannels);
  const int64_t units = args.outer * ceil_div(args.inner, int64_t{inner_threads} * width);
  const int64_t wave = ceil_div(4 * device::multiprocessors(), groups);
  const int64_t partitions = std::min(units, std::max(wave, kAccuratePartitions));
  return {width, inner_threads, channel_threads, partitions, partitions * groups};
}

inline bool wants_channels(const SpatialNormBackward& args) {
  return args.grad_weight.data || args.grad_bias.data;
}

// Launches the sums for grad_weight and grad_bias, and the kernel that adds up their partials.
Status launch_channels(const SpatialNormBackward& args, const ChannelPlan& plan, Stream stream) {
  const DType dtype = args.input.dtype;
  const auto kernel = find_kernel<SpatialNormChannelSums>(dtype, plan.width);
  const dim3 threads(plan.inner_threads, plan.channel_threads);
  const Status status = device::launch(kernel, plan.blocks, threads, stream, args, plan.partitions);
  if (status != device::kSuccess) return status;
  // The kernel that adds up the partials of norms along rows also adds up these partials.
  NormBackward sums{};
  sums.grad_weight = args.grad_weight;
  sums.grad_bias = args.grad_bias;
  sums.workspace = args.workspace;
  sums.cols = args.dim_size;
  return launch_finish(
      norm_backward_finish_of(dtype), sums, /*tensors=*/1, args.dim_size, plan.partitions, stream);
}

// Returns 0 if the number of multiprocessors cannot be read, so that the launch is refused. A
// workspace for no multiprocessors could be too small, because the launch may read their number.
int64_t workspace_bytes(const SpatialNormBackward& args) {
  if (!wants_channels(args) || device::multiprocessors() == 0) return 0;
  const ChannelPlan plan = plan_channels(args, width_of(args));
  return 2 * plan.partitions * args.dim_size * accumulator_bytes(args.input.dtype);
}

Status launch(const SpatialNormBackward& args, Stream stream) {
  if (!fits(args.weight, args.input.dtype)) return device::kInvalidValue;
  if (wants_channels(args) && !args.workspace) return device::kInvalidValue;
  const int32_t width = width_of(args);
  Status status = device::kSuccess;
  if (args.grad_input.data) {
    status = launch_strips<SpatialNormBackwardStrip>(
        args.input.dtype, width, /*tensors=*/2, args, stream);
  }
  if (!wants_channels(args) || status != device::kSuccess) return status;
  return launch_channels(args, plan_channels(args, width), stream);
}

}  // namespace fusedops::cuda
