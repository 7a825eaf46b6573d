// Lists the kernel of the sums over rows for find_kernel().
#pragma once

#include "cuda/column_sums/rows.h"
#include "cuda/launch/kernels.h"

namespace fusedops::cuda {

KERNEL(ColumnSumsOfRows, kSpatial, kSpatial, column_sums, T)

}  // namespace fusedops::cuda
