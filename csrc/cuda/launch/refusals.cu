// The CUDA emulator in tests/simt compiles this file too, as C++.
#include "cuda/launch/refusals.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/block/device.h"

namespace fusedops::cuda {
namespace {

// What was refused: device, launch, blocks of a cluster, and the error's number.
using Refusal = std::tuple<int, std::string, int32_t, int>;

struct Counts {
  std::mutex mutex;
  std::map<Refusal, int64_t> times;
};

// Returns the counts of this process. They are never destroyed, because threads may launch until
// the process has ended.
Counts& counts() {
  static Counts* const only = new Counts;
  return *only;
}

std::map<Refusal, int64_t> copy_of_times() {
  const std::lock_guard lock(counts().mutex);
  return counts().times;
}

}  // namespace

void count_refusal(const char* launch, int32_t blocks, int status) {
  const int device = device::current_device();
  const std::lock_guard lock(counts().mutex);
  ++counts().times[{device, launch, blocks, status}];
}

}  // namespace fusedops::cuda

// Calls visit() for each refusal of this process. The lock is not held meanwhile: a visitor may
// wait for another thread, as one in Python does, and that thread for the lock.
extern "C" __attribute__((visibility("default"))) void fusedops_cuda_refusals(
    void (*visit)(int device, const char* launch, int blocks, int status, int64_t times)) {
  for (const auto& [refusal, times] : fusedops::cuda::copy_of_times()) {
    const auto& [device, launch, blocks, status] = refusal;
    visit(device, launch.c_str(), blocks, status, times);
  }
}
