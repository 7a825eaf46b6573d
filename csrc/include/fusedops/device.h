// CUDA for kernels: the toolkit's headers under nvcc, a SIMT emulator under any other compiler.
//
// FUSEDOPS_KERNEL takes the threads of the largest block and, optionally, the number of blocks that
// share a multiprocessor's registers.
// Clusters (blocks that run together and read each other's shared memory) exist where
// has_clusters() says so; kernels that use them trap elsewhere. No block may leave its cluster
// before the others have read its shared memory. Contract: kernels use threadIdx, blockIdx,
// blockDim, gridDim, __syncthreads(), the macros below and fusedops::device, nothing else. Each PTX
// instruction is one function here, with a portable equivalent. Shared arrays are aligned for
// 16-byte access. Emulator: fusedops_simt.h, found on the include path, supplies those names,
// FUSEDOPS_SHARED,
// __shfl_xor_sync, the vector and 16-bit types, and fusedops::device::{max_grid, has_clusters,
// launch, launch_clusters, cluster_rank, cluster_barrier, load_cluster}.
// Numerics: fast_exp2 is within 2 ulp and flushes denormal results, reciprocal is within 1 ulp; the
// rest is as in <cmath>.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#include <array>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define FUSEDOPS_DEVICE __device__ __forceinline__
#define FUSEDOPS_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#define FUSEDOPS_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#else
#include "fusedops_simt.h"
#define FUSEDOPS_DEVICE inline
#define FUSEDOPS_KERNEL(...) void
#endif

namespace fusedops {

using Half = __half;
using BFloat16 = __nv_bfloat16;

namespace device {

using Stream = void*;  // a cudaStream_t
using Status = int;    // a cudaError_t
inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;

inline constexpr int32_t kWarpLanes = 32;

template <class T>
FUSEDOPS_DEVICE T shuffle_xor(T value, int32_t lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

FUSEDOPS_DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
FUSEDOPS_DEVICE double maximum(double a, double b) { return fmax(a, b); }
FUSEDOPS_DEVICE float fma(float a, float b, float c) { return fmaf(a, b, c); }
FUSEDOPS_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }
FUSEDOPS_DEVICE float exp(float x) { return expf(x); }
FUSEDOPS_DEVICE double exp(double x) { return ::exp(x); }
FUSEDOPS_DEVICE float log(float x) { return logf(x); }
FUSEDOPS_DEVICE double log(double x) { return ::log(x); }
FUSEDOPS_DEVICE double reciprocal(double x) { return 1.0 / x; }

#if defined(__CUDACC__)

inline int64_t max_grid() { return 2147483647; }  // gridDim.x of every architecture since sm_30

// Within 1 ulp where x and 1 / x are normal: a Newton step on the approximation. __frcp_rn would
// call a function for denormals, which costs registers.
FUSEDOPS_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return fmaf(y, fmaf(-x, y, 1.0f), y);
}
FUSEDOPS_DEVICE float rsqrt(float x) { return rsqrtf(x); }
FUSEDOPS_DEVICE double rsqrt(double x) { return ::rsqrt(x); }

FUSEDOPS_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Loads that are not kept in L1, for what is read once. volatile keeps the loads of a row together,
// ahead of the barrier that waits for them.
FUSEDOPS_DEVICE uint4 load_streaming(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
FUSEDOPS_DEVICE uint2 load_streaming(const uint2* from) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}
FUSEDOPS_DEVICE uint32_t load_streaming(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
FUSEDOPS_DEVICE uint16_t load_streaming(const uint16_t* from) {
  uint16_t v;
  asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(from));
  return v;
}

// The rank of this block in its cluster.
FUSEDOPS_DEVICE uint32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// A barrier for all threads of a cluster. Afterwards all see what was written before, in shared
// memory too.
FUSEDOPS_DEVICE void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __trap();
#endif
}

// The float at the address of `own`, in the shared memory of the block of that rank.
FUSEDOPS_DEVICE float load_cluster(const float* own, uint32_t rank) {
  float value = 0;
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}

// Whether the current device has clusters. The first call asks every device.
inline bool has_clusters() {
  static const auto majors = [] {
    std::array<int, 64> found = {};
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return found;
    for (int i = 0; i < count && i < static_cast<int>(found.size()); ++i) {
      cudaDeviceGetAttribute(&found[i], cudaDevAttrComputeCapabilityMajor, i);
    }
    return found;
  }();
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && device < static_cast<int>(majors.size()) &&
      majors[device] >= 9;
}

// Launches clusters of `cluster` neighbouring blocks.
template <class... Params, class... Args>
Status launch_clusters(
    void (*kernel)(Params...), int64_t blocks, uint32_t cluster, dim3 threads, Stream stream,
    Args... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  if (status != cudaSuccess) cudaGetLastError();  // clears it, since it is returned
  return status;
}

template <class... Params, class... Args>
Status launch(
    void (*kernel)(Params...), int64_t blocks, dim3 threads, Stream stream, Args... args) {
  return launch_clusters(kernel, blocks, 1, threads, stream, args...);
}

#else

inline float reciprocal(float x) { return 1.0f / x; }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float fast_exp2(float x) { return exp2f(x); }
template <class Word>
Word load_streaming(const Word* from) {
  return *from;
}

#endif

}  // namespace device
}  // namespace fusedops
