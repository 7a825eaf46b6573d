// Registers the operators' kernels for a device.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string_view>

#define OPERATOR_HEADERS
#include "ops/operators.def"
#undef OPERATOR_HEADERS

// `key` is the device's dispatch key, and `Launcher` launches kernels on the device.
#define FUSEDOPS_REGISTER(key, Launcher) \
  STABLE_TORCH_LIBRARY_IMPL(fusedops, key, m) { fusedops::Kernels<Launcher>::add_to(m); }

namespace fusedops {

// A kernel as the dispatcher calls it: it takes its arguments from a stack, and leaves its results
// there. The numbers are those of arguments and results.
using BoxedKernel = void(StableIValue*, uint64_t, uint64_t);

// Takes the place of a library to which kernels are added, and keeps that of one operator.
struct KernelOf {
  std::string_view op;
  BoxedKernel* kernel = nullptr;

  void impl(const char* name, BoxedKernel* added) {
    if (name == op) kernel = added;
  }
};

template <class Launcher>
struct Kernels {
  using Softmax = SoftmaxOps<Launcher, /*kLog=*/false>;
  using LogSoftmax = SoftmaxOps<Launcher, /*kLog=*/true>;
  template <NormKind kKind>
  using Norm = NormOps<Launcher, kKind, Sizes>;
  template <NormKind kKind>
  using SpatialNorm = NormOps<Launcher, kKind, int64_t>;

  // Returns the kernel of an operator, or null if there is none of that name.
  static BoxedKernel* find(std::string_view op) {
    KernelOf found{op};
    add_to(found);
    return found.kernel;
  }

  template <class Library>
  static void add_to(Library& m) {
#define OPERATOR(name, function, schema) m.impl(#name, TORCH_BOX(&function));
#define OPERATOR_WITH_VARIANT(name, function, schema) \
  m.impl(#name, TORCH_BOX(&function));                \
  m.impl("_" #name, TORCH_BOX(&function));
#include "ops/operators.def"
#undef OPERATOR
#undef OPERATOR_WITH_VARIANT
  }
};

}  // namespace fusedops
