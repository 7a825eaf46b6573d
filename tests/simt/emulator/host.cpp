// The C interface that Python drives: device memory, launches through the shipped host code, and
// records of what was launched.
#include <cxxabi.h>
#include <dlfcn.h>
#include <sanitizer/asan_interface.h>
#include <algorithm>
#include <cstdlib>

#include "ops.h"
#include "simt.h"

namespace {

using namespace fusedops;

// The length of what a softmax or norm reduces over.
template <class Args>
int64_t& length_of(Args& args) {
  if constexpr (requires { args.each; }) {
    return args.each.cols;
  } else if constexpr (requires { args.outer; }) {
    return args.dim_size;
  } else {
    return args.cols;
  }
}

// A workspace for dry launches, of any size: it is never used.
template <class Args>
void pretend_workspace(Args& args) {
  if constexpr (requires { args.workspace_bytes; }) args.workspace_bytes = INT64_MAX;
  if constexpr (requires { args.each.workspace; }) args.each.workspace = &args;
  if constexpr (requires { args.workspace; }) args.workspace = &args;
}

// The kernel of a launch and the shape of its blocks, as far as a kernel depends on it: how many
// lanes of a warp share a row, or that whole warps do.
struct Shape {
  const void* kernel;
  unsigned lanes, rows;
  bool operator==(const Shape&) const = default;
};

Shape last_shape() {
  const simt::Launch& last = simt::last_launch();
  return {last.kernel, std::min(last.block.x, 33u), last.block.y};
}

constexpr size_t kBaseAlignment = 256;  // as cudaMalloc's

}  // namespace

extern "C" {

// Allocates exactly `bytes`, at `misalignment` (less than 256) behind a multiple of 256.
void* simt_allocate(size_t bytes, size_t misalignment) {
  void* base = nullptr;
  if (posix_memalign(&base, kBaseAlignment, misalignment + bytes) != 0) return nullptr;
  ASAN_POISON_MEMORY_REGION(base, misalignment);
  return static_cast<char*>(base) + misalignment;
}

void simt_free(void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  free(reinterpret_cast<void*>(address / kBaseAlignment * kBaseAlignment));
}

void simt_configure(const simt::Config* config) { simt::config = *config; }
void simt_use_clusters(bool use) { simt::has_clusters = use; }
const char* simt_error() { return simt::error(); }

int simt_launch(int op, const void* args) {
  return with_op(op, args, [](const auto& args) { return cuda::launch(args, nullptr); });
}

int64_t simt_workspace_bytes(int op, const void* args) { return workspace_bytes_of(op, args); }

// Runs a kernel of this library, given as CUDA's runtime gets it: by its address and those of its
// parameters. `signature` has their types: "(fusedops::SoftmaxForward, long)".
int simt_launch_kernel(
    const void* kernel, const char* signature, void* const* parameters, const unsigned* grid,
    const unsigned* block, size_t dynamic_shared, unsigned cluster) {
  const simt::KernelCall call = simt::find_call(signature);
  if (call == nullptr) return simt::kInvalidDeviceFunction;
  const simt::Launch configuration{
      kernel, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), dynamic_shared,
      cluster};
  return simt::launch(configuration, [=] { call(kernel, parameters); });
}

// Launches rows of step, 2 * step, ... up to `last` elements, dry. Writes the lengths after which
// the Shape changes, and returns their number; -1 where a launch fails.
int64_t simt_launch_lengths(
    int op, const void* args, int64_t step, int64_t last, int64_t* found, int64_t capacity) {
  return with_op(op, args, [&](auto args) -> int64_t {
    int64_t count = 0;
    Shape before = {};
    int64_t& length = length_of(args);
    pretend_workspace(args);
    for (length = step; length <= last; length += step) {
      if (cuda::launch(args, nullptr) != 0) return -1;
      const Shape now = last_shape();
      if (length > step && !(now == before) && count < capacity) found[count++] = length - step;
      before = now;
    }
    return count;
  });
}

// The blocks of a cluster, and the dynamic shared memory, of the last launch, dry or not.
unsigned simt_last_cluster() { return simt::last_launch().cluster; }
int64_t simt_last_shared_bytes() {
  return static_cast<int64_t>(simt::last_launch().dynamic_shared);
}

using Visitor = void(const char* kernel, uint64_t launches, unsigned threads);

uint64_t simt_launch_count() { return simt::launch_count(); }

// The records of the kernels that were launched since simt_launch_count() was `after`. To find the
// names of all takes milliseconds.
void simt_records(uint64_t after, Visitor* visit) {
  simt::for_each_record([&](const void* kernel, const simt::Record& record) {
    if (record.latest <= after) return;
    Dl_info info = {};
    dladdr(kernel, &info);
    char* const name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr);
    visit(name, record.launches, record.threads);
    free(name);
  });
}

}  // extern "C"
