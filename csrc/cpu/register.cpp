#include "cpu/backend.h"
#include "ops/register.h"

FUSEDOPS_REGISTER(CPU, fusedops::CpuBackend)
