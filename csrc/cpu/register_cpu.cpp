#include "cpu/launcher.h"
#include "ops/register_kernels.h"

namespace fusedops {
namespace {

// The operators make a launcher from a tensor; the CPU's needs nothing of it.
struct TensorCpuLauncher : CpuLauncher {
  explicit TensorCpuLauncher(const Tensor&) {}
};

}  // namespace
}  // namespace fusedops

FUSEDOPS_REGISTER(CPU, fusedops::TensorCpuLauncher)
