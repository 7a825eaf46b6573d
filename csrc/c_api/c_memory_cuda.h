// Declares what the C interface does on a GPU besides launches. libfusedops_kernels_cuda has these
// functions, so that the interface needs no CUDA runtime of its own.
//
// Functions that return int return a cudaError_t, 0 for success; `stream` is a cudaStream_t of the
// current device.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace fusedops::c_api::gpu {

// These functions work in the order of the stream, so that no call waits for the device.
int allocate(void** memory, int64_t bytes, void* stream);
int release(void* memory, void* stream);
int clear(float* values, int64_t count, void* stream);

// These two functions convert element by element. Both arrays may be the same.
int variances_of(const float* rstd, float* variances, int64_t count, void* stream);
int rstd_of(const float* variances, float* rstd, int64_t count, void* stream);

bool is_out_of_memory(int status);
const char* error_text(int status);

}  // namespace fusedops::c_api::gpu
#pragma GCC visibility pop
