// What the libraries of the C interface differ in: each links one implementation of Device.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "fusedops/args.h"
#include "fusedops/c_api.h"

namespace fusedops::c_api {

// Leaves the interface as its status, and as fusedops_last_error().
struct Failure {
  fusedops_status status;
  std::string what;
};

// Where the arrays are and the work goes. Whatever fails throws a Failure or std::bad_alloc.
class Device {
 public:
  explicit Device(void* stream);

  void launch(const MaskedSoftmaxForward& args) const;
  void launch(const SoftmaxBackward& args) const;
  void launch(const NormForward& args) const;
  void launch(const NormBackward& args) const;

  int64_t workspace_bytes(const SoftmaxBackward& args) const;
  int64_t workspace_bytes(const NormForward& args) const;
  int64_t workspace_bytes(const NormBackward& args) const;

  void* allocate(int64_t bytes) const;
  void release(void* memory) const noexcept;
  void clear(float* values, int64_t count) const;

  // Each in its place.
  void rstd_to_variance(float* values, int64_t count) const;
  void variance_to_rstd(const float* variances, float* rstd, int64_t count) const;

 private:
  void* stream_;
};

// Squared last: 1 / rstd^2 would overflow where the variance is a denormal.
FUSEDOPS_HOST_DEVICE inline float variance_of(float rstd) {
  const float deviation = 1.0f / rstd;
  return deviation * deviation;
}
FUSEDOPS_HOST_DEVICE inline float rstd_of(float variance) { return 1.0f / sqrtf(variance); }

}  // namespace fusedops::c_api
