// Calls ops through torch's dispatcher; exits with 1 where a result is not that of ATen, or an
// error does not arrive as one.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <iostream>
#include <optional>
#include <string>
#include <tuple>

bool agrees(const char* what, const at::Tensor& actual, const at::Tensor& expected) {
  const bool same = at::allclose(actual, expected, /*rtol=*/1e-5, /*atol=*/1e-6);
  std::cout << what << (same ? ": as ATen\n" : ": differs from ATen\n");
  return same;
}

at::Tensor call_softmax(const at::Tensor& x, int64_t dim) {
  using Softmax = at::Tensor(const at::Tensor&, int64_t, std::optional<at::ScalarType>);
  const auto softmax =
      c10::Dispatcher::singleton().findSchemaOrThrow("fusedops::softmax", "").typed<Softmax>();
  return softmax.call(x, dim, /*dtype=*/std::nullopt);
}

at::Tensor call_layer_norm(const at::Tensor& x) {
  using MaybeTensor = std::optional<at::Tensor>;
  using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  using LayerNorm = Results(
      const at::Tensor&, c10::SymIntArrayRef, const MaybeTensor&, const MaybeTensor&, double);
  const auto layer_norm =
      c10::Dispatcher::singleton().findSchemaOrThrow("fusedops::layer_norm", "").typed<LayerNorm>();
  const c10::SymInt shape[] = {x.size(-1)};
  return std::get<0>(layer_norm.call(x, shape, std::nullopt, std::nullopt, 1e-5));
}

bool refuses_a_wrong_dim(const at::Tensor& x) try {
  call_softmax(x, 7);
  return false;
} catch (const std::exception& error) {
  std::cout << error.what() << '\n';
  return true;
}

int main() {
  const at::Tensor x = at::randn({4, 257});
  const bool good = agrees("softmax", call_softmax(x, -1), at::softmax(x, -1)) &&
      agrees("layer_norm", call_layer_norm(x), at::layer_norm(x, {257})) && refuses_a_wrong_dim(x);
  return good ? 0 : 1;
}
