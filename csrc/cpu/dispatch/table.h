// Declares the CPU kernels as a table of functions. There is one table per instruction set.
#pragma once

#include "args.h"
#include "cpu/cross_entropy/scratch.h"
#include "cpu/norm/scratch.h"

namespace fusedops {

struct CpuKernels {
  const char* isa;

#define KERNEL(name, parameters) void(*name) parameters;
#include "cpu/dispatch/kernels.def"
#undef KERNEL
};

namespace default_ {
extern const CpuKernels kernels;
}
namespace bf16 {
extern const CpuKernels kernels;
}
namespace avx2 {
extern const CpuKernels kernels;
}
namespace avx512 {
extern const CpuKernels kernels;
}

}  // namespace fusedops
