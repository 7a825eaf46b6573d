// Fills the table of an instruction set.
//
// The dispatch.cpp of each family defines the functions, so that the families compile in parallel.
// Every source is compiled once per instruction set, with FUSEDOPS_CPU_ISA as the namespace and
// FUSEDOPS_CPU_ISA_NAME as the name that the environment variable FUSEDOPS_CPU_ISA uses.
#include "cpu/dispatch/table.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

#define KERNEL(name, parameters) void name parameters;
#include "cpu/dispatch/kernels.def"
#undef KERNEL

// The table is constant-initialized, so that no instruction set's code runs before a set is chosen.
constexpr CpuKernels kernels = {
    FUSEDOPS_CPU_ISA_NAME,
#define KERNEL(name, parameters) name,
#include "cpu/dispatch/kernels.def"
#undef KERNEL
};

}  // namespace fusedops::FUSEDOPS_CPU_ISA
