// Launches CPU kernels over rows, in parallel. It does not need torch: parallel.h provides the
// threads.
#pragma once

#include "fusedops/args.h"

namespace fusedops {

struct CpuLauncher {
  static constexpr bool kReadsRuns = true;  // RowSpacing

  void launch(const SoftmaxForward& args) const;
  void launch(const SoftmaxBackward& args) const;
  void launch(const SpatialSoftmaxForward& args) const;
  void launch(const SpatialSoftmaxBackward& args) const;
  void launch(const MaskedSoftmaxForward& args) const;
  void launch(const MaskedSoftmaxBackward& args) const;
  void launch(const NormForward& args) const;
  void launch(const NormBackward& args) const;
  void launch(const SoftmaxStatistics& args) const;
  void launch(const SoftmaxApply& args) const;
  void launch(const SoftmaxStack& stack) const;
  void launch(const NormStack& stack) const;
  void launch(const NormStackBackward& stack) const;

  int64_t workspace_bytes(const SoftmaxForward&) const { return 0; }
  int64_t workspace_bytes(const SoftmaxBackward&) const { return 0; }
  int64_t workspace_bytes(const SoftmaxStatistics&) const { return 0; }
  int64_t workspace_bytes(const NormForward&) const { return 0; }
  int64_t workspace_bytes(const NormBackward& args) const;
  int64_t workspace_bytes(const SoftmaxStack&) const { return 0; }
  int64_t workspace_bytes(const NormStack&) const { return 0; }
  int64_t workspace_bytes(const NormStackBackward& stack) const {
    return workspace_bytes(stack.each);
  }
};

}  // namespace fusedops
