#include "cpu/dispatch/isa.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fusedops {
namespace {

// kIsas names the processor's instruction sets, from fewer instructions to more; kWanted names them
// in the text of an error.
#if defined(__x86_64__)
constexpr const char* kIsas[] = {"default", "avx2", "avx512", "avx512_bf16"};
constexpr char kWanted[] = "avx512_bf16, avx512, avx2 or default";

[[maybe_unused]] bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c");
}
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#elif defined(__aarch64__)
constexpr const char* kIsas[] = {"default", "bf16"};
constexpr char kWanted[] = "bf16 or default";

[[maybe_unused]] bool has_bf16() {
#if defined(HWCAP2_BF16)
  return getauxval(AT_HWCAP2) & HWCAP2_BF16;
#else
  return false;
#endif
}
#else
constexpr const char* kIsas[] = {"default"};
constexpr char kWanted[] = "default";
#endif

// Returns the index of `isa` in kIsas, or the length of kIsas if it is not there.
int rank_of(const std::string& isa) {
  return int(std::find(std::begin(kIsas), std::end(kIsas), isa) - kIsas);
}

// Returns the instruction set that FUSEDOPS_CPU_ISA names, or "" if it sets no limit.
std::string requested_isa() {
  const char* value = std::getenv("FUSEDOPS_CPU_ISA");
  const std::string isa = value == nullptr ? "" : value;
  if (isa.empty() || rank_of(isa) < int(std::size(kIsas))) return isa;
  throw std::runtime_error(
      "FUSEDOPS_CPU_ISA is '" + isa + "', wanted " + kWanted + "; unset it for the best");
}

struct Isa {
  const CpuKernels& kernels;
  bool is_supported;  // by this machine
};

// Returns the instruction sets in this build, widest first.
const std::vector<Isa>& built_isas() {
  static const std::vector<Isa> isas = {
#if defined(FUSEDOPS_BUILT_avx512)
      {avx512::kernels, has_avx512()},
#endif
#if defined(FUSEDOPS_BUILT_avx2)
      {avx2::kernels, has_avx2()},
#endif
#if defined(FUSEDOPS_BUILT_bf16)
      {bf16::kernels, has_bf16()},
#endif
#if defined(FUSEDOPS_BUILT_default)
      {default_::kernels, true},
#endif
  };
  return isas;
}

// Whether `limit`, the value of FUSEDOPS_CPU_ISA, allows an instruction set.
bool is_allowed(const std::string& isa, const std::string& limit) {
  return limit.empty() || rank_of(isa) <= rank_of(limit);
}

const CpuKernels& choose() {
  const std::string limit = requested_isa();
#if defined(__x86_64__)
  has_avx512_bf16 =
      has_avx512() && __builtin_cpu_supports("avx512bf16") && is_allowed("avx512_bf16", limit);
#endif
  std::string built;
  for (const Isa& isa : built_isas()) {
    if (is_allowed(isa.kernels.isa, limit) && isa.is_supported) return isa.kernels;
    built += std::string(built.empty() ? "" : " and ") + isa.kernels.isa;
  }
  throw std::runtime_error(
      "this build of fusedops holds kernels for " + built + " alone, which " +
      (limit.empty() ? "this machine lacks"
                     : "FUSEDOPS_CPU_ISA=" + limit + " or this machine rules out") +
      "; build it with all: FUSEDOPS_BUILD_NATIVE=0 pip install --no-build-isolation .");
}

}  // namespace

bool has_avx512_bf16 = false;
const int bfloat16_rounding[] = {0x10000, 0x7fff, 0x8000};

const CpuKernels& cpu_kernels() {
  static const CpuKernels& chosen = choose();
  return chosen;
}

}  // namespace fusedops

// Returns the name of the chosen instruction set, or null if cpu_kernels() throws.
extern "C" __attribute__((visibility("default"))) const char* fusedops_cpu_isa() {
  try {
    return fusedops::cpu_kernels().isa;
  } catch (const std::exception&) {
    return nullptr;
  }
}
