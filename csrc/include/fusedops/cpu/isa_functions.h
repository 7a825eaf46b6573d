// The functions that fill a table of kernels, each of the type its place in the table has.
//
// The sources in csrc/cpu/kernels define them, each source for a family of kernels, so that
// compilers of several families run side by side. All are compiled once per instruction set, with
// FUSEDOPS_CPU_ISA, the namespace, and FUSEDOPS_CPU_ISA_NAME, as FUSEDOPS_CPU_ISA in the
// environment spells it.
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
