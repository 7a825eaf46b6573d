#include "ops/register.h"
#include "cuda/backend.h"

FUSEDOPS_REGISTER(CUDA, fusedops::CudaBackend)
