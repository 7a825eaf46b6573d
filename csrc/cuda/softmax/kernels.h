// Lists the kernels of softmax for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/softmax/rows.h"
#include "cuda/softmax/spatial.h"
#include "cuda/softmax/statistics.h"

namespace fusedops::cuda {

TILE_KERNEL(
    SoftmaxForwardRegisters, kSoftmaxForward, kRegisters, softmax_forward_registers, kThreads)
TILE_KERNEL(SoftmaxForwardCluster, kSoftmaxForward, kCluster, softmax_forward_cluster)
KERNEL(SoftmaxForwardPartials, kSoftmaxForward, kSegments, softmax_forward_partials, T, kWidth)
KERNEL(SoftmaxForwardApply, kSoftmaxForward, kSegments, softmax_forward_apply, T, kWidth)
TILE_KERNEL(SoftmaxStackRegisters, kSoftmaxForward, kRegisters, softmax_stack_registers)
TILE_KERNEL(
    SoftmaxBackwardRegisters, kSoftmaxBackward, kRegisters, softmax_backward_registers, kThreads)
TILE_KERNEL(SoftmaxBackwardCluster, kSoftmaxBackward, kCluster, softmax_backward_cluster)
KERNEL(SoftmaxBackwardPartials, kSoftmaxBackward, kSegments, softmax_backward_partials, T, kWidth)
KERNEL(SoftmaxBackwardApply, kSoftmaxBackward, kSegments, softmax_backward_apply, T, kWidth)
ACCUMULATOR_KERNEL(statistics_merge_of, softmax_statistics_merge)
KERNEL(SpatialSoftmaxForwardStrip, kSpatial, kSpatial, spatial_softmax_forward, T, kWidth)
KERNEL(SpatialSoftmaxBackwardStrip, kSpatial, kSpatial, spatial_softmax_backward, T, kWidth)

}  // namespace fusedops::cuda
