// Chooses the instruction set of the CPU kernels.
#pragma once

#include "cpu/dispatch/table.h"

namespace fusedops {

// The widest instruction set that this machine has, this build contains and FUSEDOPS_CPU_ISA allows
// (avx512, avx2 or default; on ARM bf16 or default). It is chosen once. Raises std::runtime_error
// if the variable has another value. libfusedops_kernels exports this function.
__attribute__((visibility("default"))) const CpuKernels& cpu_kernels();

}  // namespace fusedops
