#include "cpu/dispatch/isa_functions.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

extern const CpuKernels kernels;
// Constant-initialized, so that no code compiled for an instruction set runs before that set is
// chosen.
constexpr CpuKernels kernels = {
    FUSEDOPS_CPU_ISA_NAME,
#define KERNEL(name, parameters) name,
#include "cpu/dispatch/kernels.def"
#undef KERNEL
};

}  // namespace fusedops::FUSEDOPS_CPU_ISA
