// A softmax as the package does not do it: blocks add to the one sum of a row as they arrive. Float
// addition is not associative, so that the last bits depend on the order of arrival.
//
// Contract: one row; max is its largest value. Blocks of kThreads take kColumns columns each.
#include "cuda/block/reduce.h"
#include "simt.h"

namespace {

using namespace fusedops;

constexpr int kThreads = 128, kColumns = 4096;

FUSEDOPS_KERNEL(kThreads)
add_exponentials(const float* input, int cols, float max, float* normaliser) {
  FUSEDOPS_SHARED(float, shared_sums, cuda::kMaxWarps);
  const int first = blockIdx.x * kColumns;
  float sum = 0;
  for (int i = first + threadIdx.x; i < cols && i < first + kColumns; i += kThreads) {
    sum += device::exp(input[i] - max);
  }
  sum = cuda::row_reduce<cuda::Sum>(sum, shared_sums);
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
  const auto sum = &add_exponentials;
  if (const int status =
          device::launch(sum, blocks, dim3(kThreads), nullptr, input, cols, max, &normaliser)) {
    return status;
  }
  return device::launch(
      &divide, blocks, dim3(kThreads), nullptr, input, cols, max, &normaliser, output);
}
