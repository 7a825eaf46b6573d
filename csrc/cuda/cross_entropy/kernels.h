// Lists the kernels of cross_entropy for find_kernel().
#pragma once

#include "cuda/cross_entropy/backward.h"
#include "cuda/cross_entropy/forward.h"
#include "cuda/launch/kernels.h"

namespace fusedops::cuda {

KERNEL(CrossEntropyForwardRows, kCrossEntropy, kLooped, cross_entropy_forward, T, kWidth)
KERNEL(CrossEntropyBackwardRows, kCrossEntropy, kLooped, cross_entropy_backward, T, kWidth)
ACCUMULATOR_KERNEL(cross_entropy_merge_of, cross_entropy_merge)

}  // namespace fusedops::cuda
