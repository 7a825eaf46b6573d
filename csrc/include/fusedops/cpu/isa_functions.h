// Declares the functions of a table of kernels, each with the type of its member of CpuKernels.
//
// The sources in csrc/cpu/dispatch define them, one source per family of kernels, so that the
// families compile in parallel. Every source is compiled once per instruction set, with
// FUSEDOPS_CPU_ISA as the namespace and FUSEDOPS_CPU_ISA_NAME as the name that the environment
// variable FUSEDOPS_CPU_ISA uses.
#pragma once

#include "fusedops/cpu/dispatch_table.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {

template <class Function>
struct FunctionOf;
template <class Function>
struct FunctionOf<Function * CpuKernels::*> {
  using type = Function;
};
template <auto kMember>
using Kernel = typename FunctionOf<decltype(kMember)>::type;

Kernel<&CpuKernels::softmax> softmax;
Kernel<&CpuKernels::softmax_backward> softmax_backward;
Kernel<&CpuKernels::spatial_softmax> spatial_softmax;
Kernel<&CpuKernels::spatial_softmax_backward> spatial_softmax_backward;
Kernel<&CpuKernels::long_softmax> long_softmax;
Kernel<&CpuKernels::write_long_softmax> write_long_softmax;
Kernel<&CpuKernels::long_softmax_backward> long_softmax_backward;
Kernel<&CpuKernels::write_long_softmax_backward> write_long_softmax_backward;
Kernel<&CpuKernels::softmax_statistics> softmax_statistics;
Kernel<&CpuKernels::softmax_apply> softmax_apply;
Kernel<&CpuKernels::masked_softmax> masked_softmax;
Kernel<&CpuKernels::masked_softmax_backward> masked_softmax_backward;
Kernel<&CpuKernels::norm> norm;
Kernel<&CpuKernels::norm_backward> norm_backward;
Kernel<&CpuKernels::norm_finish> norm_finish;
Kernel<&CpuKernels::long_norm> long_norm;
Kernel<&CpuKernels::write_long_norm> write_long_norm;
Kernel<&CpuKernels::long_norm_backward> long_norm_backward;
Kernel<&CpuKernels::write_long_norm_backward> write_long_norm_backward;

}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
