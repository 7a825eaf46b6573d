// Describes kernel launches by their arguments: plain data without torch, for every device.
//
// Kernels see every tensor as rows: row r starts at data + offset(r) elements, and its elements are
// adjacent. Offsets between rows are int64; a row holds at most 2^31 - 1 elements.
//
// A workspace holds the number of bytes that the launcher's workspace_bytes() returns for the
// arguments.
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

// Says where rows begin, in elements. Rows are evenly spaced, or form runs: the rows within a run
// are evenly spaced, and so are the runs, as in x[:, :-1] of a three-dimensional x. Only launchers
// with kReadsRuns (cpu/launcher.h) accept runs. The run of a row is found by a multiplication in
// place of a division (Granlund and Montgomery, 1994).
struct RowSpacing {
  int64_t stride;       // from one row to the next in a run; 0 repeats one row
  int64_t run_gap = 0;  // added to `stride` between the last row of a run and the first of the next
  uint32_t multiplier = 0, shift = 0;  // the run is row * multiplier >> 32 >> shift

  static constexpr int64_t kMaxRowsInRuns = int64_t{1} << 31;

  // Returns the spacing of rows in runs of `run` rows, at least 2, whose first rows are
  // `run_stride` apart. There are fewer than kMaxRowsInRuns rows in all.
  static constexpr RowSpacing with_runs(int64_t stride, int64_t run, int64_t run_stride) {
    uint32_t bits = 1;
    while (int64_t{1} << bits < run) ++bits;
    const uint64_t power = uint64_t{1} << (31 + bits), divisor = static_cast<uint64_t>(run);
    const auto multiplier = static_cast<uint32_t>((power + divisor - 1) / divisor);
    return {stride, run_stride - run * stride, multiplier, bits - 1};
  }

  // Returns where a row begins. The lower 32 bits of `row` are enough to find its run: with runs,
  // there are fewer than kMaxRowsInRuns rows; without runs, run_gap is 0 and the run has no effect.
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

// Holds one value per column (weight, bias). data is null if there is no such operand.
struct ConstColumns {
  const void* data;
  DType dtype;
};

struct Columns {
  void* data;
  DType dtype;
};

// Computes output = softmax(input) along each row, or its logarithm. input and output may be the
// same memory. They have the same dtype, or input is 16-bit and output is float32.
struct SoftmaxForward {
  ConstRows input;
  Rows output;
  void* workspace;
  int64_t rows, cols;
  bool log;
};

// Computes grad_input = output * (grad_output - sum(grad_output * output)), and for the logarithm
// grad_input = grad_output - exp(output) * sum(grad_output).
//
// grad_output and output share one dtype; grad_input has that dtype too, or is 16-bit where they
// are float32. grad_input may be the memory of grad_output.
struct SoftmaxBackward {
  ConstRows grad_output, output;
  Rows grad_input;
  void* workspace;
  int64_t rows, cols;
  bool log;
};

// Computes the statistics of each row: `max`, its maximum, and sum = sum(exp(input - max)), which
// is 0 if all of the row is -inf. Both are arrays with one value per row, double if input is double
// and float otherwise.
struct SoftmaxStatistics {
  ConstRows input;
  void *max, *sum;
  void* workspace;
  int64_t rows, cols;
};

// Computes output = exp(input - max) / sum, row by row, with max and sum from SoftmaxStatistics.
// The dtypes are those of SoftmaxForward.
struct SoftmaxApply {
  ConstRows input;
  Rows output;
  const void *max, *sum;
  int64_t rows, cols;
};

// Holds the class of each row: `data` is an array of int64 or int32. If has_ignored is set, a row
// whose class is `ignored` has a loss of 0, and the loss has no gradient. CrossEntropyForward and
// CrossEntropyBackward say what a class outside of [0, cols) means.
struct Targets {
  const void* data;
  bool is_int64;
  bool has_ignored = false;
  int64_t ignored = 0;
};

// The logits of a cross entropy are scale * input or, with a soft cap, tanh(scale * input /
// softcap) * softcap.
struct Logits {
  ConstRows input;
  double scale;
  double softcap = 0;  // 0 for none
};

// Let x be a row's logits, t its class, and e the label smoothing. Then lse = log(sum(exp(x))) and
// loss = (1 - e) * (lse - x[t]) + e * (lse - mean(x)). The loss of a class that is neither ignored
// nor in [0, cols) is NaN.
//
// losses, lse and lse_error are arrays with one value per row, double if input is double and float
// otherwise. lse_error is the part of lse that its rounding dropped, so that lse + lse_error has
// about twice the digits of its dtype: log(sum(exp(x - max))) keeps its digits however large the
// maximum is. With reads_ignored, lse and lse_error of ignored rows are computed too; otherwise
// ignored rows are not read, and their lse and lse_error are 0.
struct CrossEntropyForward {
  Logits logits;
  Targets targets;
  void *losses, *lse, *lse_error;
  void* workspace;
  int64_t rows, cols;
  double label_smoothing;
  bool reads_ignored;
};

// With x, t and e as in CrossEntropyForward, let p = exp(x - lse - lse_error). The gradient of x is
//
//   (grad_loss + grad_lse) * p - grad_loss * ((1 - e) * [column is t] + e / cols),
//
// where grad_loss is taken as 0 if the row is ignored. The gradient of the input is that of x times
// the derivative of the logits. For a class t outside of [0, cols), [column is t] is 0 everywhere:
// if the classes are divided among processes, another process has column t. Without smoothing, the
// difference p - 1 in column t is computed as expm1(-loss): a subtraction loses digits near p = 1.
//
// grad_losses and grad_lse are arrays with one value per row, as `losses` is; one of them may be
// null, which stands for zeros. grad_input has the dtype of the input, and may be its memory. Where
// a row's grad_loss and grad_lse are 0, its gradient is 0, and its input is not read.
struct CrossEntropyBackward {
  Logits logits;
  Targets targets;
  const void *losses, *lse, *lse_error;
  const void *grad_losses, *grad_lse;
  Rows grad_input;
  void* workspace;
  int64_t rows, cols;
  double label_smoothing;
};

// Adds up rows: sums[c] += input[0, c] + input[1, c] + ..., in the order of the rows, as doubles if
// input is double and as floats otherwise. The first of several calls starts at 0. Until the last
// call, each sum of a 16-bit input is a float that is cut in two: its upper 16 bits are in `sums`
// and its lower 16 in `lower`. The last call rounds the sums to input's dtype. `lower` takes 2
// bytes per column, where an array of floats beside `sums` would take 4.
struct ColumnSums {
  ConstRows input;
  void* sums;  // an array of input's dtype
  uint16_t* lower;
  int64_t rows, cols;
  bool is_first, is_last;
};

// Describes a tensor as [outer, dim_size, inner]: element (o, d, i) is at data + o * outer_stride +
// d * dim_stride + i.
struct ConstSlices {
  const void* data;
  int64_t outer_stride, dim_stride;  // in elements
  DType dtype;
};

struct Slices {
  void* data;
  int64_t outer_stride, dim_stride;
  DType dtype;
};

// Computes a spatial softmax (ATen's name): the softmax over dim_size for each outer and inner
// index, that is over a dimension that is not the last, without transposing the tensor. The dtypes
// are those of SoftmaxForward. input and output may be the same memory.
struct SpatialSoftmaxForward {
  ConstSlices input;
  Slices output;
  int64_t outer, dim_size, inner;
  bool log;
};

// Computes the gradient of SpatialSoftmaxForward. The formulas and dtypes are those of
// SoftmaxBackward. grad_input may be the memory of grad_output.
struct SpatialSoftmaxBackward {
  ConstSlices grad_output, output;
  Slices grad_input;
  int64_t outer, dim_size, inner;
  bool log;
};

// A row's number stands for an index (i0, i1, ...) of at most kMaxRowDims dimensions, of which the
// last varies fastest.
constexpr int32_t kMaxRowDims = 4;
struct RowDims {
  int32_t count;
  int64_t sizes[kMaxRowDims];
};

// Describes a broadcast operand with one value for each row and column. The value for row (i0, i1,
// ...) and column c is at data + i0 * strides[0] + i1 * strides[1] + ... + c * col_stride. Without
// an operand, data is null. A bool is one byte, 0 or 1; other values have the dtype of the input
// or, beside a 16-bit input, float32.
struct Operand {
  const void* data;
  int64_t strides[kMaxRowDims];  // in elements; 0 repeats a value
  int32_t col_stride;            // 0 or 1
  bool is_bool;
  DType dtype;  // the dtype of other values than bools
};

constexpr int64_t element_bytes(const Operand& operand) {
  return operand.is_bool ? 1 : size_of(operand.dtype);
}

// Says which columns the query of a row sees. Row r belongs to query r % queries. If `on`, the
// query sees no column after query + diagonal. If has_lower_diagonal, whether `on` or not, it sees
// no column before query + lower_diagonal.
struct Causal {
  bool on;
  int64_t queries, diagonal;
  bool has_lower_diagonal = false;
  int64_t lower_diagonal = 0;
};

// Describes a broadcast operand of int64 or int32 that bounds each row's interval (Scores): by its
// first column, or by the column after its last. The strides are those of Operand. data is null if
// there is no operand.
struct RowBound {
  const void* data;
  int64_t strides[kMaxRowDims];
  bool is_int64;
};

// Describes a broadcast operand with one value for each row: double if the input is double, and
// float otherwise. The strides are those of Operand. data is null if there is no operand.
struct RowValues {
  const void* data;
  int64_t strides[kMaxRowDims];
};

// The scores whose softmax is computed are scale * input + bias + mask, but `mask_value` where a
// bool mask is false or the column is not in the row's interval. The interval is the columns from
// `start` to before `end` that causality and the lower diagonal leave visible. bias is never bool.
// A sink is one more score in the softmax of the row, but has no column in the output. With a soft
// cap, tanh(scale * input / softcap) * softcap stands in place of scale * input.
struct Scores {
  RowDims dims;
  Operand bias, mask;
  Causal causal;
  double scale, mask_value;
  RowBound start, end;
  RowValues sinks;
  double softcap = 0;  // 0 for none

  // Whether anything but the upper diagonal limits the intervals: a lower diagonal, `start` or
  // `end`.
  constexpr bool has_bounds() const {
    return causal.has_lower_diagonal || start.data != nullptr || end.data != nullptr;
  }
};

// These are the fewest rounds with which Philox4x32 passes TestU01's BigCrush (Salmon et al.,
// 2011).
constexpr int32_t kPhiloxRounds = 7;

// Element (row, column) is kept, and multiplied by `scale`, if word column % 4 of Philox4x32-7(key
// = *seed, counter = {column / 4, row's low half, row's high half, 0}) is at least `threshold`;
// otherwise it is multiplied by 0. seed is null if there is no dropout.
struct Dropout {
  const int64_t* seed;  // in the memory of the device that launches
  uint32_t threshold;   // p * 2^32, where p is the probability that an element is dropped
  double scale;         // 1 / (1 - p), or 0 if p is 1
};

// Computes output = dropout(input), or dropout(max(input, 0)) with `relu`. Both tensors have the
// same dtype.
struct DropoutForward {
  ConstRows input;
  Rows output;
  Dropout dropout;
  int64_t rows, cols;
  bool relu;
};

// Computes probabilities = softmax(scores) along each row, and output = dropout(probabilities). A
// row without a visible element (all are hidden, or -inf) becomes zeros if zero_masked_rows is set;
// otherwise it is computed like any other row. Columns outside a row's interval (Scores) are
// neither read nor computed, unless they are in a tile or vector that also has a column inside.
//
// probabilities.data is null if the probabilities are not wanted. sink_probabilities is an array
// with one value per row, of the dtype of RowValues, or null if it is not wanted. input and output
// may be the same memory. The dtypes are those of SoftmaxForward; output and probabilities share
// one.
struct MaskedSoftmaxForward {
  ConstRows input;
  Rows output, probabilities;
  Scores scores;
  Dropout dropout;
  int64_t rows, cols;
  bool zero_masked_rows;
  void* sink_probabilities = nullptr;
};

// Let g be grad_output with the forward's dropout applied, and s = sum(g * probabilities). Then
// grad_input = scale * probabilities * (g - s), and 0 where a bool mask or the interval hides the
// column. Only the bool mask, the interval and the scale of `scores` are used. grad_input may be
// the memory of grad_output. The dtypes are those of SoftmaxBackward.
//
// grad_sinks = -sink_probabilities * s. Both are arrays with one value per row, as the forward's
// sink_probabilities are, and null if the gradient of the sinks is not wanted.
struct MaskedSoftmaxBackward {
  ConstRows grad_output, probabilities;
  Rows grad_input;
  Scores scores;
  Dropout dropout;
  int64_t rows, cols;
  const void* sink_probabilities = nullptr;
  void* grad_sinks = nullptr;
};

// Names the kinds of norms as in norm_kinds.def, which has their formulas.
enum class NormKind : int32_t {
#define NORM_KIND(kind, ...) k##kind,
#include "norm_kinds.def"
#undef NORM_KIND
};

// Whether norms of this kind subtract the mean. Each line of norm_kinds.def contributes a condition
// that is false only for its own kind, and only if that has no mean.
FUSEDOPS_HOST_DEVICE constexpr bool has_mean(NormKind kind) {
#define NORM_KIND(name, op, mean, ...) &&(mean || kind != NormKind::k##name)
  return true
#include "norm_kinds.def"
      ;
#undef NORM_KIND
}

// Let x = dropout(input) + residual, rounded once to the dtype of output, or x = input if
// residual.data is null. Then output = (x - mean) * rstd * (weight + weight_offset) + bias, and sum
// = x. With rounds_normalized, (x - mean) * rstd is rounded to the dtype of output before it is
// multiplied.
//
// mean and rstd are arrays of statistics with one value per row, double if output is double and
// float otherwise. mean is null if the kind has none; both are null if they are not wanted.
// sum.data is null if the sum is not wanted. Only a norm with a residual has dropout.
//
// residual, sum and output share one dtype. input has it too or, beside a residual in float32, may
// be 16-bit, as the results of layers under autocast are. weight and bias share one dtype, the
// output's or float32.
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

// Computes the gradients of NormForward. `input` is what was normalized: the forward's sum if it
// had a residual, and its input otherwise. grad_sum, unless its data is null, is added to the
// gradient that comes through the norm. grad_input is the gradient of x, and so of the residual.
// grad_branch = dropout(grad_input) is the gradient of the forward's input; without dropout it is
// wanted only if its dtype differs from grad_input's.
//
// grad_input, grad_branch, grad_weight and grad_bias are not computed if their data is null. All
// tensors of rows share one dtype, except that grad_branch may be 16-bit where the others are
// float32. Only kStd and kL2 use eps.
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

// Normalizes the dim_size values of each outer and inner index, as SpatialSoftmaxForward does for a
// softmax. kind is kLayer or kRms. mean and rstd have one value for each outer and inner index. The
// rest is as in NormForward, with dim_size for cols.
struct SpatialNormForward {
  NormKind kind;
  ConstSlices input;
  Slices output;
  ConstColumns weight, bias;
  void *mean, *rstd;
  int64_t outer, dim_size, inner;
  double eps;
};

// Computes the gradients of SpatialNormForward. The rest is as in NormBackward.
struct SpatialNormBackward {
  NormKind kind;
  ConstSlices grad_output, input;
  const void *mean, *rstd;
  ConstColumns weight;
  Slices grad_input;
  Columns grad_weight, grad_bias;
  void* workspace;
  int64_t outer, dim_size, inner;
};

// --- stacks: one operation on several tensors, each result in its slot --------------------------

// A launch takes at most this many tensors, because their arguments have to fit into the 4 KB that
// the parameters of a CUDA kernel may have.
constexpr int32_t kMaxStack = 32;

// Returns the address that is `elements` elements after `data`, or null for null.
FUSEDOPS_HOST_DEVICE inline const void* moved(const void* data, int64_t elements, DType dtype) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + elements * size_of(dtype);
}
FUSEDOPS_HOST_DEVICE inline void* moved(void* data, int64_t elements, DType dtype) {
  return const_cast<void*>(moved(static_cast<const void*>(data), elements, dtype));
}

// Describes the softmaxes of `count` tensors. `each` holds what all of them share, and the output
// of tensor 0; the output of tensor i begins `slot` elements after that of tensor i - 1. stack[i]
// returns the arguments for tensor i alone.
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

// Describes norms of `count` tensors as SoftmaxStack does softmaxes. The statistics of tensor i
// follow those of tensor i - 1. Either all tensors have a weight or none has one, and likewise for
// the bias.
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

// Describes the gradients of a NormStack. The statistics, grad_input, grad_weight, grad_bias and
// workspace of tensor i follow those of tensor i - 1. Its part of grad_output begins `slot`
// elements after that of tensor i - 1.
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
