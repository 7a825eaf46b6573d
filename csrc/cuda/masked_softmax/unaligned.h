// Computes masked_softmax of short rows in single elements, and its gradient.
//
// Contract: as in rows.h, for plain scores (is_plain in launch.cu), without dropout. kThreads
// threads of a warp share kRows rows, kThreads * kVectors >= cols. A block has kRowBlockThreads /
// kThreads * kRows rows.
//
// A decision for each element, such as whether it is visible, would cost an instruction an element.
// What rows.h decides for a vector is therefore decided here once for all rows of a thread, or for
// a group of their elements.
//
// Numerics: as in rows.h, but in scores without bias and mask, scale * x is not rounded before the
// largest score is subtracted.
#pragma once

#include "cuda/masked_softmax/rows.h"

namespace fusedops::cuda {

// The rows of a thread are this far apart. A warp has neighbouring rows, in which causality hides
// about the same columns.
template <int kThreads>
inline constexpr int32_t kRowsApart = device::kWarpLanes / kThreads;

// Returns the number of rows of a thread. Rows with up to 16 elements a thread have up to 16
// threads (plans.def). With 16 threads a row, half of the instructions are spent once a row, and
// two rows of a thread share these.
constexpr int rows_of_thread(int elements) { return elements <= 16 ? 2 : 1; }

// This is the second launch bound of forward kernels: how many blocks of 128 threads share the
// 65536 registers of a multiprocessor. 7 blocks leave 72 registers to a thread, 4 leave 128.
template <int kElements>
inline constexpr int kUnalignedBlocks = kElements <= 8 ? 7 : 4;

// Returns the first row of this thread in a launch.
template <int kThreads, int kRows>
FUSEDOPS_DEVICE int64_t unaligned_row(int64_t first_row) {
  constexpr int32_t kBlockRows = kRowBlockThreads / kThreads * kRows, kApart = kRowsApart<kThreads>;
  // If threads have two rows each, this is the number of second rows in the warps before this one.
  const uint32_t before = threadIdx.y / kApart * (kApart * (kRows - 1));
  return first_row + static_cast<int64_t>(blockIdx.x) * kBlockRows + before + threadIdx.y;
}

// Holds the rows of a thread. If the last one does not exist, the first one takes its place: all
// rows then have the same number of columns, and one comparison says for all of them whether a
// column exists. kCausal says whether causality hides columns.
template <int kElements_, int kThreads_, int kRows_, bool kCausal_>
struct UnalignedRows {
  static constexpr int kElements = kElements_, kThreads = kThreads_, kRows = kRows_;
  static constexpr bool kCausal = kCausal_;
  static_assert(kRows <= 2);
  ScoreRow rows[kRows];
  int32_t cols;

  template <class Args>
  FUSEDOPS_DEVICE UnalignedRows(const Args& args, int64_t first) {
    constexpr int kTerms = kCausal ? kCausalTerm : kNoTerms;
    const int64_t last = first + kRowsApart<kThreads>;
    rows[0] = ScoreRow::with_terms<kTerms>(args, first);
    if constexpr (kRows > 1) {
      rows[1] = ScoreRow::with_terms<kTerms>(args, last < args.rows ? last : first);
    }
    cols = rows[0].cols;
    if (args.divisors.has_operands) ScoreRow::find_operands<kTerms>(rows, args);
  }

  static FUSEDOPS_DEVICE int32_t offset_of(int i) { return columns_before<1, kThreads>(i); }

  // Calls f(row, i, is_inside) for the elements of a thread; is_inside says whether the row has the
  // element. As in for_vectors(), elements are compared one by one only in the group where the row
  // ends.
  template <class F>
  FUSEDOPS_DEVICE void for_each(F f) const {
    for_vectors<1, kElements, kThreads>(cols, [&](int i, bool is_inside) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) f(row, i, is_inside);
    });
  }

  // Calls f(row, i, is_inside) as for_each() does, but is_inside says whether the element is in a
  // visible column.
  template <class F>
  FUSEDOPS_DEVICE void for_each_visible(F f) const {
    if constexpr (!kCausal) return for_each(f);
    const int32_t own = column_of<1, kThreads>(0);
    const int32_t first_end = rows[0].visible, last_end = rows[kRows - 1].visible;
    const int32_t least = first_end < last_end ? first_end : last_end, most = most_visible();
#pragma unroll
    for (int first = 0; first < kElements; first += kGroup) {
      if (offset_of(first + kGroup) <= least) {
        for_group(first, [&](int row, int i) { f(row, i, true); });
      } else if (offset_of(first) < most) {
        for_group(
            first, [&](int row, int i) { f(row, i, own + offset_of(i) < rows[row].visible); });
      } else {
        for_group(first, [&](int row, int i) { f(row, i, false); });
      }
    }
  }

  FUSEDOPS_DEVICE int32_t most_visible() const {
    const int32_t first = rows[0].visible, last = rows[kRows - 1].visible;
    return kCausal && first < last ? last : first;
  }

  // Calls f(row, i) for the elements of the first group, and of every group with a visible column.
  template <class F>
  FUSEDOPS_DEVICE void for_held(F f) const {
    const int32_t most = most_visible();
#pragma unroll
    for (int first = 0; first < kElements; first += kGroup) {
      if (first == 0 || offset_of(first) < most) for_group(first, f);
    }
  }

  // Sets `own` to the addresses of the thread's first element in each row of `tensor`.
  template <class T, class AnyRows>
  FUSEDOPS_DEVICE void find_own_addresses(T* (&own)[kRows], const AnyRows& tensor) const {
    own[0] =
        device::whole(const_cast<T*>(row_of<T>(tensor, rows[0].index)) + column_of<1, kThreads>(0));
    const auto apart = static_cast<uint32_t>(rows[kRows - 1].index - rows[0].index);
    if constexpr (kRows > 1) own[1] = own[0] + apart * static_cast<uint64_t>(tensor.spacing.stride);
  }

  // Loads the visible columns of `tensor`. Other elements become `fill`.
  template <class T>
  FUSEDOPS_DEVICE void load(
      Vec<T, 1> (&vectors)[kRows][kElements], const ConstRows& tensor,
      AccumulatorOf<T> fill) const {
    T* own[kRows];
    find_own_addresses(own, tensor);
    for_each_visible([&](int row, int i, bool is_inside) {
      vectors[row][i] =
          is_inside ? Vec<T, 1>::load(own[row] + offset_of(i)) : Vec<T, 1>::filled(fill);
    });
  }

  // Loads the visible columns of an operand. `offset` is the member of ScoreRow that says where its
  // rows begin. Other elements become `fill`.
  template <class T>
  FUSEDOPS_DEVICE void load_operand(
      Vec<T, 1> (&vectors)[kRows][kElements], const Operand& operand, int64_t ScoreRow::* offset,
      uint32_t fill) const {
    const T* own[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      own[row] = device::whole(
          static_cast<const T*>(operand.data) + (rows[row].*offset + column_of<1, kThreads>(0)));
    }
    for_each_visible([&](int row, int i, bool is_inside) {
      vectors[row][i].registers[0] = fill;
      if (is_inside) vectors[row][i] = Vec<T, 1>::load_cached(own[row] + offset_of(i));
    });
  }

  // Stores the products of each row's values and scales[row] in `tensor`.
  template <class Out, class Acc>
  FUSEDOPS_DEVICE void store(
      const Rows& tensor, const Acc (&values)[kRows][kElements], const Acc (&scales)[kRows]) const {
    Out* own[kRows];
    find_own_addresses(own, tensor);
    for_each([&](int row, int i, bool is_inside) {
      const Acc result[1] = {values[row][i] * scales[row]};
      if (is_inside) cuda::store(own[row] + offset_of(i), result);
    });
  }

  // Stores hidden[row] in the columns that causality hides. Usually all of `hidden` are 0, and
  // nothing is left to do, because store() has written zeros there.
  template <class Out, class Acc>
  FUSEDOPS_DEVICE void store_hidden(const Rows& tensor, const Acc (&hidden)[kRows]) const {
    Out* own[kRows];
    find_own_addresses(own, tensor);
    bool is_any = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row) is_any |= !(hidden[row] <= 0);
    const int32_t end = is_any ? cols - column_of<1, kThreads>(0) : 0;
#pragma unroll 1
    for (int32_t offset = 0; offset < end; offset += kThreads) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const Acc result[1] = {hidden[row]};
        const bool is_hidden = column_of<1, kThreads>(0) + offset >= rows[row].visible;
        if (is_hidden) cuda::store(own[row] + offset, result);
      }
    }
  }

 private:
  static constexpr int kGroup = vectors_of_group(kElements);

  template <class F>
  static FUSEDOPS_DEVICE void for_group(int first, F f) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int i = first; i < first + kGroup; ++i) f(row, i);
    }
  }
};

// Holds the elements of a bool mask, as they were loaded. Those outside the visible columns are
// true.
template <class UnalignedRows>
struct UnalignedMask {
  Vec<bool, 1> vectors[UnalignedRows::kRows][UnalignedRows::kElements];
  bool is_on;

  FUSEDOPS_DEVICE UnalignedMask(const Operand& mask, const UnalignedRows& rows)
      : is_on(mask.is_bool) {
    if (is_on) rows.template load_operand<bool>(vectors, mask, &ScoreRow::mask, /*fill=*/1);
  }

  FUSEDOPS_DEVICE bool shows(int row, int i) const { return vectors[row][i].registers[0] != 0; }
};

// Holds the scores of a thread, as factor * values. Outside the visible columns they are -inf,
// except in the groups that for_held() leaves out, whose values are 0. Without bias and mask, the
// scale stays in `factor`: the fma that subtracts the largest score also multiplies by the factor.
template <class In, class Acc, class UnalignedRows>
struct UnalignedScores {
  static constexpr int kRows = UnalignedRows::kRows, kElements = UnalignedRows::kElements;
  using Tile = Vec<In, 1>[kRows][kElements];
  Acc values[kRows][kElements] = {};
  Acc factor;
  // Whether any score that this thread has of a row is visible and not -inf. `seen` is set only
  // with zero_masked_rows.
  uint32_t seen[kRows];

  FUSEDOPS_DEVICE UnalignedScores(const ForwardArgs& args, const UnalignedRows& rows)
      : factor(static_cast<Acc>(args.scores.scale)) {
    const Scores& scores = args.scores;
    Tile tile;
    rows.template load<In>(tile, args.input, -INFINITY);
    const UnalignedMask<UnalignedRows> mask(scores.mask, rows);
    if (scores.bias.data != nullptr) {
      set_sums(tile, scores, rows);
    } else {
      rows.for_held([&](int row, int i) { values[row][i] = tile[row][i].at(0); });
    }
    if (args.zero_masked_rows) find_seen(mask, rows);
    if (mask.is_on) {
      const auto mask_value = static_cast<Acc>(scores.mask_value);
      rows.for_held([&](int row, int i) {
        values[row][i] = mask.shows(row, i) ? factor * values[row][i] : mask_value;
      });
      factor = 1;
    }
  }

  // Returns the largest score that this thread has of row `of`.
  FUSEDOPS_DEVICE Acc largest(const UnalignedRows& rows, int of) const {
    Acc largest = -INFINITY;
    rows.for_held([&](int row, int i) {
      if (row == of) largest = device::maximum(largest, values[row][i]);
    });
    return factor * largest;
  }

  // Replaces the scores by e^(score - shift), which it adds to `sums`.
  template <class Out>
  FUSEDOPS_DEVICE void exponentiate(
      const UnalignedRows& rows, const Acc (&shifts)[kRows], Acc (&sums)[kRows]) {
    rows.for_held([&](int row, int i) {
      values[row][i] = exponential<Out>(device::fma(values[row][i], factor, -shifts[row]));
      sums[row] += values[row][i];
    });
  }

 private:
  // Sets `values` to the scores with the bias and a mask of numbers added, and `factor` to 1.
  FUSEDOPS_DEVICE void set_sums(const Tile& tile, const Scores& scores, const UnalignedRows& rows) {
    Tile bias, mask;
    rows.template load_operand<In>(bias, scores.bias, &ScoreRow::bias, /*fill=*/0);
    rows.for_held(
        [&](int row, int i) { values[row][i] = factor * tile[row][i].at(0) + bias[row][i].at(0); });
    if (scores.mask.data != nullptr && !scores.mask.is_bool) {
      rows.template load_operand<In>(mask, scores.mask, &ScoreRow::mask, /*fill=*/0);
      rows.for_held([&](int row, int i) { values[row][i] += mask[row][i].at(0); });
    }
    factor = 1;
  }

  FUSEDOPS_DEVICE void find_seen(
      const UnalignedMask<UnalignedRows>& mask, const UnalignedRows& rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) seen[r] = 0;
    rows.for_held([&](int row, int i) {
      seen[row] |= values[row][i] != -INFINITY && (!mask.is_on || mask.shows(row, i));
    });
  }
};

// Calls body(rows) with the rows of this thread in a launch.
template <int kElements, int kThreads, class Args, class Body>
FUSEDOPS_DEVICE void with_unaligned_rows(const Args& args, int64_t first_row, Body body) {
  constexpr int kRows = rows_of_thread(kElements);
  assume_row_threads<kThreads>();
  const int64_t row = unaligned_row<kThreads, kRows>(first_row);
  if (args.scores.causal.on) {
    body(UnalignedRows<kElements, kThreads, kRows, /*kCausal=*/true>(args, row));
  } else {
    body(UnalignedRows<kElements, kThreads, kRows, /*kCausal=*/false>(args, row));
  }
}

// Computes the softmax of a thread's rows.
template <class In, class UnalignedRows>
FUSEDOPS_DEVICE void unaligned_masked_softmax(const ForwardArgs& args, const UnalignedRows& rows) {
  using Acc = AccumulatorOf<In>;
  constexpr int kRows = UnalignedRows::kRows;
  RowInBlock<UnalignedRows::kThreads> scope;
  UnalignedScores<In, Acc, UnalignedRows> scores(args, rows);

  Acc largest[kRows], shifts[kRows], hidden[kRows], sums[kRows] = {}, scales[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    largest[r] = scope.template reduce<Max>(scores.largest(rows, r));
  }
  uint32_t zero[kRows] = {};
  if (args.zero_masked_rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      zero[r] = scope.template reduce<Max>(Acc(scores.seen[r])) == 0;
    }
  }
  const auto exponentials_of = [&](int r) {
    const int32_t skipped = UnalignedRows::kCausal ? rows.cols - rows.rows[r].visible : 0;
    return MaskedExponentials<kNoTerms, In>(args, rows.rows[r], skipped, largest[r], zero[r] != 0);
  };
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    shifts[r] = zero[r] ? Acc(INFINITY) : exponentials_of(r).largest;  // e^(score - INFINITY) is 0
  }
  with_wider<In>(args.output.dtype, [&](auto type) {
    scores.template exponentiate<decltype(type)>(rows, shifts, sums);
  });
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Acc sum = scope.template reduce<Sum>(sums[r]);
    const Normaliser<Acc> normaliser(exponentials_of(r), sum);
    scales[r] = normaliser.scale;
    hidden[r] = normaliser.hidden;
  }
  with_wider<In>(args.output.dtype, [&](auto type) {
    using Out = decltype(type);
    const auto store_to = [&](const Rows& tensor) {
      rows.template store<Out>(tensor, scores.values, scales);
      if constexpr (UnalignedRows::kCausal) rows.template store_hidden<Out>(tensor, hidden);
    };
    if (args.probabilities.data != nullptr) store_to(args.probabilities);
    store_to(args.output);
  });
}

template <class In, int kWidth, int kVectors, int kThreads>
FUSEDOPS_KERNEL(kRowBlockThreads, kUnalignedBlocks<kVectors>)
masked_softmax_forward_unaligned(ForwardArgs args, int64_t first_row) {
  static_assert(kWidth == 1);
  with_unaligned_rows<kVectors, kThreads>(
      args, first_row, [&](const auto& rows) { unaligned_masked_softmax<In>(args, rows); });
}

// Computes the gradients of a thread's rows.
template <class T, class UnalignedRows>
FUSEDOPS_DEVICE void unaligned_masked_softmax_gradient(
    const BackwardArgs& args, const UnalignedRows& rows) {
  using Acc = AccumulatorOf<T>;
  constexpr int kRows = UnalignedRows::kRows, kElements = UnalignedRows::kElements;
  RowInBlock<UnalignedRows::kThreads> scope;
  Vec<T, 1> grads[kRows][kElements], probabilities[kRows][kElements];
  rows.template load<T>(grads, args.grad_output, 0);
  rows.template load<T>(probabilities, args.probabilities, 0);
  const UnalignedMask<UnalignedRows> mask(args.scores.mask, rows);
  if constexpr (UnalignedRows::kCausal) {
    UnalignedRows read = rows;
    int32_t more = 0;  // the number of hidden columns that are read
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (reads_hidden<T>(args, rows.rows[r])) read.rows[r].visible = rows.cols;
      more += read.rows[r].visible - rows.rows[r].visible;
    }
    if (more > 0) {
      read.template load<T>(grads, args.grad_output, 0);
      read.template load<T>(probabilities, args.probabilities, 0);
    }
  }

  const auto scale = static_cast<Acc>(args.scores.scale);
  Acc results[kRows][kElements], scales[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      results[r][i] = grads[r][i].at(0) * probabilities[r][i].at(0);
    const Acc sum = scope.template reduce<Sum>(tree_sum<kElements>(results[r]));
    scales[r] = scale;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      results[r][i] = probabilities[r][i].at(0) * (grads[r][i].at(0) - sum);
    }
  }
  if constexpr (UnalignedRows::kCausal) {
    rows.for_each_visible([&](int r, int i, bool is_inside) {
      if (!is_inside) results[r][i] = 0;
    });
  }
  if (mask.is_on) {
#pragma unroll
    for (int k = 0; k < kRows * kElements; ++k) {
      const int r = k / kElements, i = k % kElements;
      results[r][i] = mask.shows(r, i) ? results[r][i] : Acc(0);
    }
  }
  with_narrower<T>(args.grad_input.dtype, [&](auto type) {
    rows.template store<decltype(type)>(args.grad_input, results, scales);
  });
}

template <class T, int kWidth, int kVectors, int kThreads>
FUSEDOPS_KERNEL(kRowBlockThreads)
masked_softmax_backward_unaligned(BackwardArgs args, int64_t first_row) {
  static_assert(kWidth == 1);
  with_unaligned_rows<kVectors, kThreads>(
      args, first_row, [&](const auto& rows) { unaligned_masked_softmax_gradient<T>(args, rows); });
}

}  // namespace fusedops::cuda
