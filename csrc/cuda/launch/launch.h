// This is the interface of the kernels to the rest of the library. It includes no CUDA header.
//
// launch() and query_capture() return a cudaError_t, 0 for success; `stream` is a cudaStream_t of
// the current device. The arguments have at least one row and one column.
// libfusedops_kernels_cuda exports these functions.
#pragma once

#include "args.h"

#pragma GCC visibility push(default)
namespace fusedops::cuda {

#define LAUNCH(Args) int launch(const Args& args, void* stream);
#include "launches.def"
#undef LAUNCH

// Sets `is_captured` to whether launches on the stream are recorded to a CUDA graph. Nothing may
// wait for the device meanwhile.
int query_capture(void* stream, bool& is_captured);

// Returns the bytes that args.workspace must have. The workspace may still be null in this call.
int64_t workspace_bytes(const SoftmaxForward& args);
int64_t workspace_bytes(const SoftmaxBackward& args);
int64_t workspace_bytes(const SoftmaxStatistics& args);
int64_t workspace_bytes(const CrossEntropyForward& args);
int64_t workspace_bytes(const CrossEntropyBackward& args);
int64_t workspace_bytes(const NormForward& args);
int64_t workspace_bytes(const NormBackward& args);
int64_t workspace_bytes(const SpatialNormBackward& args);
// Returns the bytes that stack.each.workspace must have; the tensors take turns with it.
int64_t workspace_bytes(const SoftmaxStack& stack);
int64_t workspace_bytes(const NormStack& stack);
// Returns how many bytes the workspace of each tensor must have; stack.workspace_bytes may not be
// smaller. Each tensor of this stack has a workspace of its own.
int64_t workspace_bytes(const NormStackBackward& stack);

}  // namespace fusedops::cuda
#pragma GCC visibility pop
