// Declares the functions of kernels.def in the namespace of an instruction set.
//
// The sources in csrc/cpu/dispatch define them, one source per family of kernels, so that the
// families compile in parallel. Every source is compiled once per instruction set, with
// FUSEDOPS_CPU_ISA as the namespace and FUSEDOPS_CPU_ISA_NAME as the name that the environment
// variable FUSEDOPS_CPU_ISA uses.
#pragma once

#include "cpu/dispatch/table.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

#define KERNEL(name, parameters) void name parameters;
#include "cpu/dispatch/kernels.def"
#undef KERNEL

}  // namespace fusedops::FUSEDOPS_CPU_ISA
