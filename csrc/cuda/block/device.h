// Gives kernels CUDA: the toolkit's headers under nvcc, a SIMT emulator under any other compiler.
//
// FUSEDOPS_KERNEL takes the number of threads of the largest block and, optionally, the number of
// blocks that share a multiprocessor's registers.
//
// The blocks of a cluster run together and write to each other's shared memory; cluster.h says how.
// has_clusters() says whether the device has clusters, and launch_clusters() refuses a kernel that
// was compiled without them.
//
// Contract: kernels use threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(), the
// macros below and fusedops::device, nothing else. Each PTX instruction is one function here, which
// has a portable equivalent. Shared arrays are aligned for 16-byte access.
//
// Emulator: the include path has fusedops_simt.h, which defines the CUDA names of the contract,
// FUSEDOPS_SHARED, __shfl_xor_sync, and the vector and 16-bit types. Of fusedops::device it defines
// max_grid, multiprocessors, current_device and the functions for launches, captures, dynamic
// shared memory, clusters and mbarriers.
//
// Numerics: fast_exp2 is within 2 ulp and flushes denormal results; reciprocal of a float is within
// 1 ulp, and NaN for 0, denormals and infinities; the other functions are as in <cmath>.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define FUSEDOPS_DEVICE __device__ __forceinline__
#define FUSEDOPS_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#define FUSEDOPS_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#else
#include <cfloat>

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
inline constexpr Status kInvalidDeviceFunction = 98;
inline constexpr Status kLaunchFailure = 719;  // a kernel failed while it ran

inline constexpr int32_t kWarpLanes = 32;

template <class T>
FUSEDOPS_DEVICE T shuffle_xor(T value, int32_t lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

FUSEDOPS_DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
FUSEDOPS_DEVICE double maximum(double a, double b) { return fmax(a, b); }
using std::exp;
using std::fma;
using std::log;
using std::tanh;
FUSEDOPS_DEVICE double reciprocal(double x) { return 1.0 / x; }

// Stores a vector in global memory. Under nvcc, words of 8 and 16 bytes have overloads below.
template <class Word>
FUSEDOPS_DEVICE void store_vector(Word* to, Word word) {
  *to = word;
}

#if defined(__CUDACC__)

inline int64_t max_grid() { return 2147483647; }  // the largest gridDim.x since sm_30

// Returns a * b, rounded. nvcc would fuse a plain product into a sum or difference that uses it.
FUSEDOPS_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
FUSEDOPS_DEVICE double product(double a, double b) { return __dmul_rn(a, b); }

// Returns 1 / x within 1 ulp; denormals count as 0.
FUSEDOPS_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

FUSEDOPS_DEVICE float rsqrt(float x) { return rsqrtf(x); }
FUSEDOPS_DEVICE double rsqrt(double x) { return ::rsqrt(x); }

FUSEDOPS_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Loads of data that is read once bypass L1, except loads of 2 or 4 bytes, which share a sector
// with neighbouring loads. volatile keeps the loads of a row together, ahead of the first barrier
// of a reduction over the row.
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
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
FUSEDOPS_DEVICE uint16_t load_streaming(const uint16_t* from) {
  uint16_t v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from));
  return v;
}

// These functions store a vector in global memory by one instruction. Otherwise the compiler would
// split some of the stores that are behind a branch on the dtype of results, into one store for
// each element.
FUSEDOPS_DEVICE void store_vector(uint4* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
FUSEDOPS_DEVICE void store_vector(uint2* to, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}

// Returns `pointer`, which is to global memory, as one value that the compiler cannot take apart.
// Otherwise the compiler computes the sum of base, row and column anew for every vector of a row,
// in 9 instructions each in place of one.
template <class T>
FUSEDOPS_DEVICE T* whole(T* pointer) {
  size_t address = __cvta_generic_to_global(pointer);
  asm("" : "+l"(address));
  return static_cast<T*>(__cvta_global_to_generic(address));
}

FUSEDOPS_DEVICE void assume(bool condition) { __builtin_assume(condition); }

template <class T>
FUSEDOPS_DEVICE T* dynamic_shared() {
  extern __shared__ uint4 dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

#if __CUDA_ARCH__ >= 900

// Waits, in a kernel that launch_behind() launched, until the launch ahead of it in the stream has
// ended and its results are there.
FUSEDOPS_DEVICE void wait_for_launch_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// These functions return the number of blocks in this cluster, and the rank of this block among
// them.
FUSEDOPS_DEVICE uint32_t cluster_blocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}
FUSEDOPS_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// These are the two halves of a barrier for all threads of a cluster. The arrival is relaxed,
// because mbarrier_init() has its own fence: a release would wait for all stores of the thread
// (MEMBAR.GPU).
FUSEDOPS_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
FUSEDOPS_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

FUSEDOPS_DEVICE uint32_t shared_address(const void* local) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(local));
}

// Returns the address that `local`, shared memory of this block, has in the block of that rank.
FUSEDOPS_DEVICE uint32_t cluster_address(const void* local, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(local)), "r"(rank));
  return address;
}

// Initialises an mbarrier whose phases take one arrival each. Other threads of the cluster may use
// it after the next cluster barrier.
FUSEDOPS_DEVICE void mbarrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives at the mbarrier, whose phase ends once `bytes` bytes have come too.
FUSEDOPS_DEVICE void mbarrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits for the end of a phase of that parity; the first phase has parity 0. Afterwards this thread
// sees the bytes that have come.
FUSEDOPS_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t is_over = 0;
  while (!is_over) {
    asm volatile(
        "{\n"
        ".reg .pred %%over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 %%over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, %%over;\n"
        "}"
        : "=r"(is_over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// These functions store `value`, or `first` and `second`, at the address of `local` in the block of
// that rank. The bytes arrive some time later, and the mbarrier at the address of `barrier` in that
// block counts them.
FUSEDOPS_DEVICE void store_cluster(float* local, float value, uint64_t* barrier, uint32_t rank) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                   cluster_address(local, rank)),
               "f"(value), "r"(cluster_address(barrier, rank))
               : "memory");
}
FUSEDOPS_DEVICE void store_cluster(
    float* local, float first, float second, uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          cluster_address(local, rank)),
      "f"(first), "f"(second), "r"(cluster_address(barrier, rank))
      : "memory");
}

#else  // Architectures before sm_90, and the compiler's pass over host code.

// On these architectures launch_behind() starts a kernel only after the launch ahead has ended.
FUSEDOPS_DEVICE void wait_for_launch_ahead() {}

// tools/tune may be compiled for older devices, and needs these functions to be defined. They never
// run, because launch_clusters() refuses the kernels. A kernel that ran nevertheless would trap
// before it loads anything: the constructor of RowInCluster calls cluster_arrive().
FUSEDOPS_DEVICE uint32_t cluster_blocks() { return 1; }
FUSEDOPS_DEVICE uint32_t cluster_rank() { return 0; }
FUSEDOPS_DEVICE void cluster_arrive() { __trap(); }
FUSEDOPS_DEVICE void cluster_wait() {}
FUSEDOPS_DEVICE void mbarrier_init(uint64_t*) {}
FUSEDOPS_DEVICE void mbarrier_expect(uint64_t*, uint32_t) {}
FUSEDOPS_DEVICE void mbarrier_wait(uint64_t*, uint32_t) {}
FUSEDOPS_DEVICE void store_cluster(float*, float, uint64_t*, uint32_t) {}
FUSEDOPS_DEVICE void store_cluster(float*, float, float, uint64_t*, uint32_t) {}

#endif  // __CUDA_ARCH__ >= 900

// Returns the status of a call of the runtime, and clears its error, so that the thread's next
// launch, by whichever library, does not report it.
inline cudaError_t cleared(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

// Returns the current device, or -1 if the runtime reports an error.
inline int current_device() {
  int device = -1;
  return cleared(cudaGetDevice(&device)) == cudaSuccess ? device : -1;
}

// Returns an attribute of the current device, or 0 if the runtime reports an error. The cache holds
// each attribute plus one, because 0 stands for an attribute that has not been read. An error is
// not cached, so that the next call asks again.
template <cudaDeviceAttr kAttribute>
int device_attribute() {
  static std::array<std::atomic<int>, 64> cache = {};
  const int device = current_device();
  const bool has_place = device >= 0 && device < static_cast<int>(cache.size());
  if (const int cached = has_place ? cache[device].load() : 0; cached > 0) return cached - 1;
  int value = 0;
  if (cleared(cudaDeviceGetAttribute(&value, kAttribute, device)) != cudaSuccess) return 0;
  if (has_place) cache[device] = value + 1;
  return value;
}

inline bool has_clusters() { return device_attribute<cudaDevAttrComputeCapabilityMajor>() >= 9; }

inline int64_t max_shared_bytes() {
  return device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
}

inline int64_t multiprocessors() { return device_attribute<cudaDevAttrMultiProcessorCount>(); }

// Sets `is_captured` to whether launches on the stream are recorded to a CUDA graph.
inline Status query_capture(void* stream, bool& is_captured) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const auto error = cleared(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  is_captured = status != cudaStreamCaptureStatusNone;
  return error;
}

// Says what a kernel's code for one device allows.
struct KernelLimits {
  bool has_clusters = false;
  int64_t dynamic_shared_bytes = 0;
};

// Sets `limits` to those of a kernel, and allows the kernel all the shared memory and the largest
// clusters that the device has. Returns whether all calls succeeded.
template <class... Params>
bool read_limits(void (*kernel)(Params...), KernelLimits& limits) {
  cudaFuncAttributes code = {};
  if (cleared(cudaFuncGetAttributes(&code, kernel)) != cudaSuccess) return false;
  const auto set = [kernel](cudaFuncAttribute attribute, int64_t value) {
    return cleared(cudaFuncSetAttribute(kernel, attribute, static_cast<int>(value))) == cudaSuccess;
  };
  // Code that the driver compiles for sm_90 or later from the PTX of an older architecture has no
  // clusters, because that PTX comes from the source for a __CUDA_ARCH__ below 900.
  limits.has_clusters = code.ptxVersion >= 90 && code.binaryVersion >= 90;
  const bool has_large_clusters =
      !limits.has_clusters || set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  const int64_t bytes = max_shared_bytes() - static_cast<int64_t>(code.sharedSizeBytes);
  const bool has_memory = set(cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (has_memory) limits.dynamic_shared_bytes = bytes;
  return has_large_clusters && has_memory;
}

// Returns the limits of a kernel on the current device. The first call raises the kernel's limit of
// dynamic shared memory to the device's: if each launch set the limit it needs, a thread could
// lower it before another thread's launch, which would then be refused. After a failure the next
// call tries again.
template <class... Params>
KernelLimits limits_of(void (*kernel)(Params...)) {
  static std::mutex mutex;
  static std::map<std::pair<int, void (*)(Params...)>, KernelLimits> cache;
  const std::pair key(current_device(), kernel);
  if (key.first < 0) return {};
  const std::lock_guard lock(mutex);
  if (const auto entry = cache.find(key); entry != cache.end()) return entry->second;
  KernelLimits limits;
  if (read_limits(kernel, limits)) cache.emplace(key, limits);
  return limits;
}

// Launches with one attribute, or none if `attribute` is null, through a function that returns the
// launch's error. <<<>>> would report it only through cudaGetLastError(), which may hold an error
// that the program has left there.
template <class... Params, class... Args>
Status launch_with(
    cudaLaunchAttribute* attribute, int64_t shared_bytes, void (*kernel)(Params...), int64_t blocks,
    dim3 threads, Stream stream, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attribute;
  config.numAttrs = attribute ? 1 : 0;
  return cleared(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

template <class... Params, class... Args>
Status launch(
    void (*kernel)(Params...), int64_t blocks, dim3 threads, Stream stream, Args... args) {
  return launch_with(
      /*attribute=*/nullptr, /*shared_bytes=*/0, kernel, blocks, threads, stream, args...);
}

// Launches clusters of `cluster` neighbouring blocks. Fails if the kernel's code has no clusters,
// or if the device cannot run them, which may be so for a part of a GPU (MIG).
template <class... Params, class... Args>
Status launch_clusters(
    void (*kernel)(Params...), int64_t blocks, uint32_t cluster, dim3 threads, Stream stream,
    Args... args) {
  if (!limits_of(kernel).has_clusters) return kInvalidDeviceFunction;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return launch_with(&attribute, /*shared_bytes=*/0, kernel, blocks, threads, stream, args...);
}

// Launches a kernel whose blocks may start before the launch ahead of it in the stream has ended
// (programmatic dependent launch), which hides the latency of this launch. The blocks call
// wait_for_launch_ahead() before they read the results of the launch ahead. If the device or the
// kernel's code has no clusters, the kernel starts after the launch ahead has ended, as any other
// does.
template <class... Params, class... Args>
Status launch_behind(
    void (*kernel)(Params...), int64_t blocks, dim3 threads, Stream stream, Args... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const bool overlaps = has_clusters() && limits_of(kernel).has_clusters;
  return launch_with(
      overlaps ? &attribute : nullptr, /*shared_bytes=*/0, kernel, blocks, threads, stream,
      args...);
}

// Launches blocks that have `shared_bytes` of dynamic shared memory. Refuses more than what the
// kernel's static shared memory leaves of max_shared_bytes().
template <class... Params, class... Args>
Status launch_with_shared(
    void (*kernel)(Params...), int64_t shared_bytes, int64_t blocks, dim3 threads, Stream stream,
    Args... args) {
  if (shared_bytes > 0 && shared_bytes > limits_of(kernel).dynamic_shared_bytes) {
    return kInvalidValue;
  }
  return launch_with(
      /*attribute=*/nullptr, shared_bytes, kernel, blocks, threads, stream, args...);
}

#else  // the emulator

template <class... Params, class... Args>
Status launch_behind(
    void (*kernel)(Params...), int64_t blocks, dim3 threads, Stream stream, Args... args) {
  return launch(kernel, blocks, threads, stream, args...);
}
inline void wait_for_launch_ahead() {}

// Returns x, or a zero of its sign in place of a denormal number. Flushing makes reciprocal() NaN
// for 0, denormals and infinities, as it is on a device.
inline float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x; }
inline float fast_reciprocal(float x) { return flushed(1.0f / flushed(x)); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float fast_exp2(float x) { return flushed(exp2f(x)); }
template <class Acc>
Acc product(Acc a, Acc b) {
  return a * b;
}
template <class Word>
Word load_streaming(const Word* from) {
  return *from;
}
template <class T>
T* whole(T* pointer) {
  return pointer;
}
inline void assume(bool condition) {
  if (!condition) __builtin_unreachable();
}

#endif

// A Newton step halves the error of fast_reciprocal() where x and 1 / x are normal. __frcp_rn would
// call a function for denormals, which costs registers.
FUSEDOPS_DEVICE float reciprocal(float x) {
  const float y = fast_reciprocal(x);
  return fmaf(y, fmaf(-x, y, 1.0f), y);
}

}  // namespace device
}  // namespace fusedops
