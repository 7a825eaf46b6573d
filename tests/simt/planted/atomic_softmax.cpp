// The softmax that the package does not have: the normaliser of a row is one float that blocks add
// to as they arrive. Floats do not associate, so its last bits are those of the order of arrival.
//
// Contract: one row; max is its largest value. Blocks of kThreads take kColumns columns each.
#include "fusedops/cuda/reduce.h"
#include "simt.h"

namespace {

using namespace fusedops;

constexpr int kThreads = 128, kColumns = 4096;

FUSEDOPS_KERNEL(kThreads)
add_powers(const float* input, int cols, float max, float* normaliser) {
  FUSEDOPS_SHARED(float, slots, cuda::kMaxWarps);
  const int first = blockIdx.x * kColumns;
  float sum = 0;
  for (int i = first + threadIdx.x; i < cols && i < first + kColumns; i += kThreads) {
    sum += device::exp(input[i] - max);
  }
  sum = cuda::row_reduce<cuda::Sum>(sum, slots);
  if (threadIdx.x == 0) atomicAdd(normaliser, sum);
}

FUSEDOPS_KERNEL(kThreads)
divide(const float* input, int cols, float max, const float* normaliser, float* output) {
  const int first = blockIdx.x * kColumns;
  for (int i = first + threadIdx.x; i < cols && i < first + kColumns; i += kThreads) {
    output[i] = device::exp(input[i] - max) / *normaliser;
  }
}

}  // namespace

extern "C" int softmax_by_atomics(
    const simt::Config* config, const float* input, float* output, int cols, float max) {
  simt::config = *config;
  const int64_t blocks = (cols + kColumns - 1) / kColumns;
  float normaliser = 0;
  const auto sum = &add_powers;
  if (const int status =
          device::launch(sum, blocks, dim3(kThreads), nullptr, input, cols, max, &normaliser)) {
    return status;
  }
  return device::launch(
      &divide, blocks, dim3(kThreads), nullptr, input, cols, max, &normaliser, output);
}
