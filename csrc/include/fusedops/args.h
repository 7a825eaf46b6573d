// What a kernel launch is told: plain data, the same for every device, no torch in it.
//
// Every tensor reaches a kernel as rows: row r starts at data + offset(r) elements and its elements
// are adjacent. Offsets between rows are int64; a row holds at most 2^31 - 1 elements.
//
// A workspace holds as many bytes as the launcher's workspace_bytes() says of the arguments.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define FUSEDOPS_HOST_DEVICE __host__ __device__
#else
#define FUSEDOPS_HOST_DEVICE
#endif

namespace fusedops {

enum class DType : int32_t { kFloat32, kFloat64, kFloat16, kBFloat16 };

constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// Where rows begin, in elements: evenly spaced or, for launchers that read groups, in evenly spaced
// groups, as in x[:, :-1]. The number of a row's group is found by multiplication (Granlund and
// Montgomery, 1994).
struct RowSpacing {
  int64_t stride;                      // from one row to the next; 0 repeats one row
  int64_t run_gap = 0;                 // and so much more from one group to the next
  uint32_t multiplier = 0, shift = 0;  // row / group is row * multiplier >> 32 >> shift

  static constexpr int64_t kMaxRowsInRuns = int64_t{1} << 31;

  // Groups of at least two rows, fewer than kMaxRowsInRuns rows in all.
  static constexpr RowSpacing with_runs(int64_t stride, int64_t run, int64_t run_stride) {
    uint32_t bits = 1;
    while (int64_t{1} << bits < run) ++bits;
    const uint64_t power = uint64_t{1} << (31 + bits), divisor = static_cast<uint64_t>(run);
    const auto multiplier = static_cast<uint32_t>((power + divisor - 1) / divisor);
    return {stride, run_stride - run * stride, multiplier, bits - 1};
  }

  constexpr int64_t offset(int64_t row) const {
    const uint64_t low = static_cast<uint32_t>(row);
    return row * stride + static_cast<int64_t>(low * multiplier >> 32 >> shift) * run_gap;
  }
};

struct ConstRows {
  const void* data;
  RowSpacing spacing;
  DType dtype;
};

struct Rows {
  void* data;
  RowSpacing spacing;
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

// output = softmax(input) along each row, or its logarithm. Both may be the same memory.
// input and output have the same dtype, or input is 16-bit and output float32.
struct SoftmaxForward {
  ConstRows input;
  Rows output;
  void* workspace;
  int64_t rows, cols;
  bool log;
};

// grad_input = output * (grad_output - sum(grad_output * output)), and for the logarithm
// grad_input = grad_output - exp(output) * sum(grad_output).
// grad_output and output share one dtype; grad_input has it too, or is its 16-bit source.
// grad_input may be the memory of grad_output.
struct SoftmaxBackward {
  ConstRows grad_output, output;
  Rows grad_input;
  void* workspace;
  int64_t rows, cols;
  bool log;
};

// What a softmax knows of a row once it is read: the maximum, and sum = sum(exp(input - maximum)),
// of a row of -inf alone 0. Doubles of a double input, else floats, one a row.
struct SoftmaxStatistics {
  ConstRows input;
  void *max, *sum;
  void* workspace;
  int64_t rows, cols;
};

// output = exp(input - max) / sum, row by row; max and sum as above. dtypes as in SoftmaxForward.
struct SoftmaxApply {
  ConstRows input;
  Rows output;
  const void *max, *sum;
  int64_t rows, cols;
};

// A tensor seen as [outer, dim_size, inner]: element (o, d, i) is at
// data + o * outer_stride + d * dim_stride + i.
struct ConstSlices {
  const void* data;
  int64_t outer_stride, dim_stride;  // elements
  DType dtype;
};

struct Slices {
  void* data;
  int64_t outer_stride, dim_stride;
  DType dtype;
};

// softmax over dim_size, for each outer and inner: over a dimension that is not the last, without
// moving it there (ATen calls it a spatial softmax). dtypes as in SoftmaxForward. input and output
// may be the same memory.
struct SpatialSoftmaxForward {
  ConstSlices input;
  Slices output;
  int64_t outer, dim_size, inner;
  bool log;
};

// dtypes as in SoftmaxBackward. grad_input may be the memory of grad_output.
struct SpatialSoftmaxBackward {
  ConstSlices grad_output, output;
  Slices grad_input;
  int64_t outer, dim_size, inner;
  bool log;
};

// Rows numbered through at most kMaxRowDims dimensions, the last of them fastest.
constexpr int32_t kMaxRowDims = 4;
struct RowDims {
  int32_t count;
  int64_t sizes[kMaxRowDims];
};

// One value for each row and column, broadcast: of row (i0, i1, ...) and column c it is at
// data + i0 * strides[0] + i1 * strides[1] + ... + c * col_stride. data is null where there is
// none. A bool is one byte, 0 or 1; other values have the dtype of the input or, beside a 16-bit
// input, float32.
struct Operand {
  const void* data;
  int64_t strides[kMaxRowDims];  // elements; 0 repeats
  int32_t col_stride;            // 0 or 1
  bool is_bool;
  DType dtype;  // where not is_bool
};

constexpr int64_t element_bytes(const Operand& operand) {
  return operand.is_bool ? 1 : size_of(operand.dtype);
}

// Row r is that of query r % queries, and sees the columns up to and including query + diagonal.
struct Causal {
  bool on;
  int64_t queries, diagonal;
};

// What the softmax of a row is taken of: scale * input + bias + mask, but `mask_value` where a
// bool mask is false or causality hides the column. bias is never bool.
struct Scores {
  RowDims dims;
  Operand bias, mask;
  Causal causal;
  double scale, mask_value;
};

// Element (row, column) is kept, and multiplied by `scale`, where word column % 4 of
// Philox4x32-10(key = *seed, counter = {column / 4, row's low half, row's high half, 0}) is at
// least `threshold`; otherwise multiplied by 0. seed is null where there is no dropout.
struct Dropout {
  const int64_t* seed;  // in the memory of the device
  uint32_t threshold;   // p * 2^32
  double scale;         // 1 / (1 - p), or 0 where p is 1
};

// probabilities = softmax(scores) along each row, output = dropout(probabilities). A row of which
// nothing is visible (all hidden, or -inf) comes out as the softmax gives it or, with
// zero_masked_rows, as zeros. Hidden columns of a causal row are neither read nor computed.
// probabilities.data may be null: not wanted. input and output may be the same memory. dtypes as in
// SoftmaxForward; output and probabilities share one.
struct MaskedSoftmaxForward {
  ConstRows input;
  Rows output, probabilities;
  Scores scores;
  Dropout dropout;
  int64_t rows, cols;
  bool zero_masked_rows;
};

// With g = grad_output, dropped out as the output was, and s = sum(g * probabilities):
// grad_input = scale * probabilities * (g - s), 0 where a bool mask or causality hides the column.
// Only the bool mask, the causality and the scale of `scores` matter. grad_input may be the memory
// of grad_output. dtypes as in SoftmaxBackward.
struct MaskedSoftmaxBackward {
  ConstRows grad_output, probabilities;
  Rows grad_input;
  Scores scores;
  Dropout dropout;
  int64_t rows, cols;
};

// kLayer: rstd = 1 / sqrt(variance + eps). kRms: mean = 0, rstd = 1 / sqrt(mean(x^2) + eps).
// kStd: rstd = 1 / (std + eps), where std^2 = sum((x - mean)^2) / (cols - 1).
enum class NormKind : int32_t { kLayer, kRms, kStd };

// With x = dropout(input) + residual, rounded once to the dtype of input, or input itself where
// residual.data is null: output = (x - mean) * rstd * (weight + weight_offset) + bias, and sum = x.
// With rounds_normalized, (x - mean) * rstd is rounded to the dtype of input before it is
// multiplied.
//
// Statistics per row: mean and rstd are one float each (double where input is double); mean is null
// for kRms, both where they are not wanted. input, residual, sum and output share one dtype. weight
// and bias share one dtype: the input's, or float32. sum.data may be null: not wanted. dropout
// (seed null: none) comes only with a residual.
struct NormForward {
  NormKind kind;
  ConstRows input, residual;
  Rows output, sum;
  ConstColumns weight, bias;
  void *mean, *rstd;
  Dropout dropout;
  void* workspace;
  int64_t rows, cols;
  double eps, weight_offset;
  bool rounds_normalized;
};

// Gradients of the above. `input` is what was normalised, the forward's sum where it had a
// residual; grad_sum, where its data is not null, is added to what reaches it. grad_input is the
// gradient of x, and so of the residual; grad_branch that of the forward's input, which dropout
// makes another: dropout(grad_input), not wanted where there is no dropout.
//
// A null data of grad_input, grad_branch, grad_weight or grad_bias is not wanted and not computed.
// Rows share one dtype. eps matters to kStd alone.
struct NormBackward {
  NormKind kind;
  ConstRows grad_output, grad_sum, input;
  const void *mean, *rstd;
  ConstColumns weight;
  Rows grad_input, grad_branch;
  Columns grad_weight, grad_bias;
  Dropout dropout;
  void* workspace;
  int64_t rows, cols;
  double eps, weight_offset;
};

// --- stacks: the same of several tensors, each into its slot of one ------------------------------

// The most tensors of a launch: their arguments fit into the 4 KB that a kernel may have.
constexpr int32_t kMaxStack = 32;

FUSEDOPS_HOST_DEVICE inline const void* moved(const void* data, int64_t elements, DType dtype) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + elements * size_of(dtype);
}
FUSEDOPS_HOST_DEVICE inline void* moved(void* data, int64_t elements, DType dtype) {
  return const_cast<void*>(moved(static_cast<const void*>(data), elements, dtype));
}

// `each` has what all share, and where the results of tensor 0 go; those of tensor i begin `slot`
// elements after those of i - 1. stack[i] is what tensor i alone would be launched with.
struct SoftmaxStack {
  SoftmaxForward each;
  ConstRows inputs[kMaxStack];
  int64_t slot;
  int32_t count;

  FUSEDOPS_HOST_DEVICE SoftmaxForward operator[](int32_t i) const {
    SoftmaxForward args = each;
    args.input = inputs[i];
    args.output.data = moved(args.output.data, i * slot, args.output.dtype);
    return args;
  }
};

// Statistics of tensor i follow those of i - 1. Weights and biases are each tensor's own; either
// all have one or none.
struct NormStack {
  NormForward each;
  ConstRows inputs[kMaxStack];
  const void *weights[kMaxStack], *biases[kMaxStack];
  int64_t slot;
  int32_t count;

  FUSEDOPS_HOST_DEVICE NormForward operator[](int32_t i) const {
    const DType statistics =
        each.input.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    NormForward args = each;
    args.input = inputs[i];
    args.output.data = moved(args.output.data, i * slot, args.output.dtype);
    args.weight.data = weights[i];
    args.bias.data = biases[i];
    args.mean = moved(args.mean, i * args.rows, statistics);
    args.rstd = moved(args.rstd, i * args.rows, statistics);
    return args;
  }
};

// `slot` is that of grad_output. grad_input, grad_weight, grad_bias and workspace of tensor i
// follow those of i - 1.
struct NormStackBackward {
  NormBackward each;
  ConstRows inputs[kMaxStack];
  const void* weights[kMaxStack];
  int64_t slot, workspace_bytes;
  int32_t count;

  FUSEDOPS_HOST_DEVICE NormBackward operator[](int32_t i) const {
    const DType statistics =
        each.input.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    NormBackward args = each;
    args.grad_output.data = moved(args.grad_output.data, i * slot, args.grad_output.dtype);
    args.input = inputs[i];
    args.mean = moved(args.mean, i * args.rows, statistics);
    args.rstd = moved(args.rstd, i * args.rows, statistics);
    args.weight.data = weights[i];
    args.grad_input.data =
        moved(args.grad_input.data, i * args.rows * args.cols, args.grad_input.dtype);
    args.grad_weight.data = moved(args.grad_weight.data, i * args.cols, args.grad_weight.dtype);
    args.grad_bias.data = moved(args.grad_bias.data, i * args.cols, args.grad_bias.dtype);
    if (args.workspace != nullptr) {
      args.workspace = static_cast<char*>(args.workspace) + i * workspace_bytes;
    }
    return args;
  }
};

}  // namespace fusedops
