// Turns dtypes into the types that kernels are compiled for, and chooses between streaming and
// ordinary stores.
#pragma once

#include "cpu/simd/load_store.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Calls body with a value of the C++ type that `dtype` stands for.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat64:
      return body(double{});
    case DType::kFloat16:
      return body(Half{});
    case DType::kBFloat16:
      return body(BFloat16{});
  }
}

// Calls body with values of the types of an input and an output. Either both are the same, or the
// input has 16 bits and the output is float32 (args.h).
template <class Body>
void with_types(DType in, DType out, Body body) {
  with_type(in, [&](auto value) {
    if (in == out) return body(value, value);
    if constexpr (sizeof(value) == 2) body(value, float{});
  });
}

// Calls body(centers, value): `centers` says as a Constant whether the kind has a mean, and `value`
// has the dtype's type.
template <class Body>
void with_norm(NormKind kind, DType dtype, Body body) {
  with_bool(has_mean(kind), [&](auto centers) {
    with_type(dtype, [&](auto value) { body(centers, value); });
  });
}

// Whether every vector of every row is aligned, as streaming stores need it.
inline bool is_aligned(const void* data, int64_t stride, DType dtype) {
  return (reinterpret_cast<uintptr_t>(data) | (stride * size_of(dtype))) % kVectorBytes == 0;
}
// Whether results may be streamed. Rows whose data is null are not written, and so do not matter.
inline bool can_stream(const Rows& to) {
  return to.data == nullptr ||
      is_aligned(to.data, to.spacing.stride | to.spacing.run_gap, to.dtype);
}
inline bool can_stream(const Slices& to) {
  return is_aligned(to.data, to.outer_stride | to.dim_stride, to.dtype);
}

// Calls body(mode), and then FlushStream() if the mode streams: that is, if `streaming` is set and
// all rows of `to` are aligned for it.
template <class Output, class Body>
void with_store(bool streaming, const Output& to, Body body) {
  const StoreMode mode{streaming && can_stream(to)};
  body(mode);
  if (mode.streams) FlushStream();
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
