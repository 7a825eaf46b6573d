// Lists the kernels of softmax for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/softmax/rows.h"
#include "cuda/softmax/spatial.h"
#include "cuda/softmax/statistics.h"

namespace fusedops::cuda {

using SoftmaxApplyKernel = void (*)(SoftmaxForward, int64_t, Segments, RowStatistics);

KERNEL(
    SoftmaxForwardRegisters, kTensor, RowKernel<SoftmaxForward>, kSoftmaxForward, kRegisters,
    softmax_forward_registers, T, kWidth, kVectors, kThreads)
KERNEL(
    SoftmaxForwardCluster, kTensor, RowKernel<SoftmaxForward>, kSoftmaxForward, kCluster,
    softmax_forward_cluster, T, kWidth, kVectors)
KERNEL(
    SoftmaxForwardPartials, kTensor, SegmentKernel<SoftmaxForward>, kSoftmaxForward, kSegments,
    softmax_forward_partials, T, kWidth)
KERNEL(
    SoftmaxForwardApply, kTensor, SoftmaxApplyKernel, kSoftmaxForward, kSegments,
    softmax_forward_apply, T, kWidth)
KERNEL(
    SoftmaxStackRegisters, kStack, Kernel<SoftmaxStack>, kSoftmaxForward, kRegisters,
    softmax_stack_registers, T, kWidth, kVectors)
KERNEL(
    SoftmaxBackwardRegisters, kTensor, RowKernel<SoftmaxBackward>, kSoftmaxBackward, kRegisters,
    softmax_backward_registers, T, kWidth, kVectors, kThreads)
KERNEL(
    SoftmaxBackwardCluster, kTensor, RowKernel<SoftmaxBackward>, kSoftmaxBackward, kCluster,
    softmax_backward_cluster, T, kWidth, kVectors)
KERNEL(
    SoftmaxBackwardPartials, kTensor, SegmentKernel<SoftmaxBackward>, kSoftmaxBackward, kSegments,
    softmax_backward_partials, T, kWidth)
KERNEL(
    SoftmaxBackwardApply, kTensor, SegmentKernel<SoftmaxBackward>, kSoftmaxBackward, kSegments,
    softmax_backward_apply, T, kWidth)
ACCUMULATOR_KERNEL(statistics_merge_of, softmax_statistics_merge)
KERNEL(
    SpatialSoftmaxForwardStrip, kTensor, StripKernel<SpatialSoftmaxForward>, kSpatial, kSpatial,
    spatial_softmax_forward, T, kWidth)
KERNEL(
    SpatialSoftmaxBackwardStrip, kTensor, StripKernel<SpatialSoftmaxBackward>, kSpatial, kSpatial,
    spatial_softmax_backward, T, kWidth)

}  // namespace fusedops::cuda
