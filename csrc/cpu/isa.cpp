#include "cpu/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace fusedops {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

// "" where the variable is unset: no limit.
std::string requested_isa() {
  const char* value = std::getenv("FUSEDOPS_CPU_ISA");
  const std::string isa = value == nullptr ? "" : value;
  if (isa.empty() || isa == "avx512" || isa == "avx2" || isa == "default") return isa;
  throw std::runtime_error(
      "FUSEDOPS_CPU_ISA is '" + isa + "', wanted avx512, avx2 or default; unset it for the best");
}

const CpuKernels& choose() {
  const std::string limit = requested_isa();
#if defined(__x86_64__)
  if (limit != "default" && limit != "avx2" && has_avx512()) return avx512::kernels;
  if (limit != "default" && has_avx2()) return avx2::kernels;
#endif
  return default_::kernels;
}

}  // namespace

const CpuKernels& cpu_kernels() {
  static const CpuKernels& chosen = choose();
  return chosen;
}

}  // namespace fusedops

extern "C" __attribute__((visibility("default"))) const char* fusedops_cpu_isa() {
  try {
    return fusedops::cpu_kernels().isa;
  } catch (const std::exception&) {
    return nullptr;
  }
}
