// Lists the kernels of the norms of norm_kinds.def for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/norm/backward.h"
#include "cuda/norm/forward.h"
#include "cuda/norm/spatial.h"

namespace fusedops::cuda {

// Returns whether kernels can read this weight or bias beside rows of `dtype`.
inline bool fits(const ConstColumns& parameter, DType dtype) {
  return parameter.data == nullptr || is_same_or_wider(parameter.dtype, dtype);
}

// The bool among the template arguments is kAdd (forward.h, backward.h).
TILE_KERNEL(NormForwardRegisters, kNormForward, kRegisters, norm_forward_registers, false, kThreads)
TILE_KERNEL(NormForwardCluster, kNormForward, kCluster, norm_forward_cluster, false)
KERNEL(NormForwardPartials, kNormForward, kSegments, norm_forward_partials, T, kWidth)
KERNEL(NormForwardApply, kNormForward, kSegments, norm_forward_apply, T, kWidth)
TILE_KERNEL(NormStackRegisters, kNormForward, kRegisters, norm_stack_registers)
TILE_KERNEL(
    AddNormForwardRegisters, kAddNormForward, kRegisters, norm_forward_registers, true, kThreads)
TILE_KERNEL(AddNormForwardCluster, kAddNormForward, kCluster, norm_forward_cluster, true)
TILE_KERNEL(
    NormBackwardRegisters, kNormBackward, kRegisters, norm_backward_registers, false, kThreads)
TILE_KERNEL(NormBackwardCluster, kNormBackward, kCluster, norm_backward_cluster, false)
TILE_KERNEL(NormBackwardSegments, kNormBackward, kSegments, norm_backward_segments, false)
// Its segments are those of the forward pass.
KERNEL(NormBackwardRowPartials, kNormForward, kSegments, norm_backward_row_partials, T, kWidth)
TILE_KERNEL(NormStackBackwardRegisters, kNormBackward, kRegisters, norm_stack_backward_registers)
TILE_KERNEL(
    AddNormBackwardRegisters, kAddNormBackward, kRegisters, norm_backward_registers, true, kThreads)
TILE_KERNEL(AddNormBackwardCluster, kAddNormBackward, kCluster, norm_backward_cluster, true)
TILE_KERNEL(AddNormBackwardSegments, kAddNormBackward, kSegments, norm_backward_segments, true)
ACCUMULATOR_KERNEL(norm_backward_finish_of, norm_backward_finish)
FLOAT_KERNEL(norm_stack_backward_finish_of, norm_stack_backward_finish)
KERNEL(SpatialNormForwardStrip, kSpatial, kSpatial, spatial_norm_forward, T, kWidth)
KERNEL(SpatialNormBackwardStrip, kSpatial, kSpatial, spatial_norm_backward, T, kWidth)
KERNEL(SpatialNormChannelSums, kSpatial, kSegments, spatial_norm_channel_sums, T, kWidth)

// Launches the kernel that adds up the partials of all partitions, for `tensors` tensors with
// `cols` columns each.
template <class Args>
Status launch_finish(
    void (*kernel)(Args, int64_t), const Args& args, int64_t tensors, int64_t cols,
    int64_t partitions, Stream stream) {
  const int32_t block_cols = finish_cols(cols, device::multiprocessors());
  return device::launch_behind(
      kernel, tensors * ceil_div(cols, block_cols), dim3(block_cols, device::kWarpLanes), stream,
      args, partitions);
}

}  // namespace fusedops::cuda
