// Implements dropout: checks tensors, allocates the result and launches kernels. Also converts the
// probability and seed of other ops to the dropout of a kernel.
#pragma once

#include <cmath>

#include "ops/tensor.h"

namespace fusedops {

// Checks p and seed, and returns the dropout that they define. If p is 0, it keeps all elements.
inline Dropout seeded_dropout(const char* op, double p, const Tensor& seed, const Like& like) {
  FUSEDOPS_CHECK(p >= 0 && p <= 1, op, ": p is ", p, ", wanted a probability in [0, 1]");
  check_given(op, like.name, like.tensor);
  check_given(op, "seed", seed);
  FUSEDOPS_CHECK(
      dtype_of(seed) == ScalarType::Long && seed.numel() == 1, op, ": seed is ", dtype_text(seed),
      " of shape ", list_text(seed.sizes()),
      ", wanted one torch.int64; make it with torch.randint");
  check_device(op, "seed", seed, like);
  // The threshold is at most 2^32 - 1, the largest uint32. If p is 1, an element whose random
  // number is 2^32 - 1 would be kept; the scale of 0 drops it too.
  const double threshold = std::min(std::round(p * 0x1p32), 0x1p32 - 1);
  return {
      static_cast<const int64_t*>(seed.const_data_ptr()), static_cast<uint32_t>(threshold),
      p == 1 ? 0.0 : 1 / (1 - p)};
}

// As seeded_dropout(), but returns no dropout if p is 0.
inline Dropout dropout_of(const char* op, double p, const Tensor& seed, const Like& like) {
  const Dropout dropout = seeded_dropout(op, p, seed, like);
  return p == 0 ? Dropout{} : dropout;
}

// Returns the dropout for an optional seed. Without a seed there is no dropout, and p must be 0.
inline Dropout branch_dropout(
    const char* op, double p, const std::optional<Tensor>& seed, const Like& like) {
  FUSEDOPS_CHECK(
      seed || p == 0, op, ": p is ", p, " without a seed; make one with torch.randint, one int64");
  return seed ? dropout_of(op, p, *seed, like) : Dropout{};
}

template <class Launcher>
Tensor dropout(const Tensor& input, double p, const Tensor& seed, bool relu) {
  const char* op = "dropout";
  check_dtype_of(op, "input", input);
  const Dropout args = seeded_dropout(op, p, seed, {"input", input});
  const SizesView sizes = input.sizes();
  const int64_t cols = sizes.empty() ? 1 : sizes[sizes.size() - 1];
  check_cols(op, cols);
  const Tensor output = empty_contiguous(op, input, sizes, dtype_of(input));
  if (input.numel() == 0) return output;
  const RowView source = rows_of_last_dim<Launcher>(op, input);
  const RowView result = rows_of_last_dim<Launcher>(op, output);
  Launcher(input).launch(
      DropoutForward{source.read(), result.write(), args, input.numel() / cols, cols, relu});
  return output;
}

}  // namespace fusedops
