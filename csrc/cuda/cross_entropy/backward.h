// Computes the gradient of cross_entropy's logits.
//
// Contract: rows and classes are as in args.h, blocks as in forward.h. A vector of results is
// aligned in grad_input, wherever the row of logits lies: the segments of a row begin at an aligned
// address of grad_input (class_alignment), which for the first segment may lie before the row. Each
// thread writes only elements that it has read and that no other thread reads, so that grad_input
// may be the logits' memory.
//
// Numerics: p = e^((x - lse) - lse_error) is computed in float (double for double), and results are
// rounded once. The gradient in the column of the class is computed once more, in double, and
// written last.
#pragma once

#include "cuda/cross_entropy/logits.h"
#include "cuda/cross_entropy/vectors.h"

namespace fusedops::cuda {

// Holds what the gradients of a row's elements have in common. Except in the column of the class,
// the gradient of an element is of_probability * p - smoothed, times the slope of the soft cap if
// there is one.
template <class T>
struct RowGradients {
  using Acc = AccumulatorOf<T>;
  Acc lse, lse_error;
  Acc of_probability, smoothed;
  bool are_zero;

  FUSEDOPS_DEVICE RowGradients(
      const CrossEntropyBackward& args, int64_t row, const RowClass& target) {
    const Acc of_loss = target.is_ignored ? Acc(0) : value_at(args.grad_losses, row);
    const Acc of_lse = value_at(args.grad_lse, row);
    const auto factor = static_cast<Acc>(args.logits.scale);
    are_zero = std::fabs(of_loss) + std::fabs(of_lse) == 0;
    of_probability = (of_loss + of_lse) * factor;
    smoothed = of_loss * factor * static_cast<Acc>(args.label_smoothing) *
        device::reciprocal(static_cast<Acc>(args.cols));
    lse = value_at(args.lse, row);
    lse_error = value_at(args.lse_error, row);
    // The rounding of the scale to Acc changes logits near lse by about lse * relative_rounding().
    // lse, which is subtracted from them, gets the same change, in lse_error.
    if (std::fabs(lse) < Acc(INFINITY)) {
      lse_error -= lse * LogitMap<T>::relative_rounding(args.logits);
    }
  }

  static FUSEDOPS_DEVICE Acc value_at(const void* values, int64_t row) {
    return values == nullptr ? Acc(0) : static_cast<const Acc*>(values)[row];
  }

  // Replaces the elements of a tile by their gradients.
  template <int kWidth, int kVectors>
  FUSEDOPS_DEVICE void replace(Vec<T, kWidth> (&tile)[kVectors], const LogitMap<T>& logits) const {
    if (logits.is_capped) {
      replace_by(tile, [&](Acc x) { return at(logits.capped(x) - lse) * logits.slope(x); });
    } else {
      replace_by(tile, [&](Acc x) { return at(device::fma(x, logits.scale, -lse)); });
    }
  }

 private:
  template <int kWidth, int kVectors, class Gradient>
  static FUSEDOPS_DEVICE void replace_by(Vec<T, kWidth> (&tile)[kVectors], Gradient gradient_of) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Acc results[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) results[j] = gradient_of(tile[i].at(j));
      tile[i] = Vec<T, kWidth>::rounded(results);
    }
  }

  // Returns the gradient of an element, without the slope of a soft cap. `above` is the element's
  // logit minus lse.
  FUSEDOPS_DEVICE Acc at(Acc above) const {
    return device::fma(of_probability, exponential<T>(above - lse_error), -smoothed);
  }
};

// Returns the gradient of the element x in the column of the class. Let g be the gradient of the
// loss and e the label smoothing. The gradient of the logit is g * (p - 1 + e - e / cols) +
// grad_lse * p, where p - 1 comes from an expm1, which keeps its digits.
template <class T>
FUSEDOPS_DEVICE double class_gradient(const CrossEntropyBackward& args, int64_t row, double x) {
  const auto at = [row](const void* values) -> double {
    return RowGradients<T>::value_at(values, row);
  };
  const Logits& logits = args.logits;
  const double e = args.label_smoothing, logit = exact_logit(logits, x);
  // lse + lse_error, rounded, would lose the digits of lse_error beside a large lse.
  const double log_p = (logit - at(args.lse)) - at(args.lse_error);
  const double missing = ::expm1(e == 0 ? -at(args.losses) : log_p);
  const double gradient = at(args.grad_losses) * (missing + e - e * exact_reciprocal(args.cols)) +
      at(args.grad_lse) * device::exp(log_p);
  const double ratio = logits.softcap == 0 ? 0 : logit * exact_reciprocal(logits.softcap);
  return gradient * logits.scale * (1 - ratio) * (1 + ratio);
}

// Holds the gradient in the column of a row's class, and its address, which is null in threads that
// do not store it.
template <class T>
struct ClassGradient {
  T* to;
  Vec<T, 1> gradient;
};

// Stores the elements of a tile in columns [begin, end), counted from this thread's first column.
template <class T, int kWidth, int kVectors>
FUSEDOPS_DEVICE void store_ends(
    T* first_vector, const Vec<T, kWidth> (&tile)[kVectors], int32_t begin, int32_t end) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int32_t offset = columns_before<kWidth>(i), first = begin - offset, last = end - offset;
    T* const to = device::whole(first_vector + offset);
    if (first <= 0 && last >= kWidth) {
      tile[i].store(to);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (j >= first && j < last) element_of(tile[i], j).store(to + j);
    }
  }
}

// Stores the gradients of a block's rows, or of its segment of a row.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kClassThreads, kClassBlocks<T>)
cross_entropy_backward(CrossEntropyBackward args, int64_t first_row, Segments segments) {
  using Acc = AccumulatorOf<T>;
  constexpr int kVectors = kLoopVectors<kWidth, /*kTensors=*/1>;
  const ClassBlock block(segments, first_row);
  const int64_t row = block.row();
  if (row >= args.rows) return;
  T* output = static_cast<T*>(args.grad_input.data) + args.grad_input.spacing.offset(row);
  const int32_t before = elements_behind(output, class_alignment(args.cols * sizeof(T)));
  const int64_t first = int64_t{block.segment} * segments.cols - before;
  const int64_t left = args.cols - first;
  const int32_t begin = block.segment == 0 ? before : 0;
  const int32_t end = static_cast<int32_t>(left < segments.cols ? left : segments.cols);
  output += first;

  const RowClass target(args.targets, row, args.cols);
  const RowGradients<T> gradients(args, row, target);
  Vec<T, kWidth> tile[kVectors] = {};
  if (gradients.are_zero) {
    for (int32_t at = column_of<kWidth>(0); at < end; at += Tile<T, kWidth, kVectors>::step()) {
      store_ends(output + at, tile, begin - at, end - at);
    }
    return;
  }

  const LogitMap<T> logits(args.logits);
  const T* const input = logits_row<T>(args.logits.input, row) + first;
  // The thread whose vectors have the column of the class computes the class's gradient now, and
  // stores it last. Until then the gradient is in shared memory, because registers are scarce.
  const int64_t column = target.column - first;
  const bool has_class = target.column >= 0 && column >= begin && column < end &&
      static_cast<uint32_t>(column) / kWidth % blockDim.x == threadIdx.x;
  FUSEDOPS_SHARED(ClassGradient<T>, of_classes, kClassThreads);
  ClassGradient<T>& of_class = of_classes[thread_of_block()];
  of_class.to = nullptr;
  if (has_class) {
    const Acc element = Vec<T, 1>::load_cached(input + column).at(0);
    const Acc gradient[1] = {static_cast<Acc>(class_gradient<T>(args, row, element))};
    of_class = {output + column, Vec<T, 1>::rounded(gradient)};
  }
  RowVectors<T, kWidth, kVectors> vectors(input, begin, end);
  output += column_of<kWidth>(0);
#pragma unroll 1
  for (; vectors.end() > 0; vectors.advance()) {
    const bool is_whole = vectors.is_whole();
    vectors.load(tile, is_whole);
    gradients.replace(tile, logits);
    if (is_whole) {
      T* const to = device::whole(output);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) tile[i].store(to + columns_before<kWidth>(i));
    } else {
      store_ends(output, tile, vectors.begin(), vectors.end());
    }
    output += vectors.step();
  }
  if (of_class.to != nullptr) of_class.gradient.store(of_class.to);
}

}  // namespace fusedops::cuda
