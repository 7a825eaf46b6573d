#include "cuda/launcher.h"
#include "ops/register_kernels.h"

FUSEDOPS_REGISTER(CUDA, fusedops::CudaLauncher)
