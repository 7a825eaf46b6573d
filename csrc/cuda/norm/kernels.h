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

using NormSegmentKernel = void (*)(NormBackward, int64_t, Segments, RowPartials);

// The bool among the template arguments is kAdd (forward.h, backward.h).
KERNEL(
    NormForwardRegisters, kTensor, RowKernel<NormForward>, kNormForward, kRegisters,
    norm_forward_registers, T, kWidth, kVectors, false, kThreads)
KERNEL(
    NormForwardCluster, kTensor, RowKernel<NormForward>, kNormForward, kCluster,
    norm_forward_cluster, T, kWidth, kVectors, false)
KERNEL(
    NormForwardPartials, kTensor, SegmentKernel<NormForward>, kNormForward, kSegments,
    norm_forward_partials, T, kWidth)
KERNEL(
    NormForwardApply, kTensor, SegmentKernel<NormForward>, kNormForward, kSegments,
    norm_forward_apply, T, kWidth)
KERNEL(
    NormStackRegisters, kStack, Kernel<NormStack>, kNormForward, kRegisters, norm_stack_registers,
    T, kWidth, kVectors)
KERNEL(
    AddNormForwardRegisters, kTensor, RowKernel<NormForward>, kAddNormForward, kRegisters,
    norm_forward_registers, T, kWidth, kVectors, true, kThreads)
KERNEL(
    AddNormForwardCluster, kTensor, RowKernel<NormForward>, kAddNormForward, kCluster,
    norm_forward_cluster, T, kWidth, kVectors, true)
KERNEL(
    NormBackwardRegisters, kTensor, Kernel<NormBackward>, kNormBackward, kRegisters,
    norm_backward_registers, T, kWidth, kVectors, false, kThreads)
KERNEL(
    NormBackwardCluster, kTensor, Kernel<NormBackward>, kNormBackward, kCluster,
    norm_backward_cluster, T, kWidth, kVectors, false)
KERNEL(
    NormBackwardSegments, kTensor, NormSegmentKernel, kNormBackward, kSegments,
    norm_backward_segments, T, kWidth, kVectors, false)
KERNEL(
    NormBackwardRowPartials, kTensor, SegmentKernel<NormBackward>, kNormBackward, kSegments,
    norm_backward_row_partials, T, kWidth)
KERNEL(
    NormStackBackwardRegisters, kStack, Kernel<NormStackBackward>, kNormBackward, kRegisters,
    norm_stack_backward_registers, T, kWidth, kVectors)
KERNEL(
    AddNormBackwardRegisters, kTensor, Kernel<NormBackward>, kAddNormBackward, kRegisters,
    norm_backward_registers, T, kWidth, kVectors, true, kThreads)
KERNEL(
    AddNormBackwardCluster, kTensor, Kernel<NormBackward>, kAddNormBackward, kCluster,
    norm_backward_cluster, T, kWidth, kVectors, true)
KERNEL(
    AddNormBackwardSegments, kTensor, NormSegmentKernel, kAddNormBackward, kSegments,
    norm_backward_segments, T, kWidth, kVectors, true)
KERNEL(
    AddNormBackwardRowPartials, kTensor, SegmentKernel<NormBackward>, kAddNormBackward, kSegments,
    norm_backward_row_partials, T, kWidth)
ACCUMULATOR_KERNEL(norm_backward_finish_of, norm_backward_finish)
FLOAT_KERNEL(norm_stack_backward_finish_of, norm_stack_backward_finish)
KERNEL(
    SpatialNormForwardStrip, kTensor, StripKernel<SpatialNormForward>, kSpatial, kSpatial,
    spatial_norm_forward, T, kWidth)
KERNEL(
    SpatialNormBackwardStrip, kTensor, StripKernel<SpatialNormBackward>, kSpatial, kSpatial,
    spatial_norm_backward, T, kWidth)
KERNEL(
    SpatialNormChannelSums, kTensor, RowKernel<SpatialNormBackward>, kSpatial, kSegments,
    spatial_norm_channel_sums, T, kWidth)

}  // namespace fusedops::cuda
