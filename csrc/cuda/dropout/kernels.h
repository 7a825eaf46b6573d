// Lists the kernel of dropout for find_kernel().
#pragma once

#include "cuda/dropout/rows.h"
#include "cuda/launch/kernels.h"

namespace fusedops::cuda {

KERNEL(DropoutOfRows, kSpatial, kSpatial, dropout_forward, T)

}  // namespace fusedops::cuda
