// Implements masked_softmax with and without dropout, forward and backward: checks tensors, passes
// rows and operands to the launcher, and returns tensors.
#pragma once

#include <cmath>
#include <tuple>

#include "ops/dropout.h"
#include "ops/softmax.h"

namespace fusedops {

// Holds the arguments that say how scores are computed and hidden. Those that have a default here
// are not arguments of a backward op.
struct MaskedSoftmaxOptions {
  const char* op;
  double scale;
  bool causal;
  int64_t diagonal;
  std::optional<int64_t> lower_diagonal;
  // nullopt stands for -inf: AOTInductor writes arguments as JSON, which has no infinity.
  std::optional<double> mask_value = 0;
  bool zero_masked_rows = false;
  std::optional<double> softcap = std::nullopt;

  double filled_value() const {
    return mask_value.value_or(-std::numeric_limits<double>::infinity());
  }
};

// --- checks -------------------------------------------------------------------------------------

// Checks the options against `input`, whose last dimension is the softmax's.
inline void check_options(const MaskedSoftmaxOptions& options, const Tensor& input) {
  const char* op = options.op;
  FUSEDOPS_CHECK(input.dim() > 0, op, ": input has no dimension, wanted at least one");
  FUSEDOPS_CHECK(
      input.dim() > 1 || !(options.causal || options.lower_diagonal), op, ": ",
      options.causal ? "causal" : "lower_diagonal",
      " needs queries and keys, the last two dimensions; input has shape ",
      list_text(input.sizes()));
  check_cols(op, input.sizes()[input.dim() - 1]);
  FUSEDOPS_CHECK(!std::isnan(options.scale), op, ": scale is NaN, wanted a number");
}

// Whether a tensor of sizes `operand` broadcasts to `sizes`: from the end, each size is equal or 1.
inline bool broadcasts_to(SizesView operand, SizesView sizes) {
  bool fits = operand.size() <= sizes.size();
  for (size_t i = 1; i <= operand.size() && fits; ++i) {
    const int64_t size = operand[operand.size() - i];
    fits = size == sizes[sizes.size() - i] || size == 1;
  }
  return fits;
}

// Checks that an operand is on input's device and broadcasts to `input` or, if it is `per_row`, to
// input's rows.
inline void check_operand(
    const char* op, const char* name, const Tensor& operand, const Tensor& input,
    bool per_row = false) {
  check_device(op, name, operand, {"input", input});
  const SizesView wanted = per_row ? row_sizes(input) : input.sizes();
  FUSEDOPS_CHECK(
      broadcasts_to(operand.sizes(), wanted), op, ": ", name, " has shape ",
      list_text(operand.sizes()), ", wanted one that broadcasts to ", list_text(wanted),
      ", input's shape", per_row ? " without its last dimension" : "");
}

inline void check_bound(
    const char* op, const char* name, const std::optional<Tensor>& bound, const Tensor& input) {
  if (!bound) return;
  check_memory(op, name, *bound);
  const ScalarType dtype = dtype_of(*bound);
  FUSEDOPS_CHECK(
      dtype == ScalarType::Int || dtype == ScalarType::Long, op, ": ", name, " is ",
      dtype_text(*bound), ", wanted torch.int32 or torch.int64, a column for each row; convert it");
  check_operand(op, name, *bound, input, /*per_row=*/true);
}

inline void check_mask(const char* op, const std::optional<Tensor>& mask, const Tensor& input) {
  if (!mask) return;
  check_memory(op, "mask", *mask);
  FUSEDOPS_CHECK(
      dtype_of(*mask) == ScalarType::Bool || is_supported(dtype_of(*mask)), op, ": mask is ",
      dtype_text(*mask),
      ", wanted torch.bool (True where visible) or a floating dtype (added); convert it, as in "
      "mask != 0");
  check_operand(op, "mask", *mask, input);
}

// Checks a bias or sinks.
inline void check_floating_operand(
    const char* op, const char* name, const std::optional<Tensor>& operand, const Tensor& input,
    bool per_row = false) {
  if (!operand) return;
  check_dtype_of(op, name, *operand);
  check_operand(op, name, *operand, input, per_row);
}

// Refuses NaN, and finite values that the compute type would make infinite.
inline void check_mask_value(const char* op, double value, ScalarType computed) {
  FUSEDOPS_CHECK(!std::isnan(value), op, ": mask_value is NaN, wanted a number");
  const bool fits = computed == ScalarType::Double || std::isinf(value) ||
      std::abs(value) <= std::numeric_limits<float>::max();
  FUSEDOPS_CHECK(
      fits, op, ": mask_value is ", value, ", beyond float32, which ", dtype_name(computed),
      " is computed in; wanted -inf or at least ", std::numeric_limits<float>::lowest());
}

// Holds the tensors that hide columns. A backward reads the mask only if it is bool.
struct HidingOperands {
  std::optional<Tensor> mask, start, end;

  bool may_overlap(const Tensor& written) const {
    const auto reads = [&](const std::optional<Tensor>& operand) {
      return operand && fusedops::may_overlap(*operand, written);
    };
    return reads(mask) || reads(start) || reads(end);
  }
};

inline void check_hiding(const char* op, const HidingOperands& operands, const Tensor& input) {
  check_mask(op, operands.mask, input);
  check_bound(op, "start", operands.start, input);
  check_bound(op, "end", operands.end, input);
}

// Holds the tensors of a forward.
struct MaskedSoftmaxInputs {
  Tensor input;
  HidingOperands hiding;
  std::optional<Tensor> bias, sinks;

  bool may_overlap(const Tensor& written) const {
    return hiding.may_overlap(written) || (bias && fusedops::may_overlap(*bias, written)) ||
        (sinks && fusedops::may_overlap(*sinks, written));
  }
};

inline void check_masked_softmax(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxInputs& inputs, ScalarType computed) {
  check_options(options, inputs.input);
  check_hiding(options.op, inputs.hiding, inputs.input);
  check_floating_operand(options.op, "bias", inputs.bias, inputs.input);
  check_floating_operand(options.op, "sinks", inputs.sinks, inputs.input, /*per_row=*/true);
  check_mask_value(options.op, options.filled_value(), computed);
  check_softcap(options.op, options.softcap, computed);
}

// Holds the tensors of a backward, except those of the sinks.
struct MaskedSoftmaxGradients {
  Tensor grad_output, probabilities;
  HidingOperands hiding;
};

inline void check_masked_softmax_backward(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxGradients& tensors) {
  const char* op = options.op;
  check_dtype_of(op, "probabilities", tensors.probabilities);
  check_like(op, "grad_output", tensors.grad_output, {"probabilities", tensors.probabilities});
  check_options(options, tensors.probabilities);
  check_hiding(op, tensors.hiding, tensors.probabilities);
}

// --- operands -----------------------------------------------------------------------------------

// Holds an operand that kernels can read, which has a value for each element of the input or for
// each of its rows. The functions that describe it leave out the strides between rows.
class PreparedOperand {
 public:
  Sizes strides;  // for the dimensions of the input or its rows; 0 where the operand is broadcast

  PreparedOperand(const char* op, std::optional<Tensor> operand, int64_t rank)
      : strides(rank, 0), op_(op), tensor_(std::move(operand)) {
    if (tensor_) set_strides();
  }

  void make_contiguous() {
    tensor_ = as_contiguous(op_, *tensor_);
    set_strides();
  }
  // Expands the operand to the first of these sizes, and makes it contiguous.
  void materialize(SizesView sizes) {
    if (!tensor_) return;
    tensor_ = expand(*tensor_, {sizes.data(), strides.size()});
    make_contiguous();
  }

  Operand operand() const {
    if (!tensor_) return {};
    const ScalarType dtype = dtype_of(*tensor_);
    return {
        data(), /*strides=*/{}, static_cast<int32_t>(strides.back()), dtype == ScalarType::Bool,
        kernel_dtype(dtype)};
  }
  RowBound bound() const {
    return {data(), /*strides=*/{}, tensor_ && dtype_of(*tensor_) == ScalarType::Long};
  }
  RowValues values() const { return {data(), /*strides=*/{}}; }

 private:
  const void* data() const { return tensor_ ? tensor_->const_data_ptr() : nullptr; }

  void set_strides() {
    const Layout layout(*tensor_);
    const size_t missing = strides.size() - layout.sizes.size();
    for (size_t d = 0; d < layout.sizes.size(); ++d) {
      strides[missing + d] = layout.sizes[d] > 1 ? layout.strides[d] : 0;
    }
  }

  const char* op_;
  std::optional<Tensor> tensor_;
};

// Prepares a mask or bias: in a dtype that kernels support, and with a column stride of 1 or 0. An
// operand that is not bool is converted to float64 if that is the compute type; otherwise to
// float32, unless it has the input's dtype.
inline PreparedOperand prepared_operand(
    const char* op, std::optional<Tensor> operand, const Tensor& input, ScalarType computed) {
  if (operand && dtype_of(*operand) != ScalarType::Bool) {
    const bool is_same = computed != ScalarType::Double && dtype_of(*operand) == dtype_of(input);
    if (!is_same) operand = convert(op, *operand, statistics_dtype(computed));
  }
  PreparedOperand prepared(op, operand, input.dim());
  if (prepared.strides.back() > 1) prepared.make_contiguous();
  return prepared;
}

// Prepares the operands and intervals of the scores for the kernels. Owns the memory to which
// `scores` points.
class PreparedScores {
 public:
  Scores scores = {};

  // If rows have more than kMaxRowDims dimensions even when merged, the operands are expanded and
  // copied, so that all dimensions merge.
  PreparedScores(
      const MaskedSoftmaxOptions& options, const Tensor& input, ScalarType computed,
      const HidingOperands& hiding, const std::optional<Tensor>& bias = std::nullopt,
      const std::optional<Tensor>& sinks = std::nullopt)
      : operands_{
            prepared_operand(options.op, hiding.mask, input, computed),
            prepared_operand(options.op, bias, input, computed),
            {options.op, hiding.start, input.dim() - 1},
            {options.op, hiding.end, input.dim() - 1},
            {options.op,
             sinks ? std::optional(convert(options.op, *sinks, statistics_dtype(computed))) : sinks,
             input.dim() - 1}} {
    const SizesView sizes = input.sizes();
    if (!describe(sizes)) {
      for (PreparedOperand& operand : operands_) operand.materialize(sizes);
      describe(sizes);
    }
    scores.causal = causal_of(options, sizes);
    scores.scale = options.scale;
    scores.mask_value = options.filled_value();
    scores.softcap = options.softcap.value_or(0);
  }

 private:
  // Describes the operands for rows of the dimensions of `sizes` but the last: neighbouring ones
  // are merged if every operand steps through them evenly. Returns whether at most kMaxRowDims are
  // left.
  bool describe(SizesView sizes) {
    const auto& [mask, bias, start, end, sinks] = operands_;
    scores.mask = mask.operand();
    scores.bias = bias.operand();
    scores.start = start.bound();
    scores.end = end.bound();
    scores.sinks = sinks.values();
    int64_t* const strides[] = {
        scores.mask.strides, scores.bias.strides, scores.start.strides, scores.end.strides,
        scores.sinks.strides};
    RowDims& dims = scores.dims;
    dims.count = 0;
    for (size_t d = 0; d + 1 < sizes.size(); ++d) {
      if (sizes[d] == 1) continue;
      bool merges = dims.count > 0;
      for (size_t k = 0; k < operands_.size() && merges; ++k) {
        merges = strides[k][dims.count - 1] == operands_[k].strides[d] * sizes[d];
      }
      if (!merges && dims.count == kMaxRowDims) return false;
      if (!merges) dims.sizes[dims.count++] = 1;
      dims.sizes[dims.count - 1] *= sizes[d];
      for (size_t k = 0; k < operands_.size(); ++k) {
        strides[k][dims.count - 1] = operands_[k].strides[d];
      }
    }
    return true;
  }

  static Causal causal_of(const MaskedSoftmaxOptions& options, SizesView sizes) {
    const int64_t queries = sizes.size() > 1 ? sizes[sizes.size() - 2] : 1;
    // A diagonal beyond these bounds has the effect of the bound. Within them, the sum of a
    // diagonal and a query's number cannot overflow.
    const auto limited = [&](int64_t diagonal) {
      return std::clamp(diagonal, -queries, sizes.back());
    };
    return {
        options.causal, queries, limited(options.diagonal), options.lower_diagonal.has_value(),
        limited(options.lower_diagonal.value_or(0))};
  }

  std::array<PreparedOperand, 5> operands_;  // mask, bias, start, end and sinks
};

// --- the ops ------------------------------------------------------------------------------------

// Holds the results of a forward. Only a backward pass needs the probabilities.
struct MaskedSoftmaxResult {
  Tensor output;
  std::optional<Tensor> probabilities, sink_probabilities;  // nullopt if not wanted
};
// Says which of the optional results are wanted.
struct MaskedSoftmaxWanted {
  bool probabilities = false, sink_probabilities = false;
};

template <class Launcher>
void masked_softmax_into(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxInputs& inputs, const Dropout& dropout,
    const MaskedSoftmaxResult& result) {
  const char* op = options.op;
  const auto& [output, probabilities, sink_probabilities] = result;
  if (inputs.input.numel() == 0) {
    if (sink_probabilities) {  // where a row has no columns, its sink is all that it has
      Tensor ones = *sink_probabilities;
      torch::stable::copy_(
          ones, torch::stable::full({1}, 1, dtype_of(ones), std::nullopt, ones.device()));
    }
    return;
  }
  const Tensor input = converted(op, inputs.input, dtype_of(output));
  const PreparedScores prepared(
      options, input, dtype_of(output), inputs.hiding, inputs.bias, inputs.sinks);
  const int64_t dim = input.dim() - 1, cols = input.sizes()[dim];
  const RowView source = as_rows<Launcher>(op, input, dim), to = as_rows<Launcher>(op, output, dim);
  const Rows saved = probabilities ? as_rows<Launcher>(op, *probabilities, dim).write() : Rows{};
  Launcher(input).launch(
      MaskedSoftmaxForward{
          source.read(), to.write(), saved, prepared.scores, dropout, input.numel() / cols, cols,
          options.zero_masked_rows,
          sink_probabilities ? sink_probabilities->mutable_data_ptr() : nullptr});
}

template <class Launcher>
MaskedSoftmaxResult masked_softmax_forward(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxInputs& inputs,
    std::optional<ScalarType> dtype, const MaskedSoftmaxWanted& wanted = {}, double p = 0,
    const std::optional<Tensor>& seed = std::nullopt) {
  const char* op = options.op;
  const Tensor& input = inputs.input;
  const ScalarType output_dtype = softmax_dtype(op, input, dtype);
  const Dropout dropout = branch_dropout(op, p, seed, {"input", input});
  check_masked_softmax(options, inputs, output_dtype);
  const SizesView sizes = input.sizes();
  MaskedSoftmaxResult result{
      empty_contiguous(op, input, sizes, output_dtype), /*probabilities=*/{},
      /*sink_probabilities=*/{}};
  if (wanted.probabilities) result.probabilities = empty_contiguous(op, input, sizes, output_dtype);
  if (wanted.sink_probabilities) {
    result.sink_probabilities =
        empty_contiguous(op, input, row_sizes(input), statistics_dtype(output_dtype));
  }
  masked_softmax_into<Launcher>(options, inputs, dropout, result);
  return result;
}

// Writes the result to `output`, by way of a copy if kernels cannot write it there or if `output`
// overlaps an operand.
template <class Launcher>
void masked_softmax_out(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxInputs& inputs, Tensor output) {
  const char* op = options.op;
  const Tensor& input = inputs.input;
  check_given(op, "input", input);
  check_out(op, output, input);
  check_masked_softmax(options, inputs, dtype_of(output));
  const bool reads_it = inputs.may_overlap(output);
  const SoftmaxDim at = resolve_dim(op, input.sizes(), -1);
  if (!reads_it && is_writable_in_place<Launcher>(input, output, at)) {
    return masked_softmax_into<Launcher>(
        options, inputs, /*dropout=*/{}, {output, /*probabilities=*/{}, /*sink_probabilities=*/{}});
  }
  torch::stable::copy_(
      output, masked_softmax_forward<Launcher>(options, inputs, dtype_of(output)).output);
}

// Holds the tensors for the gradient of the sinks: `probabilities` is read, `grad` is written.
struct SinkGradient {
  std::optional<Tensor> probabilities, grad;
};

template <class Launcher>
void masked_softmax_backward_into(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxGradients& tensors,
    const Dropout& dropout, const Tensor& grad_input, const SinkGradient& sinks = {}) {
  const char* op = options.op;
  const Tensor& probabilities = tensors.probabilities;
  if (grad_input.numel() == 0) {
    if (sinks.grad) {
      Tensor zeros = *sinks.grad;
      torch::stable::zero_(zeros);
    }
    return;
  }
  HidingOperands hiding = tensors.hiding;
  if (hiding.mask && dtype_of(*hiding.mask) != ScalarType::Bool) hiding.mask = std::nullopt;
  const PreparedScores prepared(options, probabilities, dtype_of(probabilities), hiding);
  const int64_t dim = probabilities.dim() - 1, cols = probabilities.sizes()[dim];
  const RowView grad = as_rows<Launcher>(op, tensors.grad_output, dim),
                saved = as_rows<Launcher>(op, probabilities, dim);
  const RowView to = as_rows<Launcher>(op, grad_input, dim);
  Launcher(probabilities)
      .launch(
          MaskedSoftmaxBackward{
              grad.read(), saved.read(), to.write(), prepared.scores, dropout,
              grad_input.numel() / cols, cols,
              sinks.probabilities ? sinks.probabilities->const_data_ptr() : nullptr,
              sinks.grad ? sinks.grad->mutable_data_ptr() : nullptr});
}

template <class Launcher>
Tensor masked_softmax_backward(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxGradients& tensors,
    const Dropout& dropout, ScalarType input_dtype) {
  check_masked_softmax_backward(options, tensors);
  check_dtype(options.op, "input_dtype", input_dtype);
  const Tensor grad_input = empty_gradient(options.op, tensors.probabilities, input_dtype);
  masked_softmax_backward_into<Launcher>(options, tensors, dropout, grad_input);
  return convert(options.op, grad_input, input_dtype);
}

// Writes the result to the memory of grad_output.
template <class Launcher>
void masked_softmax_backward_in_place(
    const MaskedSoftmaxOptions& options, const MaskedSoftmaxGradients& tensors,
    const Dropout& dropout) {
  check_masked_softmax_backward(options, tensors);
  Tensor grad_output = tensors.grad_output;
  check_distinct(options.op, "grad_output", grad_output);
  const bool fits_kernel = row_spacing<Launcher>(grad_output, grad_output.dim() - 1).has_value();
  const bool reads_it =
      may_overlap(tensors.probabilities, grad_output) || tensors.hiding.may_overlap(grad_output);
  if (fits_kernel && !reads_it) {
    return masked_softmax_backward_into<Launcher>(options, tensors, dropout, grad_output);
  }
  torch::stable::copy_(
      grad_output,
      masked_softmax_backward<Launcher>(
          options, tensors, dropout, dtype_of(tensors.probabilities)));
}

// Contains the functions that operators.def names for masked softmaxes, which are registered for
// the device of `Launcher`.
template <class Launcher>
struct MaskedSoftmaxOps {
  using MaybeTensor = std::optional<Tensor>;
  using MaybeDtype = std::optional<ScalarType>;
  using MaybeNumber = std::optional<double>;
  using MaybeInt = std::optional<int64_t>;

  static Tensor masked_softmax(
      const Tensor& input, const MaybeTensor& mask, double scale, bool causal,
      MaybeNumber mask_value, const MaybeTensor& bias, MaybeDtype dtype, int64_t diagonal,
      bool zero_masked_rows, MaybeInt lower_diagonal, const MaybeTensor& start,
      const MaybeTensor& end, const MaybeTensor& sinks, MaybeNumber softcap) {
    return masked_softmax_forward<Launcher>(
               {"masked_softmax", scale, causal, diagonal, lower_diagonal, mask_value,
                zero_masked_rows, softcap},
               {input, {mask, start, end}, bias, sinks}, dtype)
        .output;
  }

  static void masked_softmax_out(
      const Tensor& input, const MaybeTensor& mask, double scale, bool causal,
      MaybeNumber mask_value, const MaybeTensor& bias, int64_t diagonal, bool zero_masked_rows,
      Tensor out, MaybeInt lower_diagonal, const MaybeTensor& start, const MaybeTensor& end,
      const MaybeTensor& sinks, MaybeNumber softcap) {
    fusedops::masked_softmax_out<Launcher>(
        {"masked_softmax", scale, causal, diagonal, lower_diagonal, mask_value, zero_masked_rows,
         softcap},
        {input, {mask, start, end}, bias, sinks}, out);
  }

  static void masked_softmax_(
      Tensor input, const MaybeTensor& mask, double scale, bool causal, MaybeNumber mask_value,
      const MaybeTensor& bias, int64_t diagonal, bool zero_masked_rows, MaybeInt lower_diagonal,
      const MaybeTensor& start, const MaybeTensor& end, const MaybeTensor& sinks,
      MaybeNumber softcap) {
    const char* op = "masked_softmax_";
    check_dtype_of(op, "input", input);
    check_distinct(op, "input", input);
    fusedops::masked_softmax_out<Launcher>(
        {op, scale, causal, diagonal, lower_diagonal, mask_value, zero_masked_rows, softcap},
        {input, {mask, start, end}, bias, sinks}, input);
  }

  static Tensor masked_softmax_backward(
      const Tensor& grad_output, const Tensor& probabilities, const MaybeTensor& mask, double scale,
      bool causal, ScalarType input_dtype, int64_t diagonal, MaybeInt lower_diagonal,
      const MaybeTensor& start, const MaybeTensor& end) {
    return fusedops::masked_softmax_backward<Launcher>(
        {"masked_softmax_backward", scale, causal, diagonal, lower_diagonal},
        {grad_output, probabilities, {mask, start, end}}, /*dropout=*/{}, input_dtype);
  }

  static void masked_softmax_backward_(
      Tensor grad_output, const Tensor& probabilities, const MaybeTensor& mask, double scale,
      bool causal, int64_t diagonal, MaybeInt lower_diagonal, const MaybeTensor& start,
      const MaybeTensor& end) {
    masked_softmax_backward_in_place<Launcher>(
        {"masked_softmax_backward_", scale, causal, diagonal, lower_diagonal},
        {grad_output, probabilities, {mask, start, end}}, /*dropout=*/{});
  }

  // Returns the output and, with kWantsProbabilities, the probabilities for a backward pass.
  template <bool kWantsProbabilities>
  static auto masked_softmax_dropout(
      const Tensor& input, const MaybeTensor& mask, double scale, bool causal,
      MaybeNumber mask_value, double p, const Tensor& seed, const MaybeTensor& bias,
      MaybeDtype dtype, int64_t diagonal, bool zero_masked_rows, MaybeInt lower_diagonal,
      const MaybeTensor& start, const MaybeTensor& end, const MaybeTensor& sinks,
      MaybeNumber softcap) {
    const char* op = "masked_softmax_dropout";
    const MaskedSoftmaxResult result = masked_softmax_forward<Launcher>(
        {op, scale, causal, diagonal, lower_diagonal, mask_value, zero_masked_rows, softcap},
        {input, {mask, start, end}, bias, sinks}, dtype,
        /*wanted=*/{kWantsProbabilities}, p, seed);
    if constexpr (kWantsProbabilities) {
      return std::tuple(result.output, *result.probabilities);
    } else {
      return result.output;
    }
  }

  // Returns the output, the probabilities of the scores (empty without a seed, because they are the
  // output then), and those of the sinks.
  static std::tuple<Tensor, Tensor, Tensor> masked_softmax_sinks(
      const Tensor& input, const MaybeTensor& mask, double scale, bool causal,
      MaybeNumber mask_value, double p, const MaybeTensor& seed, const MaybeTensor& bias,
      MaybeDtype dtype, int64_t diagonal, bool zero_masked_rows, MaybeInt lower_diagonal,
      const MaybeTensor& start, const MaybeTensor& end, const Tensor& sinks, MaybeNumber softcap) {
    const char* op = "masked_softmax_sinks";
    check_given(op, "sinks", sinks);
    const MaskedSoftmaxResult result = masked_softmax_forward<Launcher>(
        {op, scale, causal, diagonal, lower_diagonal, mask_value, zero_masked_rows, softcap},
        {input, {mask, start, end}, bias, sinks}, dtype,
        /*wanted=*/{/*probabilities=*/seed.has_value(), /*sink_probabilities=*/true}, p, seed);
    const Tensor& output = result.output;
    const Tensor probabilities =
        seed ? *result.probabilities : empty_contiguous(op, output, {0}, dtype_of(output));
    return {output, probabilities, *result.sink_probabilities};
  }

  // Returns the gradients of the input and, one for each row, of the sinks.
  static std::tuple<Tensor, Tensor> masked_softmax_sinks_backward(
      const Tensor& grad_output, const Tensor& probabilities, const Tensor& sink_probabilities,
      const MaybeTensor& mask, double scale, bool causal, double p, const MaybeTensor& seed,
      ScalarType input_dtype, int64_t diagonal, MaybeInt lower_diagonal, const MaybeTensor& start,
      const MaybeTensor& end) {
    const char* op = "masked_softmax_sinks_backward";
    const Like like{"probabilities", probabilities};
    check_given(op, like.name, probabilities);
    const Dropout dropout = branch_dropout(op, p, seed, like);
    const MaskedSoftmaxOptions options{op, scale, causal, diagonal, lower_diagonal};
    const MaskedSoftmaxGradients tensors{grad_output, probabilities, {mask, start, end}};
    check_masked_softmax_backward(options, tensors);
    check_dtype(op, "input_dtype", input_dtype);
    const SizesView rows = row_sizes(probabilities);
    check_statistic(op, "sink_probabilities", sink_probabilities, like, rows);
    const Tensor grad_input = empty_gradient(op, probabilities, input_dtype);
    const Tensor grad_sinks =
        empty_contiguous(op, probabilities, rows, statistics_dtype(dtype_of(probabilities)));
    masked_softmax_backward_into<Launcher>(
        options, tensors, dropout, grad_input, {as_contiguous(op, sink_probabilities), grad_sinks});
    return {convert(op, grad_input, input_dtype), grad_sinks};
  }

  static Tensor masked_softmax_dropout_backward(
      const Tensor& grad_output, const Tensor& probabilities, const MaybeTensor& mask, double scale,
      bool causal, double p, const Tensor& seed, ScalarType input_dtype, int64_t diagonal,
      MaybeInt lower_diagonal, const MaybeTensor& start, const MaybeTensor& end) {
    const char* op = "masked_softmax_dropout_backward";
    return fusedops::masked_softmax_backward<Launcher>(
        {op, scale, causal, diagonal, lower_diagonal},
        {grad_output, probabilities, {mask, start, end}},
        dropout_of(op, p, seed, {"probabilities", probabilities}), input_dtype);
  }

  static void masked_softmax_dropout_backward_(
      Tensor grad_output, const Tensor& probabilities, const MaybeTensor& mask, double scale,
      bool causal, double p, const Tensor& seed, int64_t diagonal, MaybeInt lower_diagonal,
      const MaybeTensor& start, const MaybeTensor& end) {
    const char* op = "masked_softmax_dropout_backward_";
    masked_softmax_backward_in_place<Launcher>(
        {op, scale, causal, diagonal, lower_diagonal},
        {grad_output, probabilities, {mask, start, end}},
        dropout_of(op, p, seed, {"probabilities", probabilities}));
  }
};

}  // namespace fusedops
