// The kernels of masked softmax, for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/masked_softmax/rows.h"
#include "cuda/masked_softmax/unaligned.h"

namespace fusedops::cuda {

KERNEL(
    MaskedForwardNoTerms, kSingle, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kNoTerms, kThreads)
KERNEL(
    MaskedForwardCausal, kSingle, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kCausalTerm, kThreads)
KERNEL(
    MaskedForwardBool, kSingle, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kBoolTerm, kThreads)
KERNEL(
    MaskedForwardNumbers, kSingle, RowKernel<ForwardArgs>, kMaskedForward, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kNumbersTerm, kThreads)
KERNEL(
    MaskedForwardAll, kSingle, RowKernel<ForwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kAllTerms, kThreads)
KERNEL(
    MaskedForwardCapped, kSingle, RowKernel<ForwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_forward_registers, T, kWidth, kVectors, kCappedTerms, kThreads)
KERNEL(
    MaskedForwardCluster, kSingle, RowKernel<ForwardArgs>, kAnyMasked, kCluster,
    masked_softmax_forward_cluster, T, kWidth, kVectors)
KERNEL(
    MaskedForwardLooped, kSingle, RowKernel<ForwardArgs>, kAnyMasked, kLooped,
    masked_softmax_forward_looped, T, kWidth)
KERNEL(
    MaskedForwardUnaligned, kSingle, RowKernel<ForwardArgs>, kPlainMasked, kRegisters,
    masked_softmax_forward_unaligned, T, kWidth, kVectors, kThreads)
KERNEL(
    MaskedBackwardNoTerms, kSingle, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kNoTerms)
KERNEL(
    MaskedBackwardCausal, kSingle, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kCausalTerm)
KERNEL(
    MaskedBackwardBool, kSingle, RowKernel<BackwardArgs>, kMaskedBackward, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kBoolTerm)
KERNEL(
    MaskedBackwardAll, kSingle, RowKernel<BackwardArgs>, kAnyMasked, kRegisters,
    masked_softmax_backward_registers, T, kWidth, kVectors, kAllTerms)
KERNEL(
    MaskedBackwardCluster, kSingle, RowKernel<BackwardArgs>, kAnyMasked, kCluster,
    masked_softmax_backward_cluster, T, kWidth, kVectors)
KERNEL(
    MaskedBackwardLooped, kSingle, RowKernel<BackwardArgs>, kAnyMasked, kLooped,
    masked_softmax_backward_looped, T, kWidth)
KERNEL(
    MaskedBackwardUnaligned, kSingle, RowKernel<BackwardArgs>, kPlainMasked, kRegisters,
    masked_softmax_backward_unaligned, T, kWidth, kVectors, kThreads)

}  // namespace fusedops::cuda
