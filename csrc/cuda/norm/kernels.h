// The kernels of the norms of norm_kinds.def, for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/norm/backward.h"
#include "cuda/norm/forward.h"
#include "cuda/norm/spatial.h"

namespace fusedops::cuda {

// Whether kernels read this weight or bias beside rows of `dtype`.
inline bool fits(const ConstColumns& parameter, DType dtype) {
  return parameter.data == nullptr || is_same_or_wider(parameter.dtype, dtype);
}

using NormSegmentKernel = void (*)(NormBackward, int64_t, Segments, RowPartials);

// The bool among the template arguments is kAdd (forward.h, backward.h).
KERNEL(
    NormForwardRegisters, kSingle, RowKernel<NormForward>, kNormForward, kRegisters,
    norm_forward_registers, T, kWidth, kVectors, false, kThreads)
KERNEL(
    NormForwardCluster, kSingle, RowKernel<NormForward>, kNormForward, kCluster,
    norm_forward_cluster, T, kWidth, kVectors, false)
KERNEL(
    NormForwardPartials, kSingle, SegmentKernel<NormForward>, kNormForward, kSegments,
    norm_forward_partials, T, kWidth)
KERNEL(
    NormForwardApply, kSingle, SegmentKernel<NormForward>, kNormForward, kSegments,
    norm_forward_apply, T, kWidth)
KERNEL(
    NormStackRegisters, kStack, Kernel<NormStack>, kNormForward, kRegisters, norm_stack_registers,
    T, kWidth, kVectors)
KERNEL(
    AddNormForwardRegisters, kSingle, RowKernel<NormForward>, kAddNormForward, kRegisters,
    norm_forward_registers, T, kWidth, kVectors, true, kThreads)
KERNEL(
    AddNormForwardCluster, kSingle, RowKernel<NormForward>, kAddNormForward, kCluster,
    norm_forward_cluster, T, kWidth, kVectors, true)
KERNEL(
    NormBackwardRegisters, kSingle, Kernel<NormBackward>, kNormBackward, kRegisters,
    norm_backward_registers, T, kWidth, kVectors, false, kThreads)
KERNEL(
    NormBackwardCluster, kSingle, Kernel<NormBackward>, kNormBackward, kCluster,
    norm_backward_cluster, T, kWidth, kVectors, false)
KERNEL(
    NormBackwardSegments, kSingle, NormSegmentKernel, kNormBackward, kSegments,
    norm_backward_segments, T, kWidth, kVectors, false)
KERNEL(
    NormBackwardRowPartials, kSingle, SegmentKernel<NormBackward>, kNormBackward, kSegments,
    norm_backward_row_partials, T, kWidth)
KERNEL(
    NormStackBackwardRegisters, kStack, Kernel<NormStackBackward>, kNormBackward, kRegisters,
    norm_stack_backward_registers, T, kWidth, kVectors)
KERNEL(
    AddNormBackwardRegisters, kSingle, Kernel<NormBackward>, kAddNormBackward, kRegisters,
    norm_backward_registers, T, kWidth, kVectors, true, kThreads)
KERNEL(
    AddNormBackwardCluster, kSingle, Kernel<NormBackward>, kAddNormBackward, kCluster,
    norm_backward_cluster, T, kWidth, kVectors, true)
KERNEL(
    AddNormBackwardSegments, kSingle, NormSegmentKernel, kAddNormBackward, kSegments,
    norm_backward_segments, T, kWidth, kVectors, true)
KERNEL(
    AddNormBackwardRowPartials, kSingle, SegmentKernel<NormBackward>, kAddNormBackward, kSegments,
    norm_backward_row_partials, T, kWidth)
ACCUMULATOR_KERNEL(norm_backward_finish_of, norm_backward_finish)
FLOAT_KERNEL(norm_stack_backward_finish_of, norm_stack_backward_finish)
KERNEL(
    SpatialNormForwardStrip, kSingle, StripKernel<SpatialNormForward>, kSpatial, kSpatial,
    spatial_norm_forward, T, kWidth)
KERNEL(
    SpatialNormBackwardStrip, kSingle, StripKernel<SpatialNormBackward>, kSpatial, kSpatial,
    spatial_norm_backward, T, kWidth)
KERNEL(
    SpatialNormChannelSums, kSingle, RowKernel<SpatialNormBackward>, kSpatial, kSegments,
    spatial_norm_channel_sums, T, kWidth)

}  // namespace fusedops::cuda
