// Counts the launches of clusters that devices have refused. Their rows get another plan, and the
// counts are all that tells so. libfusedops_kernels_cuda exports fusedops_cuda_refusals(), with
// which `python -m fusedops env` reads them.
#pragma once

#include <cstdint>

namespace fusedops::cuda {

// Counts a launch that the current device has refused with `status`, a cudaError_t. `launch` is its
// name in launches.def.
void count_refusal(const char* launch, int32_t blocks, int status);

}  // namespace fusedops::cuda
