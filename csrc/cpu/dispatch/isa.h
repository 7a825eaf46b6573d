// Chooses the instruction set of the CPU kernels.
#pragma once

#include "cpu/dispatch/table.h"

namespace fusedops {

// Returns the kernels of the widest instruction set that this machine has, this build contains and
// FUSEDOPS_CPU_ISA allows (avx512_bf16, avx512, avx2 or default; on ARM bf16 or default). The
// choice is made once. Throws std::runtime_error if the variable has another value, or if there is
// no such set. libfusedops_kernels exports this function.
__attribute__((visibility("default"))) const CpuKernels& cpu_kernels();

// Whether the kernels for AVX-512 may use the instructions of AVX512_BF16. The variable is set
// before any kernel runs. Results have the same bits with these instructions and without.
__attribute__((visibility("hidden"))) extern bool has_avx512_bf16;

// The numbers that RoundToBFloat16() tests and adds with AVX-512: the lowest bit that a bfloat16
// keeps, half of it less 1, and half of it.
__attribute__((visibility("hidden"))) extern const int bfloat16_rounding[3];

}  // namespace fusedops
