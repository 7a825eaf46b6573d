// Contains what the forward and backward kernels of norms share. Only has_mean(), rstd_of() and
// means_of() depend on the kind of norm.
#pragma once

#include "args.h"
#include "cuda/block/device.h"
#include "cuda/block/reduce.h"
#include "cuda/block/vec.h"

namespace fusedops::cuda {

template <class Args>
FUSEDOPS_DEVICE bool has_mean(const Args& args) {
  return fusedops::has_mean(args.kind);
}

// Returns whether the gradient takes the kernels for a norm with a residual: those that read
// grad_sum and write grad_branch.
inline bool adds(const NormBackward& args) { return args.grad_sum.data || args.grad_branch.data; }

// Loads one vector of a row's factors: weight + weight_offset, or 1 if there is no weight.
template <class W, int kWidth, class Acc, class Args>
FUSEDOPS_DEVICE void load_weight(Acc (&values)[kWidth], const Args& args, int64_t column) {
  const void* const data = args.weight.data;
  const auto vector = data ? Vec<W, kWidth>::load_cached(static_cast<const W*>(data) + column)
                           : Vec<W, kWidth>::filled(1);
  const Acc offset = data ? static_cast<Acc>(args.weight_offset) : Acc(0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j) + offset;
}

// Returns whether `parameter`, a weight or bias, is float beside 16-bit rows of T.
template <class T>
FUSEDOPS_DEVICE bool is_wider(const ConstColumns& parameter) {
  return sizeof(T) == 2 && parameter.dtype == DType::kFloat32;
}

// --- what the kinds differ in -------------------------------------------------------------------

// Returns sum / count, corrected by the remainder. The rounded 1 / count alone would give every row
// the same relative error, and rstd half of it.
template <class Acc>
FUSEDOPS_DEVICE Acc mean_of(Acc sum, Acc count) {
  const Acc inverse = device::reciprocal(count), mean = sum * inverse;
  return device::fma(device::fma(-mean, count, sum), inverse, mean);
}

// Returns 1 / sqrt(x) within 0.6 ulp: a Newton step corrects rsqrt(), which may be 2 ulp off. The
// step pays because an error of rstd is in every value of its row.
template <class Acc>
FUSEDOPS_DEVICE Acc exact_rsqrt(Acc x) {
  const Acc y = device::rsqrt(x), product = x * y, low = device::fma(x, y, -product);
  const Acc rest = device::fma(-low, y, device::fma(-product, y, Acc(1)));
  return rest == rest ? device::fma(y * Acc(0.5), rest, y) : y;  // y for 0, infinity and NaN
}

// Returns sqrt(x) within 0.6 ulp, by the same Newton step on x * rsqrt(x).
template <class Acc>
FUSEDOPS_DEVICE Acc exact_root(Acc x) {
  const Acc y = device::rsqrt(x), near = x * y;
  const Acc root = device::fma(y * Acc(0.5), device::fma(-near, near, x), near);
  return root == root ? root : x;  // x for 0, infinity and NaN
}

// Returns a row's rstd by the formula of its kind (norm_kinds.def). `squares` is the sum of the
// squared deviations from the mean, or of the squares themselves where the kind has no mean.
template <class Acc>
FUSEDOPS_DEVICE Acc rstd_of(const NormForward& args, Acc squares) {
  const auto eps = static_cast<Acc>(args.eps), cols = static_cast<Acc>(args.cols);
  if (args.kind == NormKind::kL2) {
    const Acc norm = exact_root(squares);
    return device::reciprocal(norm < eps ? eps : norm);
  }
  const Acc count = args.kind == NormKind::kStd ? cols - 1 : cols;
  const Acc variance = mean_of(squares, count);
  if (args.kind == NormKind::kStd) return device::reciprocal(exact_root(variance) + eps);
  return exact_rsqrt(variance + eps);
}

// Returns the means of g (0 if the kind has no mean) and of g * n (backward.h).
// StdNorm divides the sum of g * n by (cols - 1) * std * rstd, where std * rstd is 1 - eps * rstd.
// If std is much smaller than eps, only rounding errors may be left of that difference. They do no
// harm: n is then tiny, and n * (second mean) negligible beside g. Where the difference is not
// positive, the second mean is 0.
// For L2Norm the second mean is the sum of g * n, or 0 where the norm is at most eps: there rstd
// has its largest value, reciprocal(eps) (rstd_of). In float, reciprocal() of an eps of 0 or of a
// denormal is NaN; the comparison is then false, and the sum stays.
template <class Acc>
FUSEDOPS_DEVICE Pair<Acc> means_of(
    const NormBackward& args, Pair<Acc> sums, Acc inverse_cols, Acc rstd) {
  Acc factor = inverse_cols;
  if (args.kind == NormKind::kStd) {
    const Acc std_rstd = device::fma(-static_cast<Acc>(args.eps), rstd, Acc(1));
    factor = std_rstd > 0 ? device::reciprocal(static_cast<Acc>(args.cols - 1) * std_rstd) : Acc(0);
  }
  if (args.kind == NormKind::kL2) {
    factor = rstd >= device::reciprocal(static_cast<Acc>(args.eps)) ? Acc(0) : Acc(1);
  }
  return {has_mean(args) ? sums.first * inverse_cols : Acc(0), sums.second * factor};
}

}  // namespace fusedops::cuda
