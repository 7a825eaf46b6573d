// Implements linear_cross_entropy, the cross entropy of logits that a linear layer computes. The
// logits are computed for one chunk of rows after the other in one buffer, so that those of all
// rows are never in memory at once.
#pragma once

#include "ops/cross_entropy.h"

namespace fusedops {

// --- torch's operators --------------------------------------------------------------------------
//
// No operator here takes a Scalar, which the stable ABI cannot pass.

// While a guard lives, autograd neither records operators nor refuses their `out` arguments.
class NoGradGuard {
 public:
  NoGradGuard() : was_enabled_(aoti_torch_grad_mode_is_enabled()) {
    aoti_torch_grad_mode_set_enabled(false);
  }
  ~NoGradGuard() { aoti_torch_grad_mode_set_enabled(was_enabled_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool was_enabled_;
};

inline Tensor multiply(const Tensor& a, const Tensor& b) {
  return call_aten("aten::mul", "Tensor", a, b);
}
inline Tensor select_rows(const Tensor& tensor, const Tensor& index) {
  return call_aten("aten::index_select", "", tensor, int64_t{0}, index);
}
inline void copy_rows(const Tensor& to, const Tensor& index, const Tensor& from) {
  call_aten("aten::index_copy_", "", to, int64_t{0}, index, from);
}
inline Tensor transposed(const Tensor& matrix) { return torch::stable::transpose(matrix, 0, 1); }
inline Tensor rows_from(const Tensor& tensor, int64_t first, int64_t count) {
  Tensor whole = tensor;
  return torch::stable::narrow(whole, /*dim=*/0, first, count);
}
inline Tensor zeros(const Tensor& like, SizesView sizes, ScalarType dtype) {
  return torch::stable::new_zeros(like, sizes, dtype);
}

// Writes the matrix product of a and b to `product`.
inline void multiply_matrices(const Tensor& a, const Tensor& b, const Tensor& product) {
  call_aten("aten::mm", "out", a, b, product);
}
// Adds the matrix product of a and b to `sum`. aten::addmm itself takes Scalars; aten::linear calls
// it without any, and takes a matrix as its bias.
inline void add_product(const Tensor& a, const Tensor& b, const Tensor& sum) {
  call_aten("aten::linear", "out", a, transposed(b), std::optional<Tensor>(sum), sum);
}
inline Tensor columns_from(const Tensor& matrix, int64_t first, int64_t count) {
  Tensor whole = matrix;
  return torch::stable::narrow(whole, /*dim=*/1, first, count);
}

// --- arguments ----------------------------------------------------------------------------------

// Holds the arguments of a linear layer whose results are logits, and of their cross entropy.
struct LinearHead {
  const Tensor &input, &weight, &target;
  const std::optional<Tensor>& bias;
  CrossEntropySettings settings;

  int64_t rows() const { return input.sizes()[0]; }
  int64_t features() const { return input.sizes()[1]; }
  int64_t classes() const { return weight.sizes()[0]; }

  // Returns how many classes, from the first on, one matrix product has. A second product has the
  // others, fewer than fill 16 bytes. A product of 16-bit matrices on CUDA is slow unless its sizes
  // are multiples of 16 bytes: on an H100 those of 50,257 classes reach 100 of 700 TFLOP/s.
  int64_t classes_at_once() const {
    const auto unit = static_cast<int64_t>(16 / weight.element_size());
    return input.is_cuda() && classes() > unit ? classes() / unit * unit : classes();
  }

  // Calls body(first, count) for the classes of each matrix product.
  template <class Body>
  void for_products(Body body) const {
    const int64_t at_once = classes_at_once();
    body(int64_t{0}, at_once);
    if (at_once < classes()) body(at_once, classes() - at_once);
  }
};

inline void check_linear_weight(const char* op, const LinearHead& head) {
  check_given(op, "linear_weight", head.weight);
  const auto sizes = head.weight.sizes();
  FUSEDOPS_CHECK(
      sizes.size() == 2 && sizes[0] > 0 && sizes[1] == head.features(), op,
      ": linear_weight has shape ", list_text(sizes), ", wanted [classes, ", head.features(),
      "], at least one class and the features of input");
  check_cols(op, head.classes());
  FUSEDOPS_CHECK(
      dtype_of(head.weight) == dtype_of(head.input), op, ": linear_weight is ",
      dtype_text(head.weight), ", wanted ", dtype_text(head.input),
      " as input is; convert one of them, or use torch.autocast");
  check_device(op, "linear_weight", head.weight, {"input", head.input});
}

inline void check_linear_head(const char* op, const LinearHead& head) {
  check_dtype_of(op, "input", head.input);
  FUSEDOPS_CHECK(
      head.input.dim() == 2, op, ": input has shape ", list_text(head.input.sizes()),
      ", wanted [rows, features]");
  check_linear_weight(op, head);
  check_target(op, head.target, head.input, {head.rows()}, "features");
  if (head.bias) {
    check_tensor(
        op, "linear_bias", *head.bias, dtype_of(head.input), Sizes{head.classes()},
        {"input", head.input}, " as input and linear_weight have them");
  }
  check_cross_entropy_settings(op, head.settings, dtype_of(head.input));
}

// Checks that every class is a row of the weight, on the CPU alone: to read classes from CUDA, the
// host would have to wait.
inline void check_classes(const char* op, const LinearHead& head) {
  if (head.input.is_cuda()) return;
  const ClassTargets targets(op, head.target, head.settings.ignore_index);
  targets.check_in_range(op, head.classes(), "linear_weight");
}

// --- rows and chunks ----------------------------------------------------------------------------

// Selects the rows that are not ignored. Logits are computed for these alone, because in
// fine-tuning often most of a batch is ignored.
struct CountedRows {
  int64_t count;
  std::optional<Tensor> index;  // nullopt for all rows

  // Returns `rows` consecutive ones of the tensor's selected rows, from selected row `first` on.
  Tensor select(const Tensor& tensor, int64_t first, int64_t rows) const {
    return index ? select_rows(tensor, rows_from(*index, first, rows))
                 : rows_from(tensor, first, rows);
  }
  Tensor select(const Tensor& tensor) const { return index ? select_rows(tensor, *index) : tensor; }

  // Returns a tensor of all rows, with `values` in the selected ones and zeros in the others.
  Tensor spread(const Tensor& values, int64_t rows) const {
    if (!index) return values;
    const Tensor all = zeros(values, {rows}, dtype_of(values));
    copy_rows(all, *index, values);
    return all;
  }
};

// Returns the rows that are not ignored, or all rows if the host cannot know which those are.
template <class Launcher>
CountedRows counted_rows(const LinearHead& head) {
  const std::optional<int64_t> ignored = head.settings.ignore_index;
  // The host has to know how many rows are not ignored. On CUDA it waits for the device to count
  // them, which is not possible while a graph is captured.
  if (!ignored || head.rows() == 0 || Launcher(head.input).is_captured()) return {head.rows(), {}};
  // A double rounds an ignore_index of more than 53 bits, but no class is that large.
  const Tensor number = torch::stable::full(
      {1}, static_cast<double>(*ignored), ScalarType::Long, std::nullopt, head.target.device());
  const Tensor is_counted = call_aten("aten::ne", "Tensor", head.target, number);
  const Tensor index = torch::stable::squeeze(call_aten("aten::nonzero", "", is_counted), 1);
  const int64_t count = index.numel();
  if (count == head.rows()) return {count, {}};
  return {count, index};
}

// Divides rows into chunks of one size, except for the last, which may have fewer rows: 1921 rows
// are 11 chunks of 175, and not 10 of 192 and one row. Each chunk moves the gradient of the weight
// through memory once. In chunks of far fewer rows than kRowsOnCpu or kRowsOnCuda, this would take
// longer than the matrix products. The two numbers follow from a machine's arithmetic and
// bandwidth; they do not depend on the sizes of the weight.
struct Chunks {
  static constexpr int64_t kRowsOnCpu = 192, kRowsOnCuda = 4096;
  // A chunk's logits have at most this many bytes. A step of 8192 tokens, 4096 features and 128,256
  // classes on an H100 took 53 ms with 256 MB, 46 with 512 MB and 41 with 1 GB.
  static constexpr int64_t kLogitsBytes = int64_t(512) << 20;

  int64_t rows, count, rows_each;

  Chunks(const LinearHead& head, int64_t rows_) : rows(rows_) {
    const int64_t of_device = head.input.is_cuda() ? kRowsOnCuda : kRowsOnCpu;
    const auto row_bytes = static_cast<int64_t>(head.classes() * head.input.element_size());
    const int64_t most = std::clamp<int64_t>(kLogitsBytes / row_bytes, 1, of_device);
    count = (rows + most - 1) / most;
    rows_each = count == 0 ? 0 : (rows + count - 1) / count;
  }
};

// Returns the statistics of `count` rows from `first` on.
inline CrossEntropyStatistics statistics_from(
    const CrossEntropyStatistics& all, int64_t first, int64_t count) {
  return {
      rows_from(all.losses, first, count), rows_from(all.lse, first, count),
      rows_from(all.lse_error, first, count)};
}

// Describes the rows of a chunk, and their logits in the buffer of ChunkedHead.
struct LinearChunk {
  int64_t first, rows;  // counted without the ignored rows
  Tensor input, target, logits;
};

// Computes the logits of one chunk at a time in one buffer, and losses and gradients from them.
template <class Launcher>
class ChunkedHead {
 public:
  ChunkedHead(const char* op, const LinearHead& head)
      : op_(op),
        head_(head),
        counted_(counted_rows<Launcher>(head)),
        chunks_(head, counted_.count),
        buffer_(make_buffer()) {}

  const CountedRows& counted() const { return counted_; }
  const Chunks& chunks() const { return chunks_; }

  // Calls body(chunk) for all chunks in order. While body runs, the buffer has that chunk's logits.
  template <class Body>
  void for_chunks(Body body) const {
    for (int64_t first = 0; first < chunks_.rows; first += chunks_.rows_each) {
      const int64_t rows = std::min(chunks_.rows_each, chunks_.rows - first);
      const LinearChunk chunk{
          first, rows, counted_.select(head_.input, first, rows),
          as_contiguous(op_, counted_.select(head_.target, first, rows)),
          rows_from(buffer_, 0, rows)};
      compute_logits(chunk);
      body(chunk);
    }
  }

  void compute_losses(const LinearChunk& chunk, const CrossEntropyStatistics& results) const {
    const ClassTargets targets(op_, chunk.target, head_.settings.ignore_index);
    cross_entropy_into<Launcher>(
        op_, chunk.logits, targets, head_.settings, /*reads_ignored=*/false, results);
  }

  // Replaces the logits by their gradient. One of grad_losses and grad_lse may be undefined.
  void differentiate(
      const LinearChunk& chunk, const CrossEntropyStatistics& results, const Tensor& grad_losses,
      const Tensor& grad_lse) const {
    const auto if_defined = [](const Tensor& tensor) {
      return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
    };
    const std::optional<Tensor> of_losses = if_defined(grad_losses), of_lse = if_defined(grad_lse);
    const CrossEntropyGradients gradients{
        results.losses, results.lse, results.lse_error, of_losses, of_lse};
    cross_entropy_backward_into<Launcher>(
        op_, chunk.logits, chunk.target, gradients, head_.settings, chunk.logits);
  }

 private:
  // Returns the buffer for the logits of a chunk. On CUDA its rows begin at lines of 128 bytes, so
  // that kernels and matrix products read and write whole lines.
  Tensor make_buffer() const {
    const int64_t classes = head_.classes();
    const auto line = static_cast<int64_t>(128 / head_.input.element_size());
    const int64_t spacing = head_.input.is_cuda() ? (classes + line - 1) / line * line : classes;
    const Tensor buffer = empty_contiguous(
        op_, head_.input, Sizes{chunks_.rows_each, spacing}, dtype_of(head_.input));
    return columns_from(buffer, 0, classes);
  }

  void compute_logits(const LinearChunk& chunk) const {
    head_.for_products([&](int64_t first, int64_t count) {
      std::optional<Tensor> bias;
      if (head_.bias) bias = rows_from(*head_.bias, first, count);
      call_aten(
          "aten::linear", "out", chunk.input, rows_from(head_.weight, first, count), bias,
          columns_from(chunk.logits, first, count));
    });
  }

  const char* op_;
  const LinearHead& head_;
  CountedRows counted_;
  Chunks chunks_;
  Tensor buffer_;
};

// --- gradients ----------------------------------------------------------------------------------

// Whether sums over chunks are floats that are cut in two halves (ColumnSums in args.h). If 16-bit
// sums were rounded after each chunk, their error would grow with the square root of the number of
// chunks.
inline bool has_halves(const Tensor& result, const Chunks& chunks) {
  return is_16_bit(dtype_of(result)) && chunks.count > 1;
}

// Adds up the rows of all chunks, column by column, in the memory of a result. If has_halves(), the
// sums are floats: their upper halves are where the result will be, the lower ones in `lower_`.
template <class Launcher>
class ChunkSums {
 public:
  ChunkSums() = default;
  // `result` has one dimension.
  ChunkSums(const char* op, const Tensor& result, const Chunks& chunks)
      : op_(op), chunks_(&chunks), result_(result) {
    const Sizes sizes{has_halves(result, chunks) ? result.numel() : 0};
    lower_ = empty_contiguous(op, result, sizes, ScalarType::Short);
  }

  // Adds `rows` to the sums: the first column of `rows` to sum number `start`, and so on. `chunk`
  // is the chunk to which the rows belong.
  void add(const Tensor& rows, const LinearChunk& chunk, int64_t start = 0) const {
    ColumnSums args{};
    args.input = rows_of_classes(op_, rows).read();
    args.rows = rows.sizes()[0];
    args.cols = rows.sizes()[1];
    if (args.rows == 0 || args.cols == 0) return;
    args.sums = rows_from(result_, start, args.cols).mutable_data_ptr();
    if (lower_.numel() > 0) {
      const Tensor lower = rows_from(lower_, start, args.cols);
      args.lower = static_cast<uint16_t*>(lower.mutable_data_ptr());
    }
    args.is_first = chunk.first == 0;
    args.is_last = chunk.first + chunk.rows == chunks_->rows;
    Launcher(rows).launch(args);
  }

 private:
  const char* op_ = nullptr;
  const Chunks* chunks_ = nullptr;
  Tensor result_, lower_;
};

// Holds the gradients of input, weight and bias. A chunk writes its rows of the first, and is added
// to the other two. A gradient that is not wanted is empty.
template <class Launcher>
class LinearGradients {
 public:
  // Allocates the wanted gradients. A gradient that chunks do not write as a whole is zeroed: that
  // of the input if ignored rows are left out, those of weight and bias if there are no rows. If
  // the sums of the weight's gradient are kept in two halves (has_halves()), also allocates these
  // sums and the buffer `product_`, which takes the product of one block of classes at a time.
  LinearGradients(
      const char* op, const LinearHead& head, const ChunkedHead<Launcher>& chunked,
      const std::vector<bool>& wanted)
      : op_(op),
        head_(head),
        counted_(chunked.counted()),
        wants_input_(wanted[0]),
        wants_weight_(wanted[1]),
        wants_bias_(wanted[2] && head.bias) {
    const bool has_rows = counted_.count > 0;
    const auto make = [&](bool is_wanted, SizesView sizes, bool is_zero) {
      const ScalarType dtype = dtype_of(head.input);
      if (!is_wanted) return empty_contiguous(op, head.input, Sizes{0}, dtype);
      return is_zero ? zeros(head.input, sizes, dtype)
                     : empty_contiguous(op, head.input, sizes, dtype);
    };
    input_ = make(wants_input_, head.input.sizes(), counted_.index.has_value());
    weight_ = make(wants_weight_, head.weight.sizes(), !has_rows);
    bias_ = make(wants_bias_, Sizes{head.classes()}, !has_rows);
    if (wants_bias_) bias_sums_ = ChunkSums<Launcher>(op, bias_, chunked.chunks());
    if (wants_weight_ && has_halves(weight_, chunked.chunks())) {
      weight_sums_ = ChunkSums<Launcher>(op, array_of(weight_), chunked.chunks());
      product_ = empty_contiguous(
          op, weight_, Sizes{classes_per_product(head), head.features()}, dtype_of(weight_));
    }
  }

  // Adds the gradients of a chunk, from the gradient of its logits.
  void add(const LinearChunk& chunk) const {
    if (wants_input_) write_input_gradient(chunk);
    if (wants_weight_) add_to_weight(chunk);
    if (wants_bias_) bias_sums_.add(chunk.logits, chunk);
  }

  std::tuple<Tensor, Tensor, Tensor> finished() const { return {input_, weight_, bias_}; }

 private:
  // Where weight_sums_ adds up products, `product_` has room for the products of as many classes as
  // fit into this number of bytes. On the CPU a product is added while it is in the cache. On CUDA
  // it is large enough to keep the matrix units busy.
  static constexpr int64_t kProductBytesOnCpu = int64_t(1) << 20;
  static constexpr int64_t kProductBytesOnCuda = int64_t(64) << 20;
  // On CUDA, product_ has a multiple of this many classes, so that the tiles of products are whole.
  static constexpr int64_t kTileClasses = 128;

  // Returns how many classes `product_` has room for.
  static int64_t classes_per_product(const LinearHead& head) {
    const int64_t product_bytes = head.input.is_cuda() ? kProductBytesOnCuda : kProductBytesOnCpu;
    const auto class_bytes = static_cast<int64_t>(head.features() * head.weight.element_size());
    const int64_t classes_that_fit = product_bytes / std::max<int64_t>(class_bytes, 1);
    const bool has_whole_tiles = head.input.is_cuda() && classes_that_fit > kTileClasses;
    const int64_t most_classes =
        has_whole_tiles ? classes_that_fit / kTileClasses * kTileClasses : classes_that_fit;
    return std::clamp<int64_t>(most_classes, 1, head.classes());
  }

  static Tensor array_of(const Tensor& contiguous) {
    return torch::stable::view(contiguous, {contiguous.numel()});
  }

  // Writes the chunk's rows of the input's gradient. `chunk.logits` holds the gradient of the
  // logits. If ignored rows were left out, the rows are copied to where they belong.
  void write_input_gradient(const LinearChunk& chunk) const {
    if (!counted_.index) {
      return multiply_by_weight(chunk.logits, rows_from(input_, chunk.first, chunk.rows));
    }
    const Tensor rows =
        empty_contiguous(op_, input_, Sizes{chunk.rows, head_.features()}, dtype_of(input_));
    multiply_by_weight(chunk.logits, rows);
    copy_rows(input_, rows_from(*counted_.index, chunk.first, chunk.rows), rows);
  }

  // Writes the product of the logits' gradient and the weight. Where head_.classes_at_once() splits
  // the classes, the product of the few last ones is computed first: the rounding of its sums is
  // small beside that of the whole sums.
  void multiply_by_weight(const Tensor& grad_logits, const Tensor& product) const {
    const int64_t at_once = head_.classes_at_once(), others = head_.classes() - at_once;
    if (others == 0) return multiply_matrices(grad_logits, head_.weight, product);
    multiply_matrices(
        columns_from(grad_logits, at_once, others), rows_from(head_.weight, at_once, others),
        product);
    add_product(
        columns_from(grad_logits, 0, at_once), rows_from(head_.weight, 0, at_once), product);
  }

  void add_to_weight(const LinearChunk& chunk) const {
    const Tensor by_class = transposed(chunk.logits);
    head_.for_products([&](int64_t first, int64_t count) {
      const Tensor grad_logits = rows_from(by_class, first, count);
      if (product_.defined()) return add_products(chunk, grad_logits, first);
      const Tensor gradient = rows_from(weight_, first, count);
      if (chunk.first == 0) return multiply_matrices(grad_logits, chunk.input, gradient);
      add_product(grad_logits, chunk.input, gradient);
    });
  }

  // Has weight_sums_ add the products for as many classes at a time as `product_` has room for.
  // `by_class` has the gradients of the logits of some classes, the first of which is `start`.
  void add_products(const LinearChunk& chunk, const Tensor& by_class, int64_t start) const {
    const int64_t classes = by_class.sizes()[0], most = product_.sizes()[0];
    for (int64_t first = 0; first < classes; first += most) {
      const int64_t count = std::min(most, classes - first);
      const Tensor product = rows_from(product_, 0, count);
      multiply_matrices(rows_from(by_class, first, count), chunk.input, product);
      const Tensor row = torch::stable::view(product, {1, product.numel()});
      weight_sums_.add(row, chunk, (start + first) * head_.features());
    }
  }

  const char* op_;
  const LinearHead& head_;
  const CountedRows& counted_;
  bool wants_input_, wants_weight_, wants_bias_;
  Tensor input_, weight_, bias_;
  Tensor product_;  // undefined where the gradient itself takes the products
  ChunkSums<Launcher> weight_sums_, bias_sums_;
};

// --- operators ----------------------------------------------------------------------------------

// Holds the factors in the sum of all rows' losses, scale * sum(row_weights * losses + z_loss *
// lse^2).
struct LossTerms {
  const std::optional<Tensor>&row_weights, &scale;
  double z_loss;
};

inline void check_loss_terms(const char* op, const LinearHead& head, const LossTerms& terms) {
  const Like like{"input", head.input};
  const auto check_factor = [&](const char* name, const std::optional<Tensor>& factor,
                                const Sizes& sizes) {
    if (!factor) return;
    const ScalarType dtype = statistics_dtype(dtype_of(head.input));
    check_tensor(op, name, *factor, dtype, sizes, like, " as a factor of the losses");
  };
  check_factor("row_weights", terms.row_weights, {head.rows()});
  check_factor("scale", terms.scale, /*sizes=*/{});
  const bool is_double = dtype_of(head.input) == ScalarType::Double;
  const double most = is_double ? std::numeric_limits<double>::max() / 2
                                : std::numeric_limits<float>::max() / 2;  // keeps 2 z_loss finite
  FUSEDOPS_CHECK(
      terms.z_loss >= 0 && terms.z_loss <= most, op, ": z_loss is ", terms.z_loss,
      ", wanted a number from 0 to ", most);
}

// Holds the derivatives of the sum that LossTerms defines, for the rows that are not ignored.
// `of_losses` has the derivative with respect to each row's loss. `of_lse` is one number: its
// product with a row's lse is the derivative with respect to that lse.
struct LossSlopes {
  // row_weights is undefined if the caller gave none, and of_lse if z_loss is 0.
  Tensor row_weights, of_losses, of_lse;

  LossSlopes(const LinearHead& head, const CountedRows& counted, const LossTerms& terms) {
    const ScalarType dtype = statistics_dtype(dtype_of(head.input));
    const auto filled = [&](int64_t count, double value) {
      return torch::stable::full({count}, value, dtype, std::nullopt, head.input.device());
    };
    const auto scaled = [&](const Tensor& factor) {
      return terms.scale ? multiply(factor, *terms.scale) : factor;
    };
    if (terms.row_weights) row_weights = counted.select(*terms.row_weights);
    of_losses = scaled(terms.row_weights ? row_weights : filled(counted.count, 1));
    if (terms.z_loss != 0) of_lse = scaled(filled(1, 2 * terms.z_loss));
  }
};

// Returns the sum that LossTerms defines. The scale multiplies the sum and not its terms, so that
// the infinite scale of a mean over no rows makes the sum NaN.
inline Tensor sum_of_losses(
    const CrossEntropyStatistics& results, const Tensor& row_weights, const LossTerms& terms) {
  Tensor sum = torch::stable::sum(
      row_weights.defined() ? multiply(results.losses, row_weights) : results.losses);
  if (terms.z_loss != 0) {
    const Tensor squares = torch::stable::sum(multiply(results.lse, results.lse));
    // The stable ABI has no add() with a factor, but a subtract() with one.
    sum = torch::stable::subtract(sum, squares, -terms.z_loss);
  }
  return terms.scale ? multiply(sum, *terms.scale) : sum;
}

// Returns the scaled sum of the rows' losses and its gradients, for which the logits are not
// computed again.
template <class Launcher>
std::tuple<Tensor, Tensor, Tensor, Tensor> linear_cross_entropy_gradients(
    const Tensor& input, const Tensor& linear_weight, const Tensor& target,
    const std::optional<Tensor>& linear_bias, const std::optional<Tensor>& row_weights,
    const std::optional<Tensor>& scale, std::optional<int64_t> ignore_index, double label_smoothing,
    double z_loss, std::optional<double> softcap, std::vector<bool> output_mask) {
  const char* op = "linear_cross_entropy";
  const CrossEntropySettings settings{ignore_index, label_smoothing, /*scale=*/1, softcap};
  const LinearHead head{input, linear_weight, target, linear_bias, settings};
  const LossTerms terms{row_weights, scale, z_loss};
  check_linear_head(op, head);
  check_loss_terms(op, head, terms);
  check_output_mask(op, output_mask, 3);
  check_classes(op, head);
  const NoGradGuard no_grad;
  const ChunkedHead<Launcher> chunked(op, head);
  const CrossEntropyStatistics results =
      empty_statistics(op, head.input, Sizes{chunked.counted().count});
  const LossSlopes slopes(head, chunked.counted(), terms);
  const LinearGradients<Launcher> gradients(op, head, chunked, output_mask);
  const bool are_wanted = output_mask[0] || output_mask[1] || output_mask[2];
  chunked.for_chunks([&](const LinearChunk& chunk) {
    const CrossEntropyStatistics part = statistics_from(results, chunk.first, chunk.rows);
    chunked.compute_losses(chunk, part);
    if (!are_wanted) return;
    const Tensor of_losses = rows_from(slopes.of_losses, chunk.first, chunk.rows);
    const Tensor of_lse = slopes.of_lse.defined() ? multiply(part.lse, slopes.of_lse) : Tensor();
    chunked.differentiate(chunk, part, of_losses, of_lse);
    gradients.add(chunk);
  });
  return std::tuple_cat(
      std::tuple(sum_of_losses(results, slopes.row_weights, terms)), gradients.finished());
}

template <class Launcher>
Tensor linear_cross_entropy(
    const Tensor& input, const Tensor& linear_weight, const Tensor& target,
    const std::optional<Tensor>& linear_bias, const std::optional<Tensor>& row_weights,
    const std::optional<Tensor>& scale, std::optional<int64_t> ignore_index, double label_smoothing,
    double z_loss, std::optional<double> softcap) {
  const std::vector<bool> no_gradients(3, false);
  return std::get<0>(linear_cross_entropy_gradients<Launcher>(
      input, linear_weight, target, linear_bias, row_weights, scale, ignore_index, label_smoothing,
      z_loss, softcap, no_gradients));
}

// Returns losses, lse and lse_error of every row.
template <class Launcher>
std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_losses(
    const Tensor& input, const Tensor& linear_weight, const Tensor& target,
    const std::optional<Tensor>& linear_bias, std::optional<int64_t> ignore_index,
    double label_smoothing, std::optional<double> softcap) {
  const char* op = "linear_cross_entropy_losses";
  const CrossEntropySettings settings{ignore_index, label_smoothing, /*scale=*/1, softcap};
  const LinearHead head{input, linear_weight, target, linear_bias, settings};
  check_linear_head(op, head);
  check_classes(op, head);
  const NoGradGuard no_grad;
  const ChunkedHead<Launcher> chunked(op, head);
  const CountedRows& counted = chunked.counted();
  const CrossEntropyStatistics results = empty_statistics(op, head.input, Sizes{counted.count});
  chunked.for_chunks([&](const LinearChunk& chunk) {
    chunked.compute_losses(chunk, statistics_from(results, chunk.first, chunk.rows));
  });
  const auto spread = [&](const Tensor& values) { return counted.spread(values, head.rows()); };
  return {spread(results.losses), spread(results.lse), spread(results.lse_error)};
}

// Returns the gradients of input, weight and bias from those of each row's loss and lse. The logits
// are computed again.
template <class Launcher>
std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_losses_backward(
    const Tensor& input, const Tensor& linear_weight, const Tensor& target,
    const std::optional<Tensor>& linear_bias, const Tensor& losses, const Tensor& lse,
    const Tensor& lse_error, const std::optional<Tensor>& grad_losses,
    const std::optional<Tensor>& grad_lse, std::optional<int64_t> ignore_index,
    double label_smoothing, std::optional<double> softcap, std::vector<bool> output_mask) {
  const char* op = "linear_cross_entropy_losses_backward";
  const CrossEntropySettings settings{ignore_index, label_smoothing, /*scale=*/1, softcap};
  const LinearHead head{input, linear_weight, target, linear_bias, settings};
  check_linear_head(op, head);
  check_cross_entropy_gradients(
      op, input, {losses, lse, lse_error, grad_losses, grad_lse}, "linear_cross_entropy_losses");
  check_output_mask(op, output_mask, 3);
  const NoGradGuard no_grad;
  const ChunkedHead<Launcher> chunked(op, head);
  const CountedRows& counted = chunked.counted();
  const LinearGradients<Launcher> gradients(op, head, chunked, output_mask);
  chunked.for_chunks([&](const LinearChunk& chunk) {
    const auto part = [&](const Tensor& tensor) {
      return counted.select(tensor, chunk.first, chunk.rows);
    };
    const CrossEntropyStatistics results{part(losses), part(lse), part(lse_error)};
    chunked.differentiate(
        chunk, results, grad_losses ? part(*grad_losses) : Tensor(),
        grad_lse ? part(*grad_lse) : Tensor());
    gradients.add(chunk);
  });
  return gradients.finished();
}

}  // namespace fusedops
