// Calls ops through torch's dispatcher; exits with 1 where a result is not that of ATen, or an
// error does not arrive as one.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <iostream>
#include <string>
#include <tuple>

using MaybeTensor = std::optional<at::Tensor>;
using MaybeDtype = std::optional<at::ScalarType>;

template <class Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

bool agrees(const char* what, const at::Tensor& actual, const at::Tensor& expected) {
  const bool same = at::allclose(actual, expected, /*rtol=*/1e-5, /*atol=*/1e-6);
  std::cout << what << (same ? ": as ATen\n" : ": differs from ATen\n");
  return same;
}

bool softmax_agrees(const at::Tensor& x) {
  const auto op = find_op<at::Tensor(const at::Tensor&, int64_t, MaybeDtype)>("fusedops::softmax");
  return agrees("softmax", op.call(x, -1, std::nullopt), at::softmax(x, -1));
}

bool layer_norm_agrees(const at::Tensor& x) {
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  using Signature = Result(
      const at::Tensor&, c10::SymIntArrayRef, const MaybeTensor&, const MaybeTensor&, double);
  const auto op = find_op<Signature>("fusedops::layer_norm");
  const c10::SymInt shape[] = {x.size(-1)};
  const auto result = op.call(x, shape, std::nullopt, std::nullopt, 1e-5);
  return agrees("layer_norm", std::get<0>(result), at::layer_norm(x, {x.size(-1)}));
}

bool refuses_a_wrong_dim(const at::Tensor& x) try {
  const auto op = find_op<at::Tensor(const at::Tensor&, int64_t, MaybeDtype)>("fusedops::softmax");
  op.call(x, 7, std::nullopt);
  return false;
} catch (const std::exception& error) {
  std::cout << error.what() << '\n';
  return std::string(error.what()).find("softmax: dim is 7") != std::string::npos;
}

int main() {
  const at::Tensor x = at::randn({4, 257});
  return softmax_agrees(x) && layer_norm_agrees(x) && refuses_a_wrong_dim(x) ? 0 : 1;
}
