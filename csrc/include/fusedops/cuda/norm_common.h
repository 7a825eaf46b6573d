// The parts of a norm that its forward and backward kernels have in common.
#pragma once

#include "fusedops/args.h"
#include "fusedops/cuda/vec.h"
#include "fusedops/device.h"

namespace fusedops::cuda {

template <class Args>
FUSEDOPS_DEVICE bool has_mean(const Args& args) {
  return args.kind != NormKind::kRms;
}

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

}  // namespace fusedops::cuda
