// The emulator's half of fusedops/device.h: CUDA's names over simt.h.
//
// By the package's rules for kernels, shuffles without a mask are not declared, and a plain
// __shared__ does not compile.
#pragma once

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

template <class T>
T shuffle(uint32_t mask, T value, unsigned source, Site site) {
  return bits_of<T>(
      warp_collective(WarpOp::kShuffle, mask, bits_of<uint64_t>(value), source, site));
}

// ThreadSanitizer understands this compare-and-swap loop.
template <class T, class F>
T read_modify_write(T* at, F next) {
  using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  static_assert(sizeof(T) == sizeof(Word));
  auto* const word = reinterpret_cast<Word*>(at);
  Word old = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  while (!__atomic_compare_exchange_n(
      word, &old, bits_of<Word>(next(bits_of<T>(old))), false, __ATOMIC_ACQ_REL,
      __ATOMIC_ACQUIRE)) {
  }
  return bits_of<T>(old);
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

inline void __syncthreads(SIMT_HERE) { simt::block_barrier(false, "__syncthreads", site); }
inline int __syncthreads_count(int predicate, SIMT_HERE) {
  return simt::block_barrier(predicate != 0, "__syncthreads_count", site);
}
inline int __syncthreads_or(int predicate, SIMT_HERE) {
  return simt::block_barrier(predicate != 0, "__syncthreads_or", site) > 0;
}
inline int __syncthreads_and(int predicate, SIMT_HERE) {
  return simt::block_barrier(predicate == 0, "__syncthreads_and", site) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) {
  simt::warp_collective(simt::WarpOp::kSync, mask, 0, 0, site);
}

// Shuffles over the whole warp. The form with a width for parts of a warp does not exist here.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, SIMT_HERE) {
  return simt::shuffle(mask, value, source % 32u, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, SIMT_HERE) {
  return simt::shuffle(mask, value, (simt::self->lane ^ lane_mask) % 32u, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, SIMT_HERE) {
  const unsigned lane = simt::self->lane;
  return simt::shuffle(mask, value, lane < delta ? lane : lane - delta, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, SIMT_HERE) {
  const unsigned lane = simt::self->lane;
  return simt::shuffle(mask, value, lane + delta > 31 ? lane : lane + delta, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE) {
  return simt::warp_collective(simt::WarpOp::kBallot, mask, predicate != 0, 0, site);
}
inline int __any_sync(unsigned mask, int predicate, SIMT_HERE) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_HERE) {
  return __ballot_sync(mask, predicate, site) == mask;
}

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return simt::read_modify_write(at, [=](T old) { return T(old + value); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return simt::read_modify_write(at, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return simt::read_modify_write(at, [=](T) { return value; });
}
inline unsigned atomicInc(unsigned* at, unsigned limit) {
  return simt::read_modify_write(at, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

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
inline void cluster_arrive(SIMT_HERE) { simt::cluster_arrive(true, site); }
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
  const float values[] = {first, second};
  uint64_t bits;
  std::memcpy(&bits, values, sizeof(bits));
  simt::store_async(own, bits, sizeof(bits), own_barrier, rank, site);
}

}  // namespace fusedops::device
