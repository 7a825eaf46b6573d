#include "ops/register.h"
#include "cpu/backend.h"

namespace fusedops {
namespace {

// The ops make a backend of a tensor, of which the CPU's needs nothing.
struct TensorCpuBackend : CpuBackend {
  explicit TensorCpuBackend(const Tensor&) {}
};

}  // namespace
}  // namespace fusedops

FUSEDOPS_REGISTER(CPU, fusedops::TensorCpuBackend)
