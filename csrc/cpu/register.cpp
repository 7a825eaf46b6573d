#include "ops/register.h"
#include "cpu/backend.h"

FUSEDOPS_REGISTER(CPU, fusedops::CpuBackend)
