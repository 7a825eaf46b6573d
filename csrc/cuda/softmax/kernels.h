// The kernels of softmax, for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/softmax/rows.h"
#include "cuda/softmax/spatial.h"
#include "cuda/softmax/statistics.h"

namespace fusedops::cuda {

KERNEL(
    SoftmaxForwardRegisters, kForward, RowKernel<SoftmaxForward>, kSoftmaxForward, kRegisters,
    softmax_forward_registers, In, Out, kWidth, kVectors, kThreads)
KERNEL(
    SoftmaxForwardCluster, kForward, RowKernel<SoftmaxForward>, kSoftmaxForward, kCluster,
    softmax_forward_cluster, In, Out, kWidth, kVectors)
KERNEL(
    SoftmaxForwardPartials, kForward, SegmentKernel<SoftmaxForward>, kSoftmaxForward, kSegments,
    softmax_forward_partials, In, Out, kWidth)
KERNEL(
    SoftmaxForwardApply, kForward, SegmentKernel<SoftmaxForward>, kSoftmaxForward, kSegments,
    softmax_forward_apply, In, Out, kWidth)
KERNEL(
    SoftmaxStackRegisters, kStack, Kernel<SoftmaxStack>, kSoftmaxForward, kRegisters,
    softmax_stack_registers, In, kWidth, kVectors)
KERNEL(
    SoftmaxBackwardRegisters, kBackward, RowKernel<SoftmaxBackward>, kSoftmaxBackward, kRegisters,
    softmax_backward_registers, In, Out, kWidth, kVectors, kThreads)
KERNEL(
    SoftmaxBackwardCluster, kBackward, RowKernel<SoftmaxBackward>, kSoftmaxBackward, kCluster,
    softmax_backward_cluster, In, Out, kWidth, kVectors)
KERNEL(
    SoftmaxBackwardPartials, kBackward, SegmentKernel<SoftmaxBackward>, kSoftmaxBackward, kSegments,
    softmax_backward_partials, In, Out, kWidth)
KERNEL(
    SoftmaxBackwardApply, kBackward, SegmentKernel<SoftmaxBackward>, kSoftmaxBackward, kSegments,
    softmax_backward_apply, In, Out, kWidth)
KERNEL(
    SoftmaxStatisticsApply, kForward, SegmentKernel<SoftmaxApply>, kSoftmaxForward, kSegments,
    softmax_statistics_apply, In, Out, kWidth)
ACCUMULATOR_KERNEL(statistics_merge_of, softmax_statistics_merge)
KERNEL(
    SpatialSoftmaxForwardStrip, kForward, RowKernel<SpatialSoftmaxForward>, kSpatial, kSpatial,
    spatial_softmax_forward, In, Out, kWidth, kStaging)
KERNEL(
    SpatialSoftmaxBackwardStrip, kBackward, RowKernel<SpatialSoftmaxBackward>, kSpatial, kSpatial,
    spatial_softmax_backward, In, Out, kWidth, kStaging)

}  // namespace fusedops::cuda
