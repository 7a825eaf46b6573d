// The interface of the kernels to the rest of the library; it includes no CUDA header.
//
// The result is a cudaError_t, 0 for success; `stream` is a cudaStream_t of the current device.
// There is at least one row and one column. libfusedops_kernels_cuda exports these functions.
#pragma once

#include "args.h"

#pragma GCC visibility push(default)
namespace fusedops::cuda {

#define LAUNCH(Args) int launch(const Args& args, void* stream);
#include "launches.def"
#undef LAUNCH

// Says whether launches on the stream are recorded to a graph, while which nothing may wait for the
// device.
int query_capture(void* stream, bool& is_captured);

// The bytes that args.workspace must have. It may still be null here.
int64_t workspace_bytes(const SoftmaxForward& args);
int64_t workspace_bytes(const SoftmaxBackward& args);
int64_t workspace_bytes(const SoftmaxStatistics& args);
int64_t workspace_bytes(const CrossEntropyForward& args);
int64_t workspace_bytes(const CrossEntropyBackward& args);
int64_t workspace_bytes(const NormForward& args);
int64_t workspace_bytes(const NormBackward& args);
int64_t workspace_bytes(const SpatialNormBackward& args);
// The bytes that each.workspace must have; the tensors of a stack take turns with it.
int64_t workspace_bytes(const SoftmaxStack& stack);
int64_t workspace_bytes(const NormStack& stack);
// The least stack.workspace_bytes: the tensors of this stack have a workspace each.
int64_t workspace_bytes(const NormStackBackward& stack);

}  // namespace fusedops::cuda
#pragma GCC visibility pop
