// What the forward and the backward pass of a norm share: which rows have a mean, and the weight.
#pragma once

#include "fusedops/args.h"
#include "fusedops/cuda/vec.h"
#include "fusedops/device.h"

namespace fusedops::cuda {

template <class Args>
FUSEDOPS_DEVICE bool has_mean(const Args& args) {
  return args.kind != NormKind::kRms;
}

// One vector of what rows are multiplied with: weight + weight_offset, or 1 where there is none.
template <class W, int kWidth, class Acc, class Args>
FUSEDOPS_DEVICE void load_weight(Acc (&values)[kWidth], const Args& args, int64_t column) {
  const void* const data = args.weight.data;
  const auto vector = data ? Vec<W, kWidth>::load_cached(static_cast<const W*>(data) + column)
                           : Vec<W, kWidth>::filled(1);
  const Acc offset = data ? static_cast<Acc>(args.weight_offset) : Acc(0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = vector.at(j) + offset;
}

// Whether weight and bias, which share a dtype, are floats beside 16-bit rows.
template <class T>
FUSEDOPS_DEVICE bool is_wider(const ConstColumns& parameter) {
  return sizeof(T) == 2 && parameter.dtype == DType::kFloat32;
}

}  // namespace fusedops::cuda
