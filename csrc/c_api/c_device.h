// Declares the device of the C interface. Each library of the interface links one implementation.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "args.h"
#include "fusedops/c_api.h"

namespace fusedops::c_api {

// Describes an error, and is thrown for it. The interface returns `status`, and `what` through
// fusedops_last_error().
struct Failure {
  fusedops_status status;
  std::string what;
};

// Represents the device in whose memory the arrays are. It works on them in the order of its
// stream, and throws all errors as Failure or std::bad_alloc.
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
  // Sets `count` values to 0.
  void clear(float* values, int64_t count) const;

  // These two functions convert, element by element, between variance + eps and rstd, which is 1 /
  // sqrt(variance + eps). rstd_to_variance() does so in place.
  void rstd_to_variance(float* values, int64_t count) const;
  void variance_to_rstd(const float* variances, float* rstd, int64_t count) const;

 private:
  void* stream_;
};

// Returns variance + eps, from which rstd was computed. It squares the reciprocal of rstd, and not
// rstd itself, whose square overflows if the variance is below 2^-128.
FUSEDOPS_HOST_DEVICE inline float variance_of(float rstd) {
  const float deviation = 1.0f / rstd;
  return deviation * deviation;
}
FUSEDOPS_HOST_DEVICE inline float rstd_of(float variance) { return 1.0f / sqrtf(variance); }

}  // namespace fusedops::c_api
