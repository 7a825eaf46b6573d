// The kernels as the rest of the library sees them: no CUDA header needed.
//
// A status is a cudaError_t, 0 for success; a stream is a cudaStream_t of the current device. There
// is at least one row and one column.
#pragma once

#include "fusedops/args.h"

namespace fusedops::cuda {

int launch(const SoftmaxForward& args, void* stream);
int launch(const SoftmaxBackward& args, void* stream);
int launch(const SoftmaxStatistics& args, void* stream);
int launch(const SoftmaxApply& args, void* stream);
int launch(const SpatialSoftmaxForward& args, void* stream);
int launch(const SpatialSoftmaxBackward& args, void* stream);
int launch(const MaskedSoftmaxForward& args, void* stream);
int launch(const MaskedSoftmaxBackward& args, void* stream);
int launch(const NormForward& args, void* stream);
int launch(const NormBackward& args, void* stream);
int launch(const SoftmaxStack& stack, void* stream);
int launch(const NormStack& stack, void* stream);
int launch(const NormStackBackward& stack, void* stream);

// What args.workspace must hold; looks at everything but the workspace.
int64_t workspace_bytes(const SoftmaxForward& args);
int64_t workspace_bytes(const SoftmaxBackward& args);
int64_t workspace_bytes(const SoftmaxStatistics& args);
int64_t workspace_bytes(const NormForward& args);
int64_t workspace_bytes(const NormBackward& args);
// What each.workspace must hold: tensors that need it take turns.
int64_t workspace_bytes(const SoftmaxStack& stack);
int64_t workspace_bytes(const NormStack& stack);
// The least stack.workspace_bytes, which is each tensor's share of the workspace.
int64_t workspace_bytes(const NormStackBackward& stack);

}  // namespace fusedops::cuda
