// Turns dtypes into the types that kernels are compiled for, and chooses between streaming and
// ordinary stores.
#pragma once

#include "cpu/norm/common.h"
#include "cpu/simd/load_store.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(Tag<float>{});
    case DType::kFloat64:
      return body(Tag<double>{});
    case DType::kFloat16:
      return body(Tag<Half>{});
    case DType::kBFloat16:
      return body(Tag<BFloat16>{});
  }
}

// Calls body with the types of an input and an output. Either both are the same, or the input has
// 16 bits and the output is float32 (args.h).
template <class Body>
void with_types(DType in, DType out, Body body) {
  with_type(in, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (in == out) return body(tag, tag);
    if constexpr (sizeof(T) == 2) body(tag, Tag<float>{});
  });
}

template <class Body>
void with_norm(NormKind kind, DType dtype, Body body) {
  with_type(dtype, [&](auto tag) {
    if (!has_mean(kind)) return body(Constant<false>{}, tag);
    body(Constant<true>{}, tag);
  });
}

// Streaming stores need every vector of every row aligned. A null `to` is not written, and so needs
// nothing.
inline bool is_aligned(const void* data, int64_t stride, DType dtype) {
  return (reinterpret_cast<uintptr_t>(data) | (stride * size_of(dtype))) % kVectorBytes == 0;
}
inline bool can_stream(const Rows& to) {
  return to.data == nullptr ||
      is_aligned(to.data, to.spacing.stride | to.spacing.run_gap, to.dtype);
}
inline bool can_stream(const Slices& to) {
  return is_aligned(to.data, to.outer_stride | to.dim_stride, to.dtype);
}

template <class Output, class Body>
void with_store(bool streaming, const Output& to, Body body) {
  const StoreMode mode{streaming && can_stream(to)};
  body(mode);
  if (mode.streams) FlushStream();
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
