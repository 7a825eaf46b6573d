// Implements cross_entropy and its backward: checks tensors, and passes the rows of the last
// dimension to the launcher.
#pragma once

#include "ops/tensor.h"

namespace fusedops {

// Holds the arguments of both passes that are not tensors.
struct CrossEntropySettings {
  std::optional<int64_t> ignore_index;
  double label_smoothing, scale;
  std::optional<double> softcap;
};

// Holds the classes as kernels read them: contiguous, and int32 or int64. uint8 is converted.
class ClassTargets {
 public:
  ClassTargets(const char* op, const Tensor& target, std::optional<int64_t> ignored)
      : ignored_(ignored) {
    const bool is_byte = dtype_of(target) == ScalarType::Byte;
    target_ = as_contiguous(op, is_byte ? convert(op, target, ScalarType::Int) : target);
  }

  Targets read() const {
    const bool is_int64 = dtype_of(target_) == ScalarType::Long;
    return {target_.const_data_ptr(), is_int64, ignored_.has_value(), ignored_.value_or(0)};
  }

  // Refuses a class that is neither ignored nor a column. The classes must be in host memory. `of`
  // is the name, for the message, of the argument that has `cols` classes.
  void check_in_range(const char* op, int64_t cols, const char* of = "input") const {
    if (dtype_of(target_) == ScalarType::Long) return check_values<int64_t>(op, cols, of);
    check_values<int32_t>(op, cols, of);
  }

 private:
  template <class Int>
  void check_values(const char* op, int64_t cols, const char* of) const {
    const auto* const classes = static_cast<const Int*>(target_.const_data_ptr());
    const int64_t count = target_.numel();
    const auto is_wrong = [&](Int value) {
      const bool is_column = static_cast<uint64_t>(int64_t{value}) < static_cast<uint64_t>(cols);
      return !is_column && !(ignored_ && value == *ignored_);
    };
    const auto wrong = std::find_if(classes, classes + count, is_wrong);
    if (wrong == classes + count) return;
    std::string ignored = "or " + std::to_string(ignored_.value_or(0)) + ", which is ignored";
    fail(
        op, ": target of row ", wrong - classes, " is ", *wrong, ", wanted a class in [0, ", cols,
        ") of the ", cols, " of ", of, ignored_ ? ", " + ignored : std::string());
  }

  Tensor target_;
  std::optional<int64_t> ignored_;
};

// Checks dtype, shape and device of the tensor of classes. `rows` are the sizes of input without
// its last dimension. `what` names the elements of that dimension in the message: classes or
// features.
inline void check_target(
    const char* op, const Tensor& target, const Tensor& input, SizesView rows, const char* what) {
  check_given(op, "target", target);
  const ScalarType dtype = dtype_of(target);
  FUSEDOPS_CHECK(
      dtype == ScalarType::Long || dtype == ScalarType::Int || dtype == ScalarType::Byte, op,
      ": target is ", dtype_text(target),
      ", wanted classes of torch.int64, torch.int32 or torch.uint8");
  FUSEDOPS_CHECK(
      are_same_sizes(target.sizes(), rows), op, ": target has shape ", list_text(target.sizes()),
      ", wanted that of input without its ", what, ", ", list_text(rows));
  check_device(op, "target", target, {"input", input});
}

inline void check_cross_entropy_settings(
    const char* op, const CrossEntropySettings& settings, ScalarType computed) {
  FUSEDOPS_CHECK(
      settings.label_smoothing >= 0 && settings.label_smoothing <= 1, op, ": label_smoothing is ",
      settings.label_smoothing, ", wanted a value in [0, 1]");
  check_softcap(op, settings.softcap, computed);
}

inline void check_cross_entropy(
    const char* op, const Tensor& input, const Tensor& target,
    const CrossEntropySettings& settings) {
  check_dtype_of(op, "input", input);
  const SizesView sizes = input.sizes();
  FUSEDOPS_CHECK(
      !sizes.empty() && (sizes.back() > 0 || product(sizes, 0, sizes.size() - 1) == 0), op,
      ": input has shape ", list_text(sizes), ", wanted at least one class in the last dimension");
  check_cols(op, sizes.back());
  check_target(op, target, input, row_sizes(input), "classes");
  check_finite(op, "scale", settings.scale, statistics_dtype(dtype_of(input)));
  check_cross_entropy_settings(op, settings, dtype_of(input));
}

// Stands for a launcher in as_rows(). On every device the kernels of cross entropy read runs of
// rows, as in logits[:, :-1]: they compute the offset of a row once for its many columns.
struct RunReader {
  static constexpr bool kReadsRuns = true;
};

inline RowView rows_of_classes(const char* op, const Tensor& input) {
  return as_rows<RunReader>(op, input, input.dim() - 1);
}

// Holds the losses of rows, and what their derivatives are computed from.
struct CrossEntropyStatistics {
  Tensor losses, lse, lse_error;
};

inline CrossEntropyStatistics empty_statistics(
    const char* op, const Tensor& input, SizesView sizes) {
  const ScalarType dtype = statistics_dtype(dtype_of(input));
  const auto empty = [&] { return empty_contiguous(op, input, sizes, dtype); };
  return {empty(), empty(), empty()};
}

template <class Launcher>
void cross_entropy_into(
    const char* op, const Tensor& input, const ClassTargets& targets,
    const CrossEntropySettings& settings, bool reads_ignored,
    const CrossEntropyStatistics& results) {
  if (input.numel() == 0) return;
  const RowView rows = rows_of_classes(op, input);
  CrossEntropyForward args{};
  args.logits = {rows.read(), settings.scale, settings.softcap.value_or(0)};
  args.targets = targets.read();
  args.losses = results.losses.mutable_data_ptr();
  args.lse = results.lse.mutable_data_ptr();
  args.lse_error = results.lse_error.mutable_data_ptr();
  args.cols = input.sizes().back();
  args.rows = input.numel() / args.cols;
  args.label_smoothing = settings.label_smoothing;
  args.reads_ignored = reads_ignored;
  launch_with_workspace(op, Launcher(input), input, args);
}

// Returns losses, lse and lse_error of every row.
template <class Launcher>
std::tuple<Tensor, Tensor, Tensor> cross_entropy(
    const Tensor& input, const Tensor& target, std::optional<int64_t> ignore_index,
    double label_smoothing, double scale, std::optional<double> softcap, bool reads_ignored) {
  const char* op = "cross_entropy";
  const CrossEntropySettings settings{ignore_index, label_smoothing, scale, softcap};
  check_cross_entropy(op, input, target, settings);
  const ClassTargets targets(op, target, ignore_index);
  if (!input.is_cuda()) targets.check_in_range(op, input.sizes().back());
  const CrossEntropyStatistics results = empty_statistics(op, input, row_sizes(input));
  cross_entropy_into<Launcher>(op, input, targets, settings, reads_ignored, results);
  return {results.losses, results.lse, results.lse_error};
}

// Holds the tensors of a backward pass except logits and classes.
struct CrossEntropyGradients {
  const Tensor &losses, &lse, &lse_error;
  const std::optional<Tensor>&grad_losses, &grad_lse;
};

inline void check_cross_entropy_gradients(
    const char* op, const Tensor& input, const CrossEntropyGradients& gradients,
    const char* source = "cross_entropy") {
  const SizesView rows = row_sizes(input);
  const Like like{"input", input};
  check_statistic(op, "losses", gradients.losses, like, rows, source);
  check_statistic(op, "lse", gradients.lse, like, rows, source);
  check_statistic(op, "lse_error", gradients.lse_error, like, rows, source);
  FUSEDOPS_CHECK(
      gradients.grad_losses || gradients.grad_lse, op,
      ": grad_losses and grad_lse are both None, wanted at least one of them");
  const auto check_gradient = [&](const char* name, const std::optional<Tensor>& gradient) {
    if (gradient) check_statistic(op, name, *gradient, like, rows, "autograd");
  };
  check_gradient("grad_losses", gradients.grad_losses);
  check_gradient("grad_lse", gradients.grad_lse);
}

template <class Launcher>
void cross_entropy_backward_into(
    const char* op, const Tensor& input, const Tensor& target,
    const CrossEntropyGradients& gradients, const CrossEntropySettings& settings,
    const Tensor& grad_input) {
  if (input.numel() == 0) return;
  const auto contiguous = [&](const std::optional<Tensor>& gradient) {
    return gradient ? as_contiguous(op, *gradient) : Tensor();
  };
  const auto data = [](const Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr() : nullptr;
  };
  const ClassTargets targets(op, target, settings.ignore_index);
  const Tensor losses = as_contiguous(op, gradients.losses), lse = as_contiguous(op, gradients.lse);
  const Tensor lse_error = as_contiguous(op, gradients.lse_error);
  const Tensor grad_losses = contiguous(gradients.grad_losses);
  const Tensor grad_lse = contiguous(gradients.grad_lse);
  const RowView rows = rows_of_classes(op, input);
  CrossEntropyBackward args{};
  args.logits = {rows.read(), settings.scale, settings.softcap.value_or(0)};
  args.targets = targets.read();
  args.losses = data(losses);
  args.lse = data(lse);
  args.lse_error = data(lse_error);
  args.grad_losses = data(grad_losses);
  args.grad_lse = data(grad_lse);
  args.grad_input = rows_of_classes(op, grad_input).write();
  args.cols = input.sizes().back();
  args.rows = input.numel() / args.cols;
  args.label_smoothing = settings.label_smoothing;
  launch_with_workspace(op, Launcher(input), input, args);
}

template <class Launcher>
Tensor cross_entropy_gradient(
    const char* op, const Tensor& input, const Tensor& target,
    const CrossEntropyGradients& gradients, const CrossEntropySettings& settings) {
  const Tensor grad_input = empty_contiguous(op, input, input.sizes(), dtype_of(input));
  cross_entropy_backward_into<Launcher>(op, input, target, gradients, settings, grad_input);
  return grad_input;
}

template <class Launcher>
Tensor cross_entropy_backward(
    const Tensor& input, const Tensor& target, const Tensor& losses, const Tensor& lse,
    const Tensor& lse_error, const std::optional<Tensor>& grad_losses,
    const std::optional<Tensor>& grad_lse, std::optional<int64_t> ignore_index,
    double label_smoothing, double scale, std::optional<double> softcap) {
  const char* op = "cross_entropy_backward";
  const CrossEntropySettings settings{ignore_index, label_smoothing, scale, softcap};
  const CrossEntropyGradients gradients{losses, lse, lse_error, grad_losses, grad_lse};
  check_cross_entropy(op, input, target, settings);
  check_cross_entropy_gradients(op, input, gradients);
  return cross_entropy_gradient<Launcher>(op, input, target, gradients, settings);
}

// Writes the gradient to the memory of the logits.
template <class Launcher>
void cross_entropy_backward_in_place(
    Tensor input, const Tensor& target, const Tensor& losses, const Tensor& lse,
    const Tensor& lse_error, const std::optional<Tensor>& grad_losses,
    const std::optional<Tensor>& grad_lse, std::optional<int64_t> ignore_index,
    double label_smoothing, double scale, std::optional<double> softcap) {
  const char* op = "cross_entropy_backward_";
  const CrossEntropySettings settings{ignore_index, label_smoothing, scale, softcap};
  const CrossEntropyGradients gradients{losses, lse, lse_error, grad_losses, grad_lse};
  check_cross_entropy(op, input, target, settings);
  check_cross_entropy_gradients(op, input, gradients);
  check_distinct(op, "input", input);
  if (row_spacing<RunReader>(input, input.dim() - 1)) {
    return cross_entropy_backward_into<Launcher>(op, input, target, gradients, settings, input);
  }
  torch::stable::copy_(
      input, cross_entropy_gradient<Launcher>(op, input, target, gradients, settings));
}

}  // namespace fusedops
