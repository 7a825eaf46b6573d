// Lists the kernels of masked softmax for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/masked_softmax/rows.h"
#include "cuda/masked_softmax/unaligned.h"

namespace fusedops::cuda {

KERNEL(
    MaskedForwardNoTerms, kTensor, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kNoTerms, kThreads)
KERNEL(
    MaskedForwardCausal, kTensor, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kCausalTerm, kThreads)
KERNEL(
    MaskedForwardBool, kTensor, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kBoolTerm, kThreads)
KERNEL(
    MaskedForwardNumbers, kTensor, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kNumbersTerm, kThreads)
KERNEL(
    MaskedForwardAll, kTensor, RowKernel<ForwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kAllTerms, kThreads)
KERNEL(
    MaskedForwardCapped, kTensor, RowKernel<ForwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kCappedTerms, kThreads)
KERNEL(
    MaskedForwardCluster, kTensor, RowKernel<ForwardArgs>, kAnyMasked, kCluster,
    masked_softmax_forward_cluster, T, kWidth, kVectors)
KERNEL(
    MaskedForwardLooped, kTensor, RowKernel<ForwardArgs>, kAnyMasked, kLooped,
    masked_softmax_forward_looped, T, kWidth)
KERNEL(
    MaskedForwardUnaligned, kTensor, RowKernel<ForwardArgs>, kPlainMasked, kRegisters,
    masked_softmax_forward_unaligned, T, kWidth, kVectors, kThreads)
KERNEL(
    MaskedBackwardNoTerms, kTensor, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kNoTerms)
KERNEL(
    MaskedBackwardCausal, kTensor, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kCausalTerm)
KERNEL(
    MaskedBackwardBool, kTensor, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kBoolTerm)
KERNEL(
    MaskedBackwardAll, kTensor, RowKernel<BackwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kAllTerms)
KERNEL(
    MaskedBackwardCluster, kTensor, RowKernel<BackwardArgs>, kAnyMasked, kCluster,
    masked_softmax_backward_cluster, T, kWidth, kVectors)
KERNEL(
    MaskedBackwardLooped, kTensor, RowKernel<BackwardArgs>, kAnyMasked, kLooped,
    masked_softmax_backward_looped, T, kWidth)
KERNEL(
    MaskedBackwardUnaligned, kTensor, RowKernel<BackwardArgs>, kPlainMasked, kRegisters,
    masked_softmax_backward_unaligned, T, kWidth, kVectors, kThreads)

}  // namespace fusedops::cuda
