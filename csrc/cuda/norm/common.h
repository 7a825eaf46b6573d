// The parts of a norm that its forward and backward kernels have in common, and all that the kinds
// of norms differ in: rstd_of() and means_of().
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

// Whether the norm is of a sum, whose gradients are added or handed on.
inline bool adds(const NormBackward& args) { return args.grad_sum.data || args.grad_branch.data; }

// One vector of the factors of a row: weight + weight_offset, or 1 where there is no weight.
template <class W, int kWidth, class Acc, class Args>
FUSEDOPS_DEVICE void load_weight(Acc (&values)[kWidth], const Args& args, int64_t column) {
  const void* const data = args.weight.data;
  const auto vector = data ? Vec<W, kWidth>::load_cached(static_cast<const W*>(data) + column)
                           : Vec<W, kWidth>::filled(1);
  const Acc offset = data ? static_cast<Acc>(args.weight_offset) : Acc(0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j) + offset;
}

// Whether a weight or bias is float beside 16-bit rows. Weight and bias have the same dtype.
template <class T>
FUSEDOPS_DEVICE bool is_wider(const ConstColumns& parameter) {
  return sizeof(T) == 2 && parameter.dtype == DType::kFloat32;
}

// Calls body with a value of the type of a branch, or of its gradient, beside rows of T: T or,
// beside floats, one of 16 bits. All threads of a launch take the same turn.
template <class T, class Body>
FUSEDOPS_DEVICE void with_branch(DType dtype, Body body) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::kBFloat16) return body(BFloat16{});
    if (dtype == DType::kFloat16) return body(Half{});
  }
  body(T{});
}

// --- what the kinds differ in -------------------------------------------------------------------

// sum / count, corrected by the remainder. With the rounded 1 / count alone every row would have
// the same error, half of that of rstd.
template <class Acc>
FUSEDOPS_DEVICE Acc mean_of(Acc sum, Acc count) {
  const Acc inverse = device::reciprocal(count), mean = sum * inverse;
  return device::fma(device::fma(-mean, count, sum), inverse, mean);
}

// Within 0.6 ulp: a Newton step on an rsqrt() that may be 2 ulp off. It pays because every value of
// a row has the error of its rstd.
template <class Acc>
FUSEDOPS_DEVICE Acc exact_rsqrt(Acc x) {
  const Acc y = device::rsqrt(x), product = x * y, low = device::fma(x, y, -product);
  const Acc rest = device::fma(-low, y, device::fma(-product, y, Acc(1)));
  return rest == rest ? device::fma(y * Acc(0.5), rest, y) : y;  // y for 0, infinity and NaN
}

// Within 0.6 ulp: the same step on x * rsqrt(x).
template <class Acc>
FUSEDOPS_DEVICE Acc exact_root(Acc x) {
  const Acc y = device::rsqrt(x), near = x * y;
  const Acc root = device::fma(y * Acc(0.5), device::fma(-near, near, x), near);
  return root == root ? root : x;  // x for 0, infinity and NaN
}

// rstd from the sum of squared deviations.
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

// The means of g and g * n. For StdNorm std * rstd = 1 - eps * rstd: where std is small beside eps,
// rounding may be all that is left of it, but then the second mean adds as little to the gradient;
// where std is 0 it adds 0.
// For L2Norm the second is a sum, and 0 where the norm is below eps: rstd, computed as in
// rstd_of(), is then the largest that there is.
template <class Acc>
FUSEDOPS_DEVICE Pair<Acc> means_of(
    const NormBackward& args, Pair<Acc> sums, Acc inverse_cols, Acc rstd) {
  Acc factor = inverse_cols;
  if (args.kind == NormKind::kStd) {
    const Acc std_rstd = device::fma(-static_cast<Acc>(args.eps), rstd, Acc(1));
    factor = std_rstd > 0 ? device::reciprocal(static_cast<Acc>(args.cols - 1) * std_rstd) : Acc(0);
  }
  if (args.kind == NormKind::kL2) {
    factor = rstd < device::reciprocal(static_cast<Acc>(args.eps)) ? Acc(1) : Acc(0);
  }
  return {has_mean(args) ? sums.first * inverse_cols : Acc(0), sums.second * factor};
}

}  // namespace fusedops::cuda
