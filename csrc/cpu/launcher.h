// Launches CPU kernels over rows, in parallel. Launches do not need torch, unless their library
// links the implementation of threads/parallel.h that uses torch's threads.
#pragma once

#include "args.h"

namespace fusedops {

struct CpuLauncher {
  static constexpr bool kReadsRuns = true;  // rows may form runs (RowSpacing)

#define LAUNCH(Args) void launch(const Args& args) const;
#include "launches.def"
#undef LAUNCH

  // Only the backward of norms has a workspace, for the sums over rows.
  template <class Args>
  int64_t workspace_bytes(const Args&) const {
    return 0;
  }
  int64_t workspace_bytes(const NormBackward& args) const;
  int64_t workspace_bytes(const SpatialNormBackward& args) const;
  int64_t workspace_bytes(const NormStackBackward& stack) const {
    return workspace_bytes(stack.each);
  }
};

}  // namespace fusedops
