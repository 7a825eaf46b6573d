// What device.h includes in the program of launches: the emulator's declarations, except that a
// launch is written down instead of run.
#pragma once

#define launch_clusters emulated_launch_clusters
#define launch emulated_launch
#include_next <fusedops_simt.h>
#undef launch
#undef launch_clusters

#include <algorithm>
#include <vector>

// Writes a launch down. `parameters` is what the kernel finds in the constant bank.
void record_launch(
    const void* kernel, int64_t blocks, uint32_t cluster, dim3 threads,
    const std::vector<unsigned char>& parameters);

// Appends a parameter where CUDA places it, at a multiple of its alignment.
template <class Param>
void append_parameter(std::vector<unsigned char>& parameters, const Param& param) {
  const size_t start = (parameters.size() + alignof(Param) - 1) / alignof(Param) * alignof(Param);
  parameters.resize(start + sizeof(Param));
  std::memcpy(parameters.data() + start, &param, sizeof(Param));
}

namespace fusedops::device {

template <class... Params, class... Args>
int launch_clusters(
    void (*kernel)(Params...), int64_t blocks, uint32_t cluster, dim3 threads, void*,
    Args... args) {
  std::vector<unsigned char> parameters;
  (append_parameter<Params>(parameters, static_cast<Params>(args)), ...);
  record_launch(reinterpret_cast<const void*>(kernel), blocks, cluster, threads, parameters);
  return 0;
}

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), int64_t blocks, dim3 threads, void* stream, Args... args) {
  return launch_clusters(kernel, blocks, 1, threads, stream, args...);
}

}  // namespace fusedops::device
