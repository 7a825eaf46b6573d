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
