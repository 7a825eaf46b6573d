// The launches of launches.def by number, for Python: in their order in that list.
#pragma once

#include <cstdlib>

#include "cuda/launch/launch.h"

namespace fusedops {

enum Op {
#define LAUNCH(Args) k##Args,
#include "launches.def"
#undef LAUNCH
};

// Calls f with the arguments as the type of that op; aborts where there is no such op.
template <class F>
auto with_op(int op, const void* args, F f) {
  switch (op) {
#define LAUNCH(Args) \
  case k##Args:      \
    return f(*static_cast<const Args*>(args));
#include "launches.def"
#undef LAUNCH
    default:
      std::abort();
  }
}

// 0 for an op without a workspace.
inline int64_t workspace_bytes_of(int op, const void* args) {
  return with_op(op, args, [](const auto& args) -> int64_t {
    if constexpr (requires { cuda::workspace_bytes(args); }) {
      return cuda::workspace_bytes(args);
    } else {
      return 0;
    }
  });
}

}  // namespace fusedops
