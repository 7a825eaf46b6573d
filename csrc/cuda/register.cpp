#include "cuda/backend.h"
#include "ops/register.h"

FUSEDOPS_REGISTER(CUDA, fusedops::CudaBackend)
