// Which instruction set the CPU kernels run with.
#pragma once

#include "fusedops/cpu/dispatch_table.h"

namespace fusedops {

// The widest set that this machine has, this build holds and FUSEDOPS_CPU_ISA (avx512, avx2 or
// default) allows. Chosen once; raises std::runtime_error for another value of the variable.
const CpuKernels& cpu_kernels();

}  // namespace fusedops
