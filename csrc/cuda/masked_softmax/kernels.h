// The kernels of masked softmax, for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/masked_softmax/rows.h"
#include "cuda/masked_softmax/unaligned.h"

namespace fusedops::cuda {

KERNEL(
    MaskedForwardNoTerms, kForward, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, In, Out, kWidth, kVectors, kNoTerms, kThreads)
KERNEL(
    MaskedForwardCausal, kForward, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, In, Out, kWidth, kVectors, kCausalTerm, kThreads)
KERNEL(
    MaskedForwardBool, kForward, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, In, Out, kWidth, kVectors, kBoolTerm, kThreads)
KERNEL(
    MaskedForwardNumbers, kForward, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, In, Out, kWidth, kVectors, kNumbersTerm, kThreads)
KERNEL(
    MaskedForwardAll, kForward, RowKernel<ForwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_forward_registers, In, Out, kWidth, kVectors, kAllTerms, kThreads)
KERNEL(
    MaskedForwardCapped, kForward, RowKernel<ForwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_forward_registers, In, Out, kWidth, kVectors, kCappedTerms, kThreads)
KERNEL(
    MaskedForwardCluster, kForward, RowKernel<ForwardArgs>, kAnyMasked, kCluster,
    masked_softmax_forward_cluster, In, Out, kWidth, kVectors)
KERNEL(
    MaskedForwardLooped, kForward, RowKernel<ForwardArgs>, kAnyMasked, kLooped,
    masked_softmax_forward_looped, In, Out, kWidth)
KERNEL(
    MaskedForwardUnaligned, kForward, RowKernel<ForwardArgs>, kPlainMasked, kRegisters,
    masked_softmax_forward_unaligned, In, Out, kWidth, kVectors, kThreads)
KERNEL(
    MaskedBackwardNoTerms, kBackward, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, In, Out, kWidth, kVectors, kNoTerms)
KERNEL(
    MaskedBackwardCausal, kBackward, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, In, Out, kWidth, kVectors, kCausalTerm)
KERNEL(
    MaskedBackwardBool, kBackward, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, In, Out, kWidth, kVectors, kBoolTerm)
KERNEL(
    MaskedBackwardAll, kBackward, RowKernel<BackwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_backward_registers, In, Out, kWidth, kVectors, kAllTerms)
KERNEL(
    MaskedBackwardCluster, kBackward, RowKernel<BackwardArgs>, kAnyMasked, kCluster,
    masked_softmax_backward_cluster, In, Out, kWidth, kVectors)
KERNEL(
    MaskedBackwardLooped, kBackward, RowKernel<BackwardArgs>, kAnyMasked, kLooped,
    masked_softmax_backward_looped, In, Out, kWidth)
KERNEL(
    MaskedBackwardUnaligned, kBackward, RowKernel<BackwardArgs>, kPlainMasked, kRegisters,
    masked_softmax_backward_unaligned, In, Out, kWidth, kVectors, kThreads)

}  // namespace fusedops::cuda
