#include "cpu/launcher.h"
#include "ops/register_kernels.h"

namespace fusedops {
namespace {

// Operators construct a launcher from a tensor; the CPU launcher ignores it.
struct TensorCpuLauncher : CpuLauncher {
  explicit TensorCpuLauncher(const Tensor&) {}

  static bool is_captured() { return false; }
};

}  // namespace
}  // namespace fusedops

FUSEDOPS_REGISTER(CPU, fusedops::TensorCpuLauncher)

// Returns the kernel of the operator `op`, which op_call.cpp calls without the dispatcher, or null
// if there is no such operator.
extern "C" __attribute__((visibility("default"))) fusedops::BoxedKernel* fusedops_cpu_kernel(
    const char* op) {
  return fusedops::Kernels<fusedops::TensorCpuLauncher>::find(op);
}
