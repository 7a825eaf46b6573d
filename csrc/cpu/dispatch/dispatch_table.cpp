#include "fusedops/cpu/isa_functions.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {

extern const CpuKernels kernels;
// Constant-initialized, so that no code compiled for an instruction set runs before that set is
// chosen.
constexpr CpuKernels kernels = {
    FUSEDOPS_CPU_ISA_NAME,
    softmax,
    softmax_backward,
    spatial_softmax,
    spatial_softmax_backward,
    long_softmax,
    write_long_softmax,
    long_softmax_backward,
    write_long_softmax_backward,
    softmax_statistics,
    softmax_apply,
    masked_softmax,
    masked_softmax_backward,
    norm,
    norm_backward,
    norm_finish,
    long_norm,
    write_long_norm,
    long_norm_backward,
    write_long_norm_backward};

}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
