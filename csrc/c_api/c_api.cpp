// Implements the C interface: checks arguments, calls kernels, and turns errors into a status.
#include "fusedops/c_api.h"

#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "c_api/c_device.h"

namespace fusedops::c_api {
namespace {

thread_local char last_error[512] = "";

fusedops_status failed(const char* function, fusedops_status status, const char* what) {
  std::snprintf(last_error, sizeof(last_error), "%s: %s", function, what);
  return status;
}

// Calls f(), and returns FUSEDOPS_SUCCESS or, if f() throws, the status of the error, whose text
// fusedops_last_error() then returns.
template <class F>
fusedops_status guarded(const char* function, F f) {
  try {
    f();
    return FUSEDOPS_SUCCESS;
  } catch (const Failure& failure) {
    return failed(function, failure.status, failure.what.c_str());
  } catch (const std::bad_alloc&) {
    return failed(function, FUSEDOPS_OUT_OF_MEMORY, "no memory is left for intermediate results");
  } catch (const std::exception& error) {
    return failed(function, FUSEDOPS_DEVICE_ERROR, error.what());
  }
}

void check_size(const char* name, int size, int least = 0) {
  if (size >= least) return;
  throw Failure{
      FUSEDOPS_INVALID_SIZE,
      std::string(name) + " is " + std::to_string(size) + ", wanted at least " +
          std::to_string(least)};
}

// Returns the number of floats in an array of these sizes, none of which is negative.
template <class... Sizes>
int64_t count_of(Sizes... sizes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / sizeof(double);
  int64_t count = 1;
  bool fits = true;
  for (const int64_t size : {int64_t{sizes}...}) {
    if (size == 0) return 0;
    fits = fits && count <= kMost / size;
    if (fits) count *= size;
  }
  if (fits) return count;
  throw Failure{FUSEDOPS_INVALID_SIZE, "the sizes multiply to more than memory can hold"};
}

void check_aligned(const char* name, const void* array) {
  if (reinterpret_cast<uintptr_t>(array) % alignof(float) == 0) return;
  throw Failure{
      FUSEDOPS_INVALID_POINTER,
      std::string(name) + " does not start at a multiple of 4 bytes, as floats do"};
}

void check_array(const char* name, const float* array, int64_t count) {
  if (array == nullptr) {
    throw Failure{
        FUSEDOPS_INVALID_POINTER,
        std::string(name) + " is NULL, wanted " + std::to_string(count) + " floats"};
  }
  check_aligned(name, array);
}

// Returns a pointer that owns `bytes` bytes of device memory, or null for 0 bytes.
auto scratch_of(const Device& device, int64_t bytes) {
  auto release = [&device](void* memory) { device.release(memory); };
  void* const memory = bytes > 0 ? device.allocate(bytes) : nullptr;
  return std::unique_ptr<void, decltype(release)>(memory, release);
}

template <class Args>
void launch_with_workspace(const Device& device, Args args) {
  const auto workspace = scratch_of(device, device.workspace_bytes(args));
  args.workspace = workspace.get();
  device.launch(args);
}

// These functions describe contiguous arrays of floats.
ConstRows rows_of(const float* data, int64_t cols) { return {data, {cols}, DType::kFloat32}; }
Rows rows_of(float* data, int64_t cols) { return {data, {cols}, DType::kFloat32}; }
ConstColumns columns_of(const float* data) { return {data, DType::kFloat32}; }
Columns columns_of(float* data) { return {data, DType::kFloat32}; }

}  // namespace
}  // namespace fusedops::c_api

using namespace fusedops;
using namespace fusedops::c_api;

const char* fusedops_status_string(fusedops_status status) {
  // The texts are in the order of fusedops_status.
  constexpr const char* kTexts[] = {
      "success",       "invalid pointer", "invalid size",
      "invalid eps",   "invalid stream",  "invalid environment variable",
      "out of memory", "device error",
  };
  return size_t(status) < std::size(kTexts) ? kTexts[status] : "unknown status";
}

const char* fusedops_last_error() { return last_error; }

fusedops_status fusedops_attn_softmax(
    float* inp, const float* attn_mask, int batch_size, int nhead, int from_len, int to_len,
    bool mask_future, void* stream) {
  return guarded(__func__, [&] {
    check_size("batch_size", batch_size);
    check_size("nhead", nhead);
    check_size("from_len", from_len);
    check_size("to_len", to_len);
    const int64_t count = count_of(batch_size, nhead, from_len, to_len);
    const Device device(stream);
    if (count == 0) return;
    check_array("inp", inp, count);
    check_aligned("attn_mask", attn_mask);
    MaskedSoftmaxForward args{};
    args.input = rows_of(static_cast<const float*>(inp), to_len);
    args.output = rows_of(inp, to_len);
    args.rows = count / to_len;
    args.cols = to_len;
    args.scores.dims = {/*count=*/2, {batch_size, args.rows / batch_size}};
    args.scores.mask = {
        attn_mask, /*strides=*/{to_len, 0}, /*col_stride=*/1, /*is_bool=*/false, DType::kFloat32};
    args.scores.causal = {mask_future, /*queries=*/from_len, /*diagonal=*/0};
    args.scores.scale = 1;
    args.scores.mask_value = -std::numeric_limits<double>::infinity();
    args.zero_masked_rows = true;
    device.launch(args);
  });
}

fusedops_status fusedops_attn_softmax_bw(
    float* out_grad, const float* soft_inp, int rows, int softmax_len, void* stream) {
  return guarded(__func__, [&] {
    check_size("rows", rows);
    check_size("softmax_len", softmax_len);
    const int64_t count = count_of(rows, softmax_len);
    const Device device(stream);
    if (count == 0) return;
    check_array("out_grad", out_grad, count);
    check_array("soft_inp", soft_inp, count);
    SoftmaxBackward args{};
    args.grad_output = rows_of(static_cast<const float*>(out_grad), softmax_len);
    args.output = rows_of(soft_inp, softmax_len);
    args.grad_input = rows_of(out_grad, softmax_len);
    args.rows = rows;
    args.cols = softmax_len;
    launch_with_workspace(device, args);
  });
}

fusedops_status fusedops_layernorm(
    float* ln_res, float* vars, float* means, const float* inp, const float* scale,
    const float* bias, int batch_size, int hidden_dim, float eps, void* stream) {
  return guarded(__func__, [&] {
    check_size("batch_size", batch_size);
    check_size("hidden_dim", hidden_dim, /*least=*/1);
    if (!(eps >= 0) || std::isinf(eps)) {
      throw Failure{
          FUSEDOPS_INVALID_EPS, "eps is " + std::to_string(eps) + ", wanted a finite number >= 0"};
    }
    const int64_t count = count_of(batch_size, hidden_dim);
    const Device device(stream);
    if (count == 0) return;
    check_array("ln_res", ln_res, count);
    check_array("vars", vars, batch_size);
    check_array("means", means, batch_size);
    check_array("inp", inp, count);
    check_array("scale", scale, hidden_dim);
    check_array("bias", bias, hidden_dim);
    NormForward args{};
    args.kind = NormKind::kLayer;
    args.input = rows_of(inp, hidden_dim);
    args.output = rows_of(ln_res, hidden_dim);
    args.weight = columns_of(scale);
    args.bias = columns_of(bias);
    args.mean = means;
    args.rstd = vars;  // holds rstd until rstd_to_variance() below
    args.rows = batch_size;
    args.cols = hidden_dim;
    args.eps = eps;
    launch_with_workspace(device, args);
    device.rstd_to_variance(vars, batch_size);
  });
}

fusedops_status fusedops_layernorm_bw(
    float* gamma_grad, float* betta_grad, float* inp_grad, const float* out_grad, const float* inp,
    const float* gamma, const float* vars, const float* means, int batch_size, int hidden_dim,
    void* stream) {
  return guarded(__func__, [&] {
    check_size("batch_size", batch_size);
    check_size("hidden_dim", hidden_dim, /*least=*/1);
    const int64_t count = count_of(batch_size, hidden_dim);
    check_aligned("gamma_grad", gamma_grad);
    check_aligned("betta_grad", betta_grad);
    check_aligned("inp_grad", inp_grad);
    const Device device(stream);
    if (count == 0) {  // the sums of no rows are 0
      if (gamma_grad != nullptr) device.clear(gamma_grad, hidden_dim);
      if (betta_grad != nullptr) device.clear(betta_grad, hidden_dim);
      return;
    }
    check_array("out_grad", out_grad, count);
    check_array("inp", inp, count);
    check_array("gamma", gamma, hidden_dim);
    check_array("vars", vars, batch_size);
    check_array("means", means, batch_size);
    if (gamma_grad == nullptr && betta_grad == nullptr && inp_grad == nullptr) return;
    const auto rstd = scratch_of(device, batch_size * sizeof(float));
    device.variance_to_rstd(vars, static_cast<float*>(rstd.get()), batch_size);
    NormBackward args{};
    args.kind = NormKind::kLayer;
    args.grad_output = rows_of(out_grad, hidden_dim);
    args.input = rows_of(inp, hidden_dim);
    args.mean = means;
    args.rstd = rstd.get();
    args.weight = columns_of(gamma);
    args.grad_input = rows_of(inp_grad, hidden_dim);
    args.grad_weight = columns_of(gamma_grad);
    args.grad_bias = columns_of(betta_grad);
    args.rows = batch_size;
    args.cols = hidden_dim;
    launch_with_workspace(device, args);
  });
}

fusedops_status launch_attn_softmax(
    float* inp, const float* attn_mask, int batch_size, int nhead, int from_len, int to_len,
    bool mask_future, void* stream) {
  return fusedops_attn_softmax(
      inp, attn_mask, batch_size, nhead, from_len, to_len, mask_future, stream);
}

fusedops_status launch_attn_softmax_bw(
    float* out_grad, const float* soft_inp, int rows, int softmax_len, void* stream) {
  return fusedops_attn_softmax_bw(out_grad, soft_inp, rows, softmax_len, stream);
}

fusedops_status launch_layernorm(
    float* ln_res, float* vars, float* means, const float* inp, const float* scale,
    const float* bias, int batch_size, int hidden_dim, void* stream) {
  constexpr float kEps = 1e-8f;
  return fusedops_layernorm(
      ln_res, vars, means, inp, scale, bias, batch_size, hidden_dim, kEps, stream);
}

fusedops_status launch_layernorm_bw(
    float* gamma_grad, float* betta_grad, float* inp_grad, const float* out_grad, const float* inp,
    const float* gamma, const float*, const float* vars, const float* means, int batch_size,
    int hidden_dim, void* stream_1, void* stream_2) {
  if (stream_1 != stream_2) {
    return failed(
        __func__, FUSEDOPS_INVALID_STREAM, "stream_1 and stream_2 differ, wanted the same twice");
  }
  return fusedops_layernorm_bw(
      gamma_grad, betta_grad, inp_grad, out_grad, inp, gamma, vars, means, batch_size, hidden_dim,
      stream_1);
}
