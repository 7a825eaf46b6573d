// A stand-in for libtorch_cuda, beside a torch that is built for the CPU alone: it gives torch the
// devices of the stand-in for the runtime, and tensors there, whose memory is the host's. With it
// the operators of csrc/cuda/register_cuda.cpp run. All other operators run on the CPU.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

namespace {

c10::DeviceIndex current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return static_cast<c10::DeviceIndex>(device);
}

std::map<int, void*> current_streams;  // of each device; null is the default one

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device getDevice() const override { return {at::kCUDA, current_device()}; }
  void uncheckedSetDevice(c10::Device to) const noexcept override { cudaSetDevice(to.index()); }
  void setDevice(c10::Device to) const override { uncheckedSetDevice(to); }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Stream getStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return getStream(to.device()); }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    cudaGetDeviceCount(&count);
    return static_cast<c10::DeviceIndex>(count);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// New memory holds NaN. None is freed, because work that a stream has not done yet may use it.
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, 256, bytes + 1) == 0);
    std::memset(memory, 0xFF, bytes);
    return {memory, memory, /*deleter=*/[](void*) {}, {at::kCUDA, current_device()}};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
} memory;

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);
template <class T>
using Maybe = std::optional<T>;

at::Tensor empty(
    at::IntArrayRef sizes, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<at::Device> device,
    Maybe<bool>, Maybe<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &memory, kCuda, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes, at::IntArrayRef strides, Maybe<at::ScalarType> dtype, Maybe<at::Layout>,
    Maybe<at::Device> device, Maybe<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      sizes, strides, &memory, kCuda, dtype.value_or(at::kFloat));
}

// Returns the tensor's memory as a tensor of the CPU, once its device's stream has no work left.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const c10::DeviceGuard guard(tensor.device());
  TORCH_CHECK(
      cudaStreamSynchronize(static_cast<cudaStream_t>(current_streams[tensor.get_device()])) == 0);
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

// The fallback to the CPU brings back with it what an operator has written in place.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return at::Tensor(to).copy_(from);
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

}  // namespace

extern "C" {

// torch would make a guard for the accelerator that it was built for.
int32_t aoti_torch_create_device_guard(int32_t device, c10::DeviceGuard** guard) {
  *guard = new c10::DeviceGuard(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return 0;
}
int32_t aoti_torch_delete_device_guard(c10::DeviceGuard* guard) {
  delete guard;
  return 0;
}

int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  *stream = current_streams[device];
  return 0;
}

int32_t torch_c10_cuda_check_msg(
    int32_t error, const char*, const char*, uint32_t, bool, char** message) {
  const std::string text = cudaGetErrorString(static_cast<cudaError_t>(error));
  *message = error == cudaSuccess ? nullptr : strdup(("CUDA error: " + text).c_str());
  return 0;
}
void torch_c10_cuda_free_error_msg(char* message) { std::free(message); }

void cudart_use_stream(int device, void* stream) { current_streams[device] = stream; }

}  // extern "C"
