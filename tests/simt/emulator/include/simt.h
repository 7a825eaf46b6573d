// The emulator as kernels and launches see it. Every CUDA thread is a fiber of one OS thread.
//
// Contract: a launch runs to its end before launch() returns. A kernel that breaks CUDA's rules (a
// barrier that not every thread reaches, a mask that names a lane which is elsewhere, a store to a
// block that may have exited) ends the launch with kLaunchFailure; error() names the thread and the
// line.
// Numerics are the host's. Shared memory is aligned to 16 bytes and no further, as device.h asks.
// Memory ordering: barriers of a block, mbarriers, __syncwarp, atomics and the launch order
// accesses; shuffles and the barriers of clusters, whose arrivals are relaxed, do not, as in CUDA.
// Only a build with ThreadSanitizer sees what is not ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <typeinfo>

#include "cuda_types.h"

namespace simt {

// Where in a kernel a thread waits. All functions that wait have it as a default argument.
using Site = std::source_location;
#define SIMT_HERE ::simt::Site site = ::simt::Site::current()

inline constexpr int kSuccess = 0;
inline constexpr int kInvalidConfiguration = 9;    // cudaErrorInvalidConfiguration
inline constexpr int kInvalidDeviceFunction = 98;  // cudaErrorInvalidDeviceFunction
inline constexpr int kLaunchFailure = 719;         // cudaErrorLaunchFailure

enum class Order { kFifo, kLifo, kRandom };

struct Config {
  Order threads = Order::kFifo;  // which of the ready threads runs next
  Order blocks = Order::kFifo;   // kLifo: the last block first
  unsigned seed = 1;
  // What shared memory holds at first. 0xFF makes NaNs, which max() ignores; 0x7F makes 3.4e38.
  uint8_t poison = 0xFF;
  bool concurrent_blocks = false;  // several at a time, or one after the other
  bool late_stores = true;         // asynchronous stores happen late, or when issued
  bool dry = false;                // launches are recorded, not run
  unsigned cluster_limit = 16;     // larger ones are refused, as a part of a GPU may
  int64_t max_grid = 2147483647;
  int64_t max_shared_bytes = 227 << 10;  // of a block, as on sm_90
  int64_t multiprocessors = 132;
};
extern Config config;
extern bool has_clusters;  // whether the device has them

struct Launch {
  const void* kernel;
  dim3 grid, block;
  size_t dynamic_shared = 0;
  unsigned cluster = 1;  // blocks
};

int launch(const Launch& launch, const std::function<void()>& thread);
const char* error();  // of the last launch that failed

// The launches of a kernel since the program began.
struct Record {
  uint64_t launches = 0;  // that ran
  unsigned threads = 0;   // of its largest block
  uint64_t latest = 0;    // the value of launch_count() after the last of them
};
uint64_t launch_count();  // of all kernels, dry ones too
void for_each_record(const std::function<void(const void* kernel, const Record&)>& visit);
const Launch& last_launch();

// Calls a kernel with parameters at these addresses. Every type of kernel that is launched anywhere
// has such a function, found by the types of its parameters: "(fusedops::SoftmaxForward, long)".
using KernelCall = void (*)(const void* kernel, void* const* parameters);
bool remember_call(const std::type_info& kernel_type, KernelCall call);  // returns true
KernelCall find_call(const char* signature);                             // or null

// The running thread.
struct View {
  uint3 thread, block;
  dim3 block_size, grid_size;
  unsigned lane, cluster_rank, cluster_size;
};
extern View* self;

[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(Site site, const char* format, ...);

void block_barrier(Site site);  // __syncthreads()
// The halves of a cluster barrier, which orders no memory. All threads arrive at one place and wait
// at one place.
void cluster_arrive(Site site);
void cluster_wait(Site site);

// A collective of the lanes of `mask`. A shuffle returns the value of lane `source`.
enum class WarpOp { kShuffle, kSync };
uint64_t warp_collective(WarpOp op, uint32_t mask, uint64_t value, unsigned source, Site site);

void* shared_array(const void* identity, size_t bytes, size_t alignment, Site site);
void* dynamic_shared();

// mbarrier.
void barrier_init(uint64_t* barrier, unsigned arrivals, Site site);
void barrier_arrive_expecting(uint64_t* barrier, size_t bytes, Site site);
void barrier_wait(uint64_t* barrier, bool parity, Site site);

// st.async: stores `bytes` (4 or 8) of `value` at the address of `own` in the block of that rank,
// and counts them at the mbarrier at the address of `own_barrier` there.
void store_async(
    void* own, uint64_t value, size_t bytes, uint64_t* own_barrier, unsigned rank, Site site);

}  // namespace simt
