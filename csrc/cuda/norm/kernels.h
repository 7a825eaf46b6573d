// The kernels of the norms of norm_kinds.def, for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/norm/backward.h"
#include "cuda/norm/forward.h"
#include "cuda/norm/spatial.h"

namespace fusedops::cuda {

using NormSegmentKernel = void (*)(NormBackward, int64_t, Segments, RowPartials);

// The bool among the template arguments is kAdd (forward.h, backward.h).
KERNEL(
    NormForwardRegisters, kForward, RowKernel<NormForward>, kNormForward, kRegisters,
    norm_forward_registers, In, kWidth, kVectors, false, kThreads)
KERNEL(
    NormForwardCluster, kForward, RowKernel<NormForward>, kNormForward, kCluster,
    norm_forward_cluster, In, kWidth, kVectors, false)
KERNEL(
    NormForwardPartials, kForward, SegmentKernel<NormForward>, kNormForward, kSegments,
    norm_forward_partials, In, kWidth, false)
KERNEL(
    NormForwardApply, kForward, SegmentKernel<NormForward>, kNormForward, kSegments,
    norm_forward_apply, In, kWidth, false)
KERNEL(
    NormStackRegisters, kStack, Kernel<NormStack>, kNormForward, kRegisters, norm_stack_registers,
    In, kWidth, kVectors)
KERNEL(
    AddNormForwardRegisters, kForward, RowKernel<NormForward>, kAddNormForward, kRegisters,
    norm_forward_registers, In, kWidth, kVectors, true, kThreads)
KERNEL(
    AddNormForwardCluster, kForward, RowKernel<NormForward>, kAddNormForward, kCluster,
    norm_forward_cluster, In, kWidth, kVectors, true)
KERNEL(
    AddNormForwardPartials, kForward, SegmentKernel<NormForward>, kAddNormForward, kSegments,
    norm_forward_partials, In, kWidth, true)
KERNEL(
    AddNormForwardApply, kForward, SegmentKernel<NormForward>, kAddNormForward, kSegments,
    norm_forward_apply, In, kWidth, true)
KERNEL(
    NormBackwardRegisters, kForward, Kernel<NormBackward>, kNormBackward, kRegisters,
    norm_backward_registers, In, kWidth, kVectors, false, kThreads)
KERNEL(
    NormBackwardCluster, kForward, Kernel<NormBackward>, kNormBackward, kCluster,
    norm_backward_cluster, In, kWidth, kVectors, false)
KERNEL(
    NormBackwardSegments, kForward, NormSegmentKernel, kNormBackward, kSegments,
    norm_backward_segments, In, kWidth, kVectors, false)
KERNEL(
    NormBackwardRowPartials, kForward, SegmentKernel<NormBackward>, kNormBackward, kSegments,
    norm_backward_row_partials, In, kWidth)
KERNEL(
    NormStackBackwardRegisters, kStack, Kernel<NormStackBackward>, kNormBackward, kRegisters,
    norm_stack_backward_registers, In, kWidth, kVectors)
KERNEL(
    AddNormBackwardRegisters, kForward, Kernel<NormBackward>, kAddNormBackward, kRegisters,
    norm_backward_registers, In, kWidth, kVectors, true, kThreads)
KERNEL(
    AddNormBackwardCluster, kForward, Kernel<NormBackward>, kAddNormBackward, kCluster,
    norm_backward_cluster, In, kWidth, kVectors, true)
KERNEL(
    AddNormBackwardSegments, kForward, NormSegmentKernel, kAddNormBackward, kSegments,
    norm_backward_segments, In, kWidth, kVectors, true)
KERNEL(
    AddNormBackwardRowPartials, kForward, SegmentKernel<NormBackward>, kAddNormBackward, kSegments,
    norm_backward_row_partials, In, kWidth)
ACCUMULATOR_KERNEL(norm_backward_finish_of, norm_backward_finish)
FLOAT_KERNEL(norm_stack_backward_finish_of, norm_stack_backward_finish)
KERNEL(
    SpatialNormForwardStrip, kForward, RowKernel<SpatialNormForward>, kSpatial, kSpatial,
    spatial_norm_forward, In, kWidth, kStaging)
KERNEL(
    SpatialNormBackwardStrip, kForward, RowKernel<SpatialNormBackward>, kSpatial, kSpatial,
    spatial_norm_backward, In, kWidth, kStaging)
KERNEL(
    SpatialNormChannelSums, kForward, RowKernel<SpatialNormBackward>, kSpatial, kSegments,
    spatial_norm_channel_sums, In, kWidth)

}  // namespace fusedops::cuda
