// What a kernel launch is told: plain data, the same for every device, no torch in it.
//
// Every tensor reaches a kernel as rows: row r starts at data + r * stride elements and its
// elements are adjacent. Offsets between rows are int64; a row holds at most 2^31 - 1 elements.
#pragma once

#include <cstdint>

namespace fusedops {

enum class DType : int32_t { kFloat32, kFloat64, kFloat16, kBFloat16 };

constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

struct ConstRows {
  const void* data;
  int64_t stride;  // elements from one row to the next; 0 repeats one row
  DType dtype;
};

struct Rows {
  void* data;
  int64_t stride;
  DType dtype;
};

// A vector of one value per column (weight, bias); data is null where there is none.
struct ConstColumns {
  const void* data;
  DType dtype;
};

struct Columns {
  void* data;
  DType dtype;
};

// output = softmax(input) along each row, or its logarithm.
// input and output have the same dtype, or input is 16-bit and output float32.
struct SoftmaxForward {
  ConstRows input;
  Rows output;
  int64_t rows, cols;
  bool log;
};

// grad_input = output * (grad_output - sum(grad_output * output)), and for the logarithm
// grad_input = grad_output - exp(output) * sum(grad_output).
// grad_output and output share one dtype; grad_input has it too, or is its 16-bit source.
struct SoftmaxBackward {
  ConstRows grad_output, output;
  Rows grad_input;
  int64_t rows, cols;
  bool log;
};

// output = (input - mean) * rstd * weight + bias, statistics per row.
// mean and rstd: one float per row (double where input is double).
// weight and bias share one dtype: the input's, or float32.
struct LayerNormForward {
  ConstRows input;
  Rows output;
  ConstColumns weight, bias;
  void *mean, *rstd;
  int64_t rows, cols;
  double eps;
};

// Gradients of the above. A null grad_input.data, grad_weight.data or grad_bias.data is not wanted
// and not computed. workspace holds what the backend's workspace_bytes() asks for.
struct LayerNormBackward {
  ConstRows grad_output, input;
  const void *mean, *rstd;
  ConstColumns weight;
  Rows grad_input;
  Columns grad_weight, grad_bias;
  void* workspace;
  int64_t rows, cols;
};

}  // namespace fusedops
