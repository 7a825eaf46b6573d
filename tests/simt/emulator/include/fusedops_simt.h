// The emulator's half of fusedops/device.h: CUDA's names over simt.h.
//
// By the package's rules for kernels, shuffles without a mask are not declared, and a plain
// __shared__ does not compile.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "simt.h"

#define __shared__ _Pragma("GCC error \"declare shared arrays with FUSEDOPS_SHARED\"")

// One array per block and per instantiation of the function around it.
#define FUSEDOPS_SHARED(T, name, count)                        \
  static constinit char name##_identity = 0;                   \
  auto& name = *static_cast<T(*)[count]>(::simt::shared_array( \
      &name##_identity, sizeof(T[count]), alignof(T), ::simt::Site::current()))

#define threadIdx (::simt::self->thread)
#define blockIdx (::simt::self->block)
#define blockDim (::simt::self->block_size)
#define gridDim (::simt::self->grid_size)

namespace simt {

template <class To, class From>
To bits_of(From from) {
  static_assert(sizeof(From) <= 8 && sizeof(To) <= 8 && std::is_trivially_copyable_v<From>);
  To to{};
  std::memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}

template <class... Params>
void call_kernel(const void* kernel, void* const* parameters) {
  const auto call = [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    const auto typed = reinterpret_cast<void (*)(Params...)>(const_cast<void*>(kernel));
    typed(*static_cast<const Params*>(parameters[kIndex])...);
  };
  call(std::index_sequence_for<Params...>());
}
template <class... Params>
inline const bool kHasCall = remember_call(typeid(void(Params...)), &call_kernel<Params...>);

// Launches a kernel, of a type that find_call() then knows.
template <class... Params, class... Args>
int launch_typed(const Launch& configuration, void (*kernel)(Params...), Args... args) {
  static_cast<void>(kHasCall<Params...>);
  return launch(configuration, [=] { kernel(static_cast<Params>(args)...); });
}

}  // namespace simt

inline void __syncthreads(SIMT_HERE) { simt::block_barrier(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) {
  simt::warp_collective(simt::WarpOp::kSync, mask, 0, 0, site);
}

// A shuffle over the whole warp. The form with a width for parts of a warp does not exist here.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, SIMT_HERE) {
  const unsigned source = (simt::self->lane ^ lane_mask) % 32u;
  const auto bits = simt::bits_of<uint64_t>(value);
  return simt::bits_of<T>(simt::warp_collective(simt::WarpOp::kShuffle, mask, bits, source, site));
}

// No kernel of the package has atomics; tests show why.
inline void atomicAdd(float* at, float value) { std::atomic_ref(*at).fetch_add(value); }

namespace fusedops::device {

inline int64_t max_grid() { return simt::config.max_grid; }

inline int current_device() { return 0; }  // the only one

inline bool has_clusters() { return simt::has_clusters; }

template <class... Params, class... Args>
int launch_clusters(
    void (*kernel)(Params...), int64_t blocks, uint32_t cluster, dim3 threads, void*,
    Args... args) {
  if (blocks < 1 || blocks > simt::config.max_grid) return simt::kInvalidConfiguration;
  if (cluster > simt::config.cluster_limit) return simt::kInvalidDeviceFunction;
  const simt::Launch configuration{
      reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)), threads, 0,
      cluster};
  return simt::launch_typed(configuration, kernel, args...);
}

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), int64_t blocks, dim3 threads, void* stream, Args... args) {
  return launch_clusters(kernel, blocks, 1, threads, stream, args...);
}

template <class... Params, class... Args>
int launch_with_shared(
    void (*kernel)(Params...), int64_t shared_bytes, int64_t blocks, dim3 threads, void*,
    Args... args) {
  if (blocks < 1 || blocks > simt::config.max_grid) return simt::kInvalidConfiguration;
  const simt::Launch configuration{
      reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)), threads,
      static_cast<size_t>(shared_bytes)};
  return simt::launch_typed(configuration, kernel, args...);
}

inline int64_t max_shared_bytes() { return simt::config.max_shared_bytes; }
inline int64_t multiprocessors() { return simt::config.multiprocessors; }
inline int query_capture(void*, bool& is_captured) {
  is_captured = false;
  return 0;
}
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(simt::dynamic_shared());
}

inline uint32_t cluster_blocks() { return simt::self->cluster_size; }
inline uint32_t cluster_rank() { return simt::self->cluster_rank; }
inline void cluster_arrive(SIMT_HERE) { simt::cluster_arrive(site); }
inline void cluster_wait(SIMT_HERE) { simt::cluster_wait(site); }

inline void mbarrier_init(uint64_t* barrier, SIMT_HERE) { simt::barrier_init(barrier, 1, site); }
inline void mbarrier_expect(uint64_t* barrier, uint32_t bytes, SIMT_HERE) {
  simt::barrier_arrive_expecting(barrier, bytes, site);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity, SIMT_HERE) {
  simt::barrier_wait(barrier, parity != 0, site);
}

inline void store_cluster(
    float* own, float value, uint64_t* own_barrier, uint32_t rank, SIMT_HERE) {
  simt::store_async(own, simt::bits_of<uint64_t>(value), sizeof(value), own_barrier, rank, site);
}
inline void store_cluster(
    float* own, float first, float second, uint64_t* own_barrier, uint32_t rank, SIMT_HERE) {
  const auto bits = std::bit_cast<uint64_t>(std::array{first, second});
  simt::store_async(own, bits, sizeof(bits), own_barrier, rank, site);
}

}  // namespace fusedops::device
