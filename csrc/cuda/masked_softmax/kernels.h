// Lists the kernels of masked softmax for find_kernel().
#pragma once

#include "cuda/launch/kernels.h"
#include "cuda/masked_softmax/rows.h"
#include "cuda/masked_softmax/unaligned.h"

namespace fusedops::cuda {

TILE_KERNEL(
    MaskedForwardNoTerms, kMaskedForward, kRegisters, masked_softmax_forward_registers, kNoTerms,
    kThreads)
TILE_KERNEL(
    MaskedForwardCausal, kMaskedForward, kRegisters, masked_softmax_forward_registers, kCausalTerm,
    kThreads)
TILE_KERNEL(
    MaskedForwardBool, kMaskedForward, kRegisters, masked_softmax_forward_registers, kBoolTerm,
    kThreads)
TILE_KERNEL(
    MaskedForwardNumbers, kMaskedForward, kRegisters, masked_softmax_forward_registers,
    kNumbersTerm, kThreads)
TILE_KERNEL(
    MaskedForwardAll, kAnyMasked, kRegisters, masked_softmax_forward_registers, kAllTerms, kThreads)
TILE_KERNEL(
    MaskedForwardCapped, kAnyMasked, kRegisters, masked_softmax_forward_registers, kCappedTerms,
    kThreads)
TILE_KERNEL(MaskedForwardCluster, kAnyMasked, kCluster, masked_softmax_forward_cluster)
KERNEL(MaskedForwardLooped, kAnyMasked, kLooped, masked_softmax_forward_looped, T, kWidth)
TILE_KERNEL(
    MaskedForwardUnaligned, kPlainMasked, kRegisters, masked_softmax_forward_unaligned, kThreads)
TILE_KERNEL(
    MaskedBackwardNoTerms, kMaskedBackward, kRegisters, masked_softmax_backward_registers, kNoTerms)
TILE_KERNEL(
    MaskedBackwardCausal, kMaskedBackward, kRegisters, masked_softmax_backward_registers,
    kCausalTerm)
TILE_KERNEL(
    MaskedBackwardBool, kMaskedBackward, kRegisters, masked_softmax_backward_registers, kBoolTerm)
TILE_KERNEL(MaskedBackwardAll, kAnyMasked, kRegisters, masked_softmax_backward_registers, kAllTerms)
TILE_KERNEL(MaskedBackwardCluster, kAnyMasked, kCluster, masked_softmax_backward_cluster)
KERNEL(MaskedBackwardLooped, kAnyMasked, kLooped, masked_softmax_backward_looped, T, kWidth)
TILE_KERNEL(
    MaskedBackwardUnaligned, kPlainMasked, kRegisters, masked_softmax_backward_unaligned, kThreads)

}  // namespace fusedops::cuda
