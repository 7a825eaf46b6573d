// Registers the operators' kernels for a device.
#pragma once

#include <torch/csrc/stable/library.h>

#define OPERATOR_HEADERS
#include "ops/operators.def"
#undef OPERATOR_HEADERS

// `key` is the device's dispatch key, and `Launcher` launches kernels on the device.
#define FUSEDOPS_REGISTER(key, Launcher) \
  STABLE_TORCH_LIBRARY_IMPL(fusedops, key, m) { fusedops::Kernels<Launcher>::add_to(m); }

namespace fusedops {

template <class Launcher>
struct Kernels {
  using Softmax = SoftmaxOps<Launcher, /*kLog=*/false>;
  using LogSoftmax = SoftmaxOps<Launcher, /*kLog=*/true>;
  template <NormKind kKind>
  using Norm = NormOps<Launcher, kKind, Sizes>;
  template <NormKind kKind>
  using SpatialNorm = NormOps<Launcher, kKind, int64_t>;

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
