// A stand-in for the CUDA runtime, so that host code which nvcc has compiled runs without a GPU.
//
// It has the functions that this code calls, and no others: a new one fails to link. Every launch
// is checked as the runtime and the device would: what a real launch refuses returns an error here.
// What the kernels need is told by Python, from their machine code. A stream keeps its work until
// it is synchronized, and then runs its kernels on the emulator of tests/simt.
//
// Where NVIDIA does not say which error a refused launch returns, the one here is a guess.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops.h"

using Work = std::function<cudaError_t()>;

struct CUstream_st {
  int device = 0;
  std::vector<Work> queue;  // since the last synchronization
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  std::vector<Work> captured;
};

struct CUgraph_st {
  std::vector<Work> works;
};

namespace {

// A device, as Python describes it.
struct Device {
  int major, minor;
  int shared_bytes;    // of a block, at most
  int cluster_blocks;  // of the largest cluster; 0 where clusters are refused
  int multiprocessors;
};

// The machine code of a kernel for one architecture, as Python reads it.
struct Code {
  int arch;  // 90
  int registers, static_shared_bytes, threads;
  int parameters;
  int parameter_bytes[8];
};

struct Kernel {
  std::string name;  // the mangled one
  std::vector<Code> codes;
  const void* emulated = nullptr;  // the kernel in the emulator's library
  std::string signature;
};

// What cudaFuncSetAttribute() has set for a kernel on a device.
struct FunctionState {
  int dynamic_shared_bytes;
  bool allows_large_clusters = false;
};

struct Launch {
  const void* function;
  dim3 grid, block;
  size_t dynamic_shared;
  cudaStream_t stream;
  void** parameters;
  unsigned cluster = 1;
  bool overlaps = false;  // the launch ahead in the stream
};

using Run =
    int(const void* kernel, const char* signature, void* const* parameters, const unsigned* grid,
        const unsigned* block, size_t dynamic_shared, unsigned cluster);
using Visitor = void(
    const char* kernel, int device, unsigned blocks, unsigned threads, size_t dynamic_shared,
    unsigned cluster, bool overlaps);

struct Record {
  const Kernel* kernel;
  int device;
  Launch launch;
};

// A mutex that ThreadSanitizer does not see, since this file is built without it: an order between
// threads that comes from here would hide that the package has none.
class HiddenMutex {
 public:
  void lock() {
    while (is_locked_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { is_locked_.clear(std::memory_order_release); }

 private:
  std::atomic_flag is_locked_;
};

struct State {
  HiddenMutex mutex;    // for all below
  std::mutex emulator;  // held while a kernel runs
  std::vector<Device> devices;
  std::map<std::string, Kernel> kernels;
  std::map<const void*, Kernel*> by_function;
  std::map<std::pair<const Kernel*, int>, FunctionState> function_states;
  std::vector<CUstream_st> default_streams;  // of each device
  std::set<cudaStream_t> streams;
  std::map<void*, size_t> allocations;  // and their bytes
  std::vector<Record> records;
  Run* run = nullptr;
  bool executes = true;
};

constexpr int kDefaultSharedBytes = 48 << 10;
constexpr int kRegisters = 65536, kRegisterUnit = 256, kWarpLanes = 32, kMaxThreads = 1024;
constexpr unsigned kPortableCluster = 8;
constexpr int kMostParameterBytes = 32764;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

// The call that is to fail, counted from the first one after that was asked for; 0: none.
std::atomic<int64_t> calls = 0, refused_call = 0;
std::atomic<cudaError_t> refusal = cudaSuccess;
std::atomic<const char*> refused_name = nullptr;

// Kernels register before main(), and unregister after it.
State& state() {
  static State* const only = new State;
  return *only;
}

// Runs a function of the runtime, unless this call is to be refused, and keeps its error.
template <class Body>
cudaError_t call(const char* name, Body body) {
  cudaError_t status;
  if (++calls == refused_call) {
    refused_name = name;
    status = refusal;
  } else {
    const std::lock_guard lock(state().mutex);
    status = body();
  }
  if (status != cudaSuccess) last_error = status;
  return status;
}

bool is_device(int device) {
  return device >= 0 && device < static_cast<int>(state().devices.size());
}

// --- functions -----------------------------------------------------------------------------------

Kernel* kernel_of(const void* function) {
  const auto found = state().by_function.find(function);
  return found == state().by_function.end() ? nullptr : found->second;
}

// The code that the current device runs: of its own major version, and no newer minor one.
const Code* code_of(const Kernel& kernel) {
  const Device& device = state().devices[current_device];
  const Code* best = nullptr;
  for (const Code& code : kernel.codes) {
    const bool runs = code.arch / 10 == device.major && code.arch % 10 <= device.minor;
    if (runs && (best == nullptr || code.arch > best->arch)) best = &code;
  }
  return best;
}

FunctionState& state_of(const Kernel& kernel, const Code& code) {
  const FunctionState at_first = {kDefaultSharedBytes - code.static_shared_bytes};
  const auto key = std::pair(&kernel, current_device);
  return state().function_states.try_emplace(key, at_first).first->second;
}

// Calls body(kernel, its code) for a function that the current device can run.
template <class Body>
cudaError_t with_code(const void* function, Body body) {
  const Kernel* const kernel = kernel_of(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  const Code* const code = code_of(*kernel);
  return code == nullptr ? cudaErrorNoKernelImageForDevice : body(*kernel, *code);
}

cudaError_t set_attribute(const Kernel& kernel, const Code& code, cudaFuncAttribute which, int to) {
  FunctionState& function = state_of(kernel, code);
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const int most = state().devices[current_device].shared_bytes - code.static_shared_bytes;
    if (to < 0 || to > most) return cudaErrorInvalidValue;
    function.dynamic_shared_bytes = to;
    return cudaSuccess;
  }
  if (which == cudaFuncAttributeNonPortableClusterSizeAllowed && code.arch >= 90) {
    function.allows_large_clusters = to != 0;
    return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

// --- checks of a launch --------------------------------------------------------------------------

uint64_t count(const dim3& size) { return uint64_t{size.x} * size.y * size.z; }

int round_up(int value, int step) { return (value + step - 1) / step * step; }

cudaError_t check_sizes(const Launch& launch) {
  const auto [grid, block] = std::pair(launch.grid, launch.block);
  const bool fits = count(grid) > 0 && grid.x <= 2147483647u && grid.y <= 65535 &&
      grid.z <= 65535 && count(block) > 0 && block.z <= 64 && count(block) <= kMaxThreads;
  return fits ? cudaSuccess : cudaErrorInvalidConfiguration;
}

cudaError_t check_registers(const Launch& launch, const Code& code) {
  const int threads = static_cast<int>(count(launch.block));
  const int warps = round_up(threads, kWarpLanes) / kWarpLanes;
  const int of_warp = round_up(code.registers * kWarpLanes, kRegisterUnit);
  const bool fits = threads <= code.threads && warps * of_warp <= kRegisters;
  return fits ? cudaSuccess : cudaErrorLaunchOutOfResources;
}

cudaError_t check_shared(const Launch& launch, const Code& code, const FunctionState& function) {
  const auto allowed = static_cast<size_t>(std::max(0, function.dynamic_shared_bytes));
  const size_t bytes = code.static_shared_bytes + launch.dynamic_shared;
  const auto most = static_cast<size_t>(state().devices[current_device].shared_bytes);
  return launch.dynamic_shared <= allowed && bytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t check_cluster(const Launch& launch, const Code& code, const FunctionState& function) {
  const Device& device = state().devices[current_device];
  const bool has_clusters = device.major >= 9 && code.arch >= 90;
  if (launch.overlaps && !has_clusters) return cudaErrorNotSupported;
  if (launch.cluster == 1) return cudaSuccess;
  if (!has_clusters) return cudaErrorNotSupported;
  const unsigned most = function.allows_large_clusters ? 16 : kPortableCluster;
  const bool fits = launch.cluster > 0 && launch.cluster <= most &&
      launch.cluster <= static_cast<unsigned>(device.cluster_blocks) &&
      launch.grid.x % launch.cluster == 0;
  return fits ? cudaSuccess : cudaErrorInvalidClusterSize;
}

cudaError_t check_parameters(const Code& code) {
  int bytes = 0;
  for (int i = 0; i < code.parameters; ++i) bytes += code.parameter_bytes[i];
  return bytes <= kMostParameterBytes ? cudaSuccess : cudaErrorLaunchOutOfResources;
}

// --- streams -------------------------------------------------------------------------------------

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

// The stream if it is one of the current device, else null.
CUstream_st* find_stream(cudaStream_t stream) {
  if (is_default(stream)) return &state().default_streams[current_device];
  const bool is_own = state().streams.count(stream) > 0 && stream->device == current_device;
  return is_own ? stream : nullptr;
}

bool is_capturing(const CUstream_st& stream) {
  return stream.capture != cudaStreamCaptureStatusNone;
}

// Work in the default stream waits for all others, which a capture cannot hold.
cudaError_t break_captures() {
  bool found = false;
  for (CUstream_st* stream : state().streams) {
    if (stream->device != current_device || !is_capturing(*stream)) continue;
    stream->capture = cudaStreamCaptureStatusInvalidated;
    found = true;
  }
  return found ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

// Whether work may be appended to a stream.
cudaError_t check_stream(cudaStream_t handle) {
  const CUstream_st* const stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (is_default(handle)) return break_captures();
  const bool is_broken = stream->capture == cudaStreamCaptureStatusInvalidated;
  return is_broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

// call() of a function that appends work to a stream, and of one that looks at a stream.
template <class Body>
cudaError_t call_in(cudaStream_t handle, const char* name, Body body) {
  return call(name, [&] {
    const cudaError_t status = check_stream(handle);
    return status == cudaSuccess ? body() : status;
  });
}
template <class Body>
cudaError_t call_of(cudaStream_t handle, const char* name, Body body) {
  return call(name, [&] {
    CUstream_st* const stream = find_stream(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(*stream);
  });
}

void append(cudaStream_t handle, Work work) {
  if (!state().executes) return;
  CUstream_st& stream = *find_stream(handle);
  (is_capturing(stream) ? stream.captured : stream.queue).push_back(std::move(work));
}

// Runs work until a part of it fails.
cudaError_t run_all(const std::vector<Work>& works) {
  const std::lock_guard lock(state().emulator);
  for (const Work& work : works) {
    if (const cudaError_t status = work(); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

// Device memory holds NaN before it is written and after it is freed, and its end is guarded.
constexpr size_t kGuardBytes = 4096;
constexpr char kGuard = 0x5A;

cudaError_t begin_allocation(char* memory, size_t bytes) {
  std::memset(memory, 0xFF, bytes);
  std::memset(memory + bytes, kGuard, kGuardBytes);
  return cudaSuccess;
}

cudaError_t end_allocation(char* memory, size_t bytes) {
  const char* const guard = memory + bytes;
  const bool is_whole = std::all_of(guard, guard + kGuardBytes, [](char c) { return c == kGuard; });
  std::memset(memory, 0xFF, bytes);
  return is_whole ? cudaSuccess : cudaErrorIllegalAddress;
}

// --- launches ------------------------------------------------------------------------------------

// The launch as work: with copies of its parameters, as the runtime makes them.
Work work_of(const Kernel& kernel, const Code& code, const Launch& launch) {
  std::vector<std::vector<max_align_t>> copies;
  for (int i = 0; i < code.parameters; ++i) {
    const auto bytes = static_cast<size_t>(code.parameter_bytes[i]);
    auto& copy = copies.emplace_back(bytes / sizeof(max_align_t) + 1);
    std::memcpy(copy.data(), launch.parameters[i], bytes);
  }
  return [&kernel, launch, copies = std::move(copies)]() mutable {
    std::vector<void*> parameters;
    for (auto& copy : copies) parameters.push_back(copy.data());
    const unsigned grid[] = {launch.grid.x, launch.grid.y, launch.grid.z};
    const unsigned block[] = {launch.block.x, launch.block.y, launch.block.z};
    return static_cast<cudaError_t>(state().run(
        kernel.emulated, kernel.signature.c_str(), parameters.data(), grid, block,
        launch.dynamic_shared, launch.cluster));
  };
}

cudaError_t enqueue(const Launch& launch) {
  return with_code(launch.function, [&](const Kernel& kernel, const Code& code) {
    const FunctionState& function = state_of(kernel, code);
    for (const cudaError_t status :
         {check_stream(launch.stream), check_sizes(launch), check_registers(launch, code),
          check_shared(launch, code, function), check_cluster(launch, code, function),
          check_parameters(code)}) {
      if (status != cudaSuccess) return status;
    }
    if (state().executes) state().records.push_back({&kernel, current_device, launch});
    append(launch.stream, work_of(kernel, code, launch));
    return cudaSuccess;
  });
}

cudaError_t read_attributes(const cudaLaunchConfig_t& config, Launch& launch) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      const auto& size = attribute.val.clusterDim;
      if (size.y != 1 || size.z != 1) return cudaErrorInvalidClusterSize;
      launch.cluster = size.x;
    } else if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      launch.overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
    } else {
      return cudaErrorInvalidValue;
    }
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

// --- what nvcc's own code calls ------------------------------------------------------------------

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(
    void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
    int*) {
  Kernel& kernel = state().kernels[name];
  kernel.name = name;
  state().by_function[function] = &kernel;
}

// It is called once for each kernel in a process, which no longer launches if that fails; that is
// nvcc's doing, so it is not refused.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return kernel_of(function) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

// nvcc makes a function for <<<>>> of every kernel. The package calls none of them: their errors
// come through cudaGetLastError() alone, where another error may stand.
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  std::abort();
}

// --- what the package calls ----------------------------------------------------------------------

cudaError_t cudaLaunchKernelExC(
    const cudaLaunchConfig_t* config, const void* function, void** parameters) {
  return call(__func__, [&] {
    Launch launch = {function,       config->gridDim, config->blockDim, config->dynamicSmemBytes,
                     config->stream, parameters};
    const cudaError_t status = read_attributes(*config, launch);
    return status == cudaSuccess ? enqueue(launch) : status;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return call(__func__, [&] {
    return with_code(function, [&](const Kernel& kernel, const Code& code) {
      const FunctionState& function = state_of(kernel, code);
      *attributes = {};
      attributes->sharedSizeBytes = code.static_shared_bytes;
      attributes->maxThreadsPerBlock = code.threads;
      attributes->numRegs = code.registers;
      attributes->ptxVersion = attributes->binaryVersion = code.arch;
      attributes->maxDynamicSharedSizeBytes = function.dynamic_shared_bytes;
      attributes->nonPortableClusterSizeAllowed = function.allows_large_clusters;
      return cudaSuccess;
    });
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  const cudaError_t status = call(__func__, [&] {
    return with_code(function, [&](const Kernel& kernel, const Code& code) {
      return set_attribute(kernel, code, which, value);
    });
  });
  std::this_thread::yield();  // to one that would launch with what was set for another launch
  return status;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call(__func__, [&] {
    *count = static_cast<int>(state().devices.size());
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call(__func__, [&] {
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return call(__func__, [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    const Device& of = state().devices[device];
    switch (which) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = of.major;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = of.shared_bytes;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = of.multiprocessors;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  return call_in(stream, __func__, [&] {
    if (posix_memalign(memory, 256, bytes + kGuardBytes) != 0) return cudaErrorMemoryAllocation;
    state().allocations[*memory] = bytes;
    append(
        stream, [at = static_cast<char*>(*memory), bytes] { return begin_allocation(at, bytes); });
    return cudaSuccess;
  });
}

// The memory itself is kept, because a graph may write to it again.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return call_in(stream, __func__, [&] {
    const auto found = state().allocations.find(memory);
    if (found == state().allocations.end()) return cudaErrorInvalidValue;
    const size_t bytes = found->second;
    state().allocations.erase(found);
    append(stream, [at = static_cast<char*>(memory), bytes] { return end_allocation(at, bytes); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return call_in(stream, __func__, [&] {
    append(stream, [=] { return std::memset(memory, value, bytes), cudaSuccess; });
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() {
  call(__func__, [] { return cudaSuccess; });
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorString(cudaError_t error) {
  static const std::map<cudaError_t, const char*> texts = {
      {cudaSuccess, "no error"},
      {cudaErrorMemoryAllocation, "out of memory"},
      {cudaErrorInvalidResourceHandle, "invalid resource handle"},
  };
  const auto found = texts.find(error);
  return found == texts.end() ? "another error" : found->second;
}

// --- what a program calls besides the package ----------------------------------------------------

cudaError_t cudaSetDevice(int device) {
  return call(__func__, [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call(__func__, [&] {
    *stream = new CUstream_st{current_device};
    state().streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  std::vector<Work> works;
  const cudaError_t status = call_of(handle, __func__, [&](CUstream_st& stream) {
    if (is_capturing(stream)) {
      stream.capture = cudaStreamCaptureStatusInvalidated;
      return cudaErrorStreamCaptureUnsupported;
    }
    works.swap(stream.queue);
    return cudaSuccess;
  });
  return status == cudaSuccess ? run_all(works) : status;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  return call_of(handle, __func__, [&](CUstream_st& stream) {
    if (is_default(handle)) return cudaErrorStreamCaptureUnsupported;
    stream.capture = cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call_of(handle, __func__, [&](CUstream_st& stream) {
    const auto was = std::exchange(stream.capture, cudaStreamCaptureStatusNone);
    *graph = new CUgraph_st{std::exchange(stream.captured, {})};
    return was == cudaStreamCaptureStatusActive ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call_of(handle, __func__, [&](const CUstream_st& stream) {
    *status = stream.capture;
    return cudaSuccess;
  });
}

// --- for tests -----------------------------------------------------------------------------------

// Sets the devices, and how the emulator runs a kernel.
void cudart_start(const Device* devices, int count, Run* run) {
  state().devices.assign(devices, devices + count);
  state().default_streams.resize(count);
  for (int i = 0; i < count; ++i) state().default_streams[i].device = i;
  state().run = run;
}

// Tells what the emulator has for a kernel, and the kernel's codes. False: nothing registered it.
bool cudart_describe(
    const char* name, const void* emulated, const char* signature, const Code* codes, int count) {
  const auto found = state().kernels.find(name);
  if (found == state().kernels.end()) return false;
  Kernel& kernel = found->second;
  kernel.emulated = emulated;
  kernel.signature = signature;
  kernel.codes.assign(codes, codes + count);
  return true;
}

int cudart_kernel_count() { return static_cast<int>(state().kernels.size()); }

// Whether launches are kept and run, or only checked.
void cudart_execute(bool executes) { state().executes = executes; }

// The n-th call from now on fails with an error.
void cudart_refuse(int64_t nth, int error) {
  refused_call = 0;
  refusal = static_cast<cudaError_t>(error);
  refused_name = nullptr;
  calls = 0;
  refused_call = nth;
}

// The call that was refused, or null.
const char* cudart_refused_name() { return refused_name; }

int64_t cudart_allocation_count() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int64_t>(state().allocations.size());
}

// Visits the launches since the last time.
void cudart_take_launches(Visitor* visit) {
  const std::lock_guard lock(state().mutex);
  for (const auto& [kernel, device, launch] : std::exchange(state().records, {})) {
    visit(
        kernel->name.c_str(), device, launch.grid.x, static_cast<unsigned>(count(launch.block)),
        launch.dynamic_shared, launch.cluster, launch.overlaps);
  }
}

// Appends a graph's work to a stream.
int cudart_launch_graph(cudaGraph_t graph, cudaStream_t stream) {
  return call_in(stream, __func__, [&] {
    append(stream, [graph] {
      for (const Work& work : graph->works) {
        if (const cudaError_t status = work(); status != cudaSuccess) return status;
      }
      return cudaSuccess;
    });
    return cudaSuccess;
  });
}

// The package's own functions for the launches that the C interface does not have.
int cudart_launch(int op, const void* args, void* stream) {
  return fusedops::with_op(
      op, args, [=](const auto& args) { return fusedops::cuda::launch(args, stream); });
}

int64_t cudart_workspace_bytes(int op, const void* args) {
  return fusedops::workspace_bytes_of(op, args);
}

// Launches many times, without Python between, in so many threads that begin at the same time.
// Returns how many times that failed in this one.
int64_t cudart_launch_many(int op, const void* args, int64_t times, int threads) {
  static std::atomic<int> waiting = 0;
  for (++waiting; waiting % threads != 0;) std::this_thread::yield();
  int64_t failed = 0;
  for (int64_t i = 0; i < times; ++i) failed += cudart_launch(op, args, nullptr) != 0;
  return failed;
}

}  // extern "C"
