// Calls kernels of libfusedops.so from the C++ code that Inductor generates, into which
// kernel_calls.py copies this text, followed by a function for each op that the code calls.
//
// A kernel takes its arguments from a stack of 64-bit values, as the dispatcher passes them to it
// (torch/csrc/stable). value() makes such a value of an argument as Inductor writes it, with the
// types of a C shim; the kernel takes ownership of it.
//
// A program that computes constants when it is loaded has this text twice, in one file.
#ifndef FUSEDOPS_KERNEL_CALLS
#define FUSEDOPS_KERNEL_CALLS

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace fusedops_kernels {

using Kernel = void(StableIValue*, uint64_t, uint64_t);
// Shows a call to torch's profiler while it lives, as the dispatcher does.
using Record = torch::aot_inductor::RAIIAtenRecordFunctionHandle;

inline void check(AOTITorchError error) {
  if (error != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("fusedops: torch failed to pass a tensor or a list to a kernel");
  }
}

// Returns the kernel of an op. The library is in the process already: `import fusedops` loads it,
// and a C++ program links it.
inline Kernel* find(const char* op) {
  static void* const library = dlopen("libfusedops.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    throw std::runtime_error(
        "fusedops: this program calls kernels of libfusedops.so, which is not loaded; import "
        "fusedops, or link fusedops::fusedops");
  }
  using Find = Kernel*(const char*);
  auto* const function = reinterpret_cast<Find*>(dlsym(library, "fusedops_cpu_kernel"));
  Kernel* const kernel = function == nullptr ? nullptr : function(op);
  if (kernel == nullptr) {
    throw std::runtime_error(
        std::string("fusedops: libfusedops.so has no ") + op +
        "; compile the program again, with the installed version of fusedops");
  }
  return kernel;
}

template <class T>
StableIValue value(T number) {
  StableIValue result = 0;
  std::memcpy(&result, &number, sizeof(number));
  return result;
}

inline StableIValue value(AtenTensorHandle tensor) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_new_tensor_handle(tensor, &handle));
  return reinterpret_cast<StableIValue>(handle);
}

// An optional argument, which is absent if the pointer is null.
template <class T>
StableIValue value(const T* pointer) {
  return pointer == nullptr ? 0 : reinterpret_cast<StableIValue>(new StableIValue(value(*pointer)));
}

// A list of numbers or tensors.
template <class T>
StableIValue value(const T* elements, int64_t count) {
  StableListHandle list = nullptr;
  check(torch_new_list_reserve_size(count, &list));
  for (int64_t i = 0; i < count; ++i) check(torch_list_push_back(list, value(elements[i])));
  return reinterpret_cast<StableIValue>(list);
}

// Stores a result, or deletes it if the pointer is null, since nothing uses it then.
inline void give(StableIValue result, AtenTensorHandle* pointer) {
  const auto tensor = reinterpret_cast<AtenTensorHandle>(result);
  if (pointer == nullptr) {
    check(aoti_torch_delete_tensor_object(tensor));
  } else {
    *pointer = tensor;
  }
}

}  // namespace fusedops_kernels

#endif  // FUSEDOPS_KERNEL_CALLS
