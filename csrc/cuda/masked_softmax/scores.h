// Computes the scores of a masked softmax: finds a row's operands, and which columns are hidden.
//
// Contract: as in args.h; an operand with a value per column is aligned for kWidth elements in
// every row. A kernel is compiled for some of the terms that scores may have (kTerms), and is
// launched for no others: the path through a kernel for all terms is twice as long.
// limit_diagonal() has limited the diagonals.
//
// Numerics: scores are scale * x + (bias + mask) or, with a soft cap, cap * tanh(scale * x / cap) +
// (bias + mask), in float (double for double). Where one block holds a row in registers, soft caps
// have kernels of their own, because the other kernels have no register left.
#pragma once

#include <algorithm>
#include <cfloat>

#include "cuda/softmax/rows.h"

namespace fusedops::cuda {

// Each bit of kTerms stands for a term of the scores. Alone, kBoolTerm is a bool mask, and
// kNumbersTerm a bias of the input's dtype; both have a value for each column. kAllTerms is
// everything that args.h allows except a soft cap, and kCappedTerms is everything with a soft cap.
// kGeneralTerms, for the kernels of long rows, is everything with or without a soft cap, as the
// arguments say.
inline constexpr int kNoTerms = 0, kCausalTerm = 1, kBoolTerm = 2, kNumbersTerm = 4, kAllTerms = 7;
inline constexpr int kCapTerm = 8, kCappedTerms = kAllTerms | kCapTerm;
inline constexpr int kMaybeCapTerm = 16, kGeneralTerms = kCappedTerms | kMaybeCapTerm;

template <int kTerms>
inline constexpr bool kHasAll = (kTerms & kAllTerms) == kAllTerms;

// Clamps the diagonals, which may be any numbers, to the range in which they make a difference, so
// that no sum with them overflows.
inline void limit_diagonal(Causal& causal, int64_t cols) {
  causal.diagonal = std::clamp(causal.diagonal, -causal.queries, cols);
  causal.lower_diagonal = std::clamp(causal.lower_diagonal, -causal.queries, cols);
}

// Divides the index of a row, less than 2^31, through a multiplication (Granlund and Montgomery,
// 1994) that the host prepares: a division on the device takes 20 instructions, or 80 for 64 bits.
struct RowDivisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  static RowDivisor of(int64_t divisor) {
    uint32_t bits = 0;
    while (int64_t{1} << bits < divisor) ++bits;
    const auto own = static_cast<uint64_t>(divisor);
    const uint64_t multiplier = ((uint64_t{1} << (31 + bits)) + own - 1) / own;
    return {static_cast<uint32_t>(own), static_cast<uint32_t>(multiplier), bits};
  }

  FUSEDOPS_DEVICE uint32_t quotient(uint32_t row) const {
    return static_cast<uint32_t>(uint64_t{2 * row} * multiplier >> 32) >> shift;
  }
  FUSEDOPS_DEVICE uint32_t remainder(uint32_t row) const { return row - quotient(row) * divisor; }
};

// Holds the divisors that turn the index of a row into its query and its place in the operands.
// Unless rows_are_few, indices may take 64 bits, and are divided by the sizes themselves.
struct ScoreDivisors {
  bool rows_are_few, has_operands;
  RowDivisor queries, dims[kMaxRowDims];
};

// Holds the arguments of a kernel, MaskedSoftmaxForward or MaskedSoftmaxBackward, and the divisors
// that its row indices take, which are computed once on the host.
template <class Args>
struct WithDivisors : Args {
  ScoreDivisors divisors;

  explicit WithDivisors(const Args& args) : Args(args), divisors{} {
    constexpr int64_t kFew = int64_t{1} << 30;
    divisors.has_operands = args.scores.bias.data != nullptr || args.scores.mask.data != nullptr;
    const Causal& causal = args.scores.causal;
    divisors.rows_are_few = args.rows < kFew && args.cols < kFew && causal.queries < kFew;
    if (!divisors.rows_are_few) return;
    divisors.queries = RowDivisor::of(causal.queries);
    for (int d = 1; d < args.scores.dims.count; ++d) {
      divisors.dims[d] = RowDivisor::of(args.scores.dims.sizes[d]);
    }
  }
};

// Holds the interval of a row, and where its operands begin. A row past the last one has no
// columns. Only kernels for all terms handle sinks, and intervals that begin after column 0.
struct ScoreRow {
  int64_t index;
  int32_t cols, visible;  // the columns from `visible` on are hidden
  int32_t begin = 0;      // the columns before `begin` are hidden too; 0 if no column is visible
  // These are the offsets of the row in the operands, in elements.
  int64_t bias = 0, mask = 0, start = 0, end = 0, sinks = 0;

  // Returns row `index`, with its interval and the offsets of its operands as far as kTerms needs
  // them. `args` is a WithDivisors.
  template <int kTerms, class Args>
  static FUSEDOPS_DEVICE ScoreRow with_terms(const Args& args, int64_t index) {
    const int32_t cols = index < args.rows ? static_cast<int32_t>(args.cols) : 0;
    ScoreRow row = {index, cols, cols};
    if ((kTerms & kCausalTerm) != 0 && args.scores.causal.on) {
      row.visible = row.visible_columns(args.scores.causal, args.divisors);
    }
    if constexpr ((kTerms & (kBoolTerm | kNumbersTerm)) != 0) {
      ScoreRow rows[] = {row};
      find_operands<kTerms>(rows, args);
      row = rows[0];
    }
    if constexpr (kHasAll<kTerms>) {
      if (cols > 0) row.limit(args.scores, args.divisors);
    }
    return row;
  }

  // Sets, in each of `rows`, the offsets at which its operands begin.
  template <int kTerms, int kCount, class Args>
  static FUSEDOPS_DEVICE void find_operands(ScoreRow (&rows)[kCount], const Args& args) {
    if (args.divisors.rows_are_few) {
      find_operands<kTerms, uint32_t>(rows, args.scores, args.divisors);
    } else {
      find_operands<kTerms, uint64_t>(rows, args.scores, args.divisors);
    }
  }

  FUSEDOPS_DEVICE int32_t hidden_cols() const { return cols - visible + begin; }

  // Returns the column at which the first vector with a visible column begins. Tiles begin there.
  template <int kWidth>
  FUSEDOPS_DEVICE int32_t first() const {
    return begin / kWidth * kWidth;
  }

  // Returns the number of columns in wholly hidden vectors.
  template <int kWidth>
  FUSEDOPS_DEVICE int32_t skipped_cols() const {
    return cols - (visible + kWidth - 1) / kWidth * kWidth + first<kWidth>();
  }

 private:
  // Divides each row's index by the sizes of the dimensions, the last one first, and moves the
  // row's offsets by the remainders. Index is uint32_t where rows are few.
  template <int kTerms, class Index, int kCount>
  static FUSEDOPS_DEVICE void find_operands(
      ScoreRow (&rows)[kCount], const Scores& scores, const ScoreDivisors& divisors) {
    Index rest[kCount];
#pragma unroll
    for (int r = 0; r < kCount; ++r) rest[r] = static_cast<Index>(rows[r].index);
    // The loop is unrolled, because to index the arguments at run time would copy them to local
    // memory.
#pragma unroll
    for (int d = kMaxRowDims - 1; d >= 0; --d) {
      if (d >= scores.dims.count) continue;
      const auto size = static_cast<Index>(scores.dims.sizes[d]);
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const Index outer = d == 0              ? Index{0}
            : sizeof(Index) == sizeof(uint32_t) ? divisors.dims[d].quotient(rest[r])
                                                : rest[r] / size;
        rows[r].template move<kTerms>(scores, d, d == 0 ? rest[r] : rest[r] - outer * size);
        rest[r] = outer;
      }
    }
  }

  // Moves the offsets in the operands to index `at` of a dimension.
  template <int kTerms>
  FUSEDOPS_DEVICE void move(const Scores& scores, int dim, uint64_t at) {
    bias += at * scores.bias.strides[dim];
    mask += at * scores.mask.strides[dim];
    if constexpr (kHasAll<kTerms>) {
      start += at * scores.start.strides[dim];
      end += at * scores.end.strides[dim];
      sinks += at * scores.sinks.strides[dim];
    }
  }

  // Limits the visible columns by `end`, the lower diagonal and `start`: lowers `visible`, and sets
  // `begin`. Both become 0 if no column is left.
  FUSEDOPS_DEVICE void limit(const Scores& scores, const ScoreDivisors& divisors) {
    const Causal& causal = scores.causal;
    if (scores.end.data != nullptr) visible = limited(bound(scores.end, end));
    if (causal.has_lower_diagonal) {
      begin = limited(query_of(causal, divisors) + causal.lower_diagonal);
    }
    if (scores.start.data != nullptr) {
      const int32_t other = limited(bound(scores.start, start));
      begin = other > begin ? other : begin;
    }
    if (begin >= visible) begin = visible = 0;
  }

  FUSEDOPS_DEVICE int32_t limited(int64_t column) const {
    return static_cast<int32_t>(column < 0 ? 0 : column > visible ? visible : column);
  }

  static FUSEDOPS_DEVICE int64_t bound(const RowBound& bound, int64_t offset) {
    if (bound.is_int64) return static_cast<const int64_t*>(bound.data)[offset];
    return static_cast<const int32_t*>(bound.data)[offset];
  }

  FUSEDOPS_DEVICE int64_t query_of(const Causal& causal, const ScoreDivisors& divisors) const {
    if (divisors.rows_are_few) return divisors.queries.remainder(static_cast<uint32_t>(index));
    const auto queries = static_cast<uint64_t>(causal.queries);
    return static_cast<int64_t>(static_cast<uint64_t>(index) % queries);
  }

  FUSEDOPS_DEVICE int32_t
  visible_columns(const Causal& causal, const ScoreDivisors& divisors) const {
    if (divisors.rows_are_few) {
      const auto query = divisors.queries.remainder(static_cast<uint32_t>(index));
      const int32_t end = static_cast<int32_t>(query) + static_cast<int32_t>(causal.diagonal) + 1;
      return end < 0 ? 0 : end < cols ? end : cols;
    }
    return limited(query_of(causal, divisors) + causal.diagonal + 1);
  }
};

// Returns the address `elements` elements after `own`, the address of this thread's first element.
// The compiler then adds a 32-bit number of bytes to `own`, and not to the index from which `own`
// was computed, which saves two instructions an access.
template <class T>
FUSEDOPS_DEVICE T* moved_by(T* own, int32_t elements) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  const auto bytes = static_cast<uint32_t>(elements) * static_cast<uint32_t>(sizeof(T));
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(own) + bytes);
}

// Holds which elements of a tile a bool mask shows.
template <int kWidth, int kVectors>
struct ShownElements {
  static constexpr int kVectorsPerWord = 32 / kWidth < kVectors ? 32 / kWidth : kVectors;
  uint32_t words[kVectors / kVectorsPerWord];  // a bit for each element, in order

  FUSEDOPS_DEVICE bool at(int i, int j) const {
    return words[i / kVectorsPerWord] >> (i % kVectorsPerWord * kWidth + j) & 1;
  }

  // Hides the elements in columns before `end`, counted from the thread's first column.
  FUSEDOPS_DEVICE void hide_before(int32_t end) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t count = end - columns_before<kWidth>(i);
      if (count <= 0) return;
      const uint32_t bits = ~(~0u << (count < kWidth ? count : kWidth));
      words[i / kVectorsPerWord] &= ~(bits << (i % kVectorsPerWord * kWidth));
    }
  }

  // Loads a tile of the mask, whose first element is at `offset`, where the row has `cols` columns
  // left. Without a bool mask all elements are shown.
  template <int kTerms>
  FUSEDOPS_DEVICE void load(const Operand& mask, int64_t offset, int32_t cols) {
    fill(~0u);
    if constexpr ((kTerms & kBoolTerm) != 0) {
      const bool has_any = !kHasAll<kTerms> || (mask.data != nullptr && mask.is_bool);
      if (!has_any || cols <= 0) return;
      const auto* const row = static_cast<const bool*>(mask.data) + offset;
      if (kHasAll<kTerms> && mask.col_stride == 0) return fill(*row ? ~0u : 0);
      Tile<bool, kWidth, kVectors> tile;
      tile.load_cached(row, cols);
      fill(0);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        words[i / kVectorsPerWord] |= tile.vectors[i].bits() << (i % kVectorsPerWord * kWidth);
      }
    }
  }

 private:
  FUSEDOPS_DEVICE void fill(uint32_t word) {
#pragma unroll
    for (uint32_t& each : words) each = word;
  }
};

// Adds an operand whose elements are of type T to the sums of a tile. If col_stride is 0, one
// element is added in all columns.
template <class T, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void add_elements(
    Acc (&sums)[kVectors][kWidth], const void* data, int64_t offset, int32_t col_stride,
    int32_t cols) {
  const T* const row = static_cast<const T*>(data) + offset;
  Tile<T, kWidth, kVectors> tile;
  if (col_stride != 0) {
    tile.load_cached(row, cols);
  } else {
    const auto repeated = Vec<T, kWidth>::filled(Vec<T, 1>::load_cached(row).at(0));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) tile.vectors[i] = repeated;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[i][j] += tile.at(i, j);
  }
}

// Adds an operand of numbers to the sums of a tile. Does nothing for a bool mask, or if there is no
// operand.
template <class In, int kWidth, int kVectors, class Acc>
FUSEDOPS_DEVICE void add_operand(
    Acc (&sums)[kVectors][kWidth], const Operand& operand, int64_t offset, int32_t cols) {
  if (operand.data == nullptr || operand.is_bool || cols <= 0) return;
  if constexpr (sizeof(In) == 2) {
    if (operand.dtype == DType::kFloat32) {
      return add_elements<float>(sums, operand.data, offset, operand.col_stride, cols);
    }
  }
  add_elements<In>(sums, operand.data, offset, operand.col_stride, cols);
}

// kTwoLog2E is 2 log2(e), with which tanh(x) = 1 - doubled_logistic(kTwoLog2E * x).
inline constexpr float kTwoLog2E = 2.88539008f;

// Returns 2 / (1 + 2^x), which is 2 for -inf and 0 for +inf. The error is a few ulp of 1: that is
// precise enough where an exponential of the result is rounded to 16 bits.
FUSEDOPS_DEVICE float doubled_logistic(float x) {
  return device::fast_reciprocal(device::fma(0.5f, device::fast_exp2(x), 0.5f));
}

// Returns tanh(x), so precise that its exponential has the precision of `Out`.
template <class Out, class Acc>
FUSEDOPS_DEVICE Acc hyperbolic_tangent(Acc x) {
  if constexpr (sizeof(Out) == 2) {
    return 1 - doubled_logistic(kTwoLog2E * x);
  } else {
    return device::tanh(x);
  }
}

// Scaling and SoftCap compute a score before terms are added to it.
template <class Acc>
struct Scaling {
  Acc scale;

  FUSEDOPS_DEVICE explicit Scaling(const Scores& scores) : scale(static_cast<Acc>(scores.scale)) {}
  FUSEDOPS_DEVICE Acc operator()(Acc x) const { return scale * x; }
};

template <class Out, class Acc>
struct SoftCap {
  Acc scale, cap, inverse;

  FUSEDOPS_DEVICE explicit SoftCap(const Scores& scores)
      : scale(static_cast<Acc>(scores.scale)),
        cap(static_cast<Acc>(scores.softcap)),
        inverse(device::reciprocal(cap)) {}
  FUSEDOPS_DEVICE Acc operator()(Acc x) const {
    if constexpr (sizeof(Out) == 2) {
      // The factor of x is the same for all elements. It is limited to finite numbers, so that its
      // product with an x of 0 is 0 and not NaN.
      const float factor = fmaxf(fminf(kTwoLog2E * scale * inverse, FLT_MAX), -FLT_MAX);
      return device::fma(-cap, doubled_logistic(factor * x), cap);
    } else {
      return cap * device::tanh(scale * x * inverse);
    }
  }
};

// Holds the bias and the mask of numbers that are added to the scores of a tile. Only kTerms with
// such terms have the specializations below; all others add nothing.
template <int kTerms, class In, class Acc, int kWidth, int kVectors>
struct AddedTerms {
  FUSEDOPS_DEVICE void load(const Scores&, const ScoreRow&, int64_t, int32_t) {}
  FUSEDOPS_DEVICE Acc added_to(Acc score, int, int) const { return score; }
};

template <class In, class Acc, int kWidth, int kVectors>
struct AddedTerms<kNumbersTerm, In, Acc, kWidth, kVectors> {
  Tile<In, kWidth, kVectors> tile;

  FUSEDOPS_DEVICE void load(
      const Scores& scores, const ScoreRow& row, int64_t start, int32_t cols) {
    tile.load_cached(static_cast<const In*>(scores.bias.data) + (row.bias + start), cols);
  }
  FUSEDOPS_DEVICE Acc added_to(Acc score, int i, int j) const { return score + tile.at(i, j); }
};

// The operands are added to each other first, because that need not wait for the input.
template <class In, class Acc, int kWidth, int kVectors>
struct AddedTerms<kAllTerms, In, Acc, kWidth, kVectors> {
  Acc sums[kVectors][kWidth];

  FUSEDOPS_DEVICE void load(
      const Scores& scores, const ScoreRow& row, int64_t start, int32_t cols) {
#pragma unroll
    for (int k = 0; k < kVectors * kWidth; ++k) sums[k / kWidth][k % kWidth] = 0;
    add_operand<In>(sums, scores.bias, row.bias + start * scores.bias.col_stride, cols);
    add_operand<In>(sums, scores.mask, row.mask + start * scores.mask.col_stride, cols);
  }
  FUSEDOPS_DEVICE Acc added_to(Acc score, int i, int j) const { return score + sums[i][j]; }
};

// Replaces the values of a vector from column `end` on, which is not the vector's first.
template <int kWidth, class Acc>
FUSEDOPS_DEVICE void replace_from(Acc (&values)[kWidth], int32_t end, Acc other) {
  if (end >= kWidth) return;
#pragma unroll
  for (int j = 1; j < kWidth; ++j) values[j] = j < end ? values[j] : other;
}

// Holds the scores of a row that one thread has, laid out as in a Tile. A vector that begins before
// the end of the visible columns is held as a whole, with mask_value as the score of hidden
// columns. Other vectors are skipped: they are neither read nor computed, and have no values. If
// causality hides the vectors i of all lanes, the warp skips them at once.
template <int kTerms, class In, int kWidth, int kVectors, int kThreads = 0>
struct ScoreTile {
  using Acc = AccumulatorOf<In>;
  Acc values[kVectors][kWidth];
  Acc largest;
  ShownElements<kWidth, kVectors> shown;
  int32_t left;  // visible columns from this thread's first one on

  // Loads the input from column `start` of the row on, and computes the scores and their maximum.
  FUSEDOPS_DEVICE void load(const MaskedSoftmaxForward& args, const ScoreRow& row, int64_t start) {
    const Scores& scores = args.scores;
    const auto cols = static_cast<int32_t>(row.visible - start);
    left = cols - column_of<kWidth>(0);
    Tile<In, kWidth, kVectors> tile;
    const In* const own = row_of<In>(args.input, row.index) + start + column_of<kWidth>(0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (holds(i)) tile.vectors[i] = Vec<In, kWidth>::load(moved_by(own, offset_of(i)));
    }
    shown.template load<kTerms>(scores.mask, row.mask + start * scores.mask.col_stride, cols);
    if constexpr (kHasAll<kTerms>) {
      shown.hide_before(static_cast<int32_t>(row.begin - start) - column_of<kWidth>(0));
    }
    AddedTerms<kTerms & kAllTerms, In, Acc, kWidth, kVectors> terms;
    terms.load(scores, row, start, cols);

    const auto score = [&](auto scaled) {
      largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kVectors && holds(i); ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          values[i][j] = terms.added_to(scaled(tile.at(i, j)), i, j);
        }
        hide(i, static_cast<Acc>(scores.mask_value));
        largest = device::maximum(largest, largest_of(values[i]));
      }
    };
    if constexpr ((kTerms & kCapTerm) != 0) {
      const auto capped = [&](auto type) { score(SoftCap<decltype(type), Acc>(scores)); };
      const bool is_capped = kTerms == kCappedTerms || scores.softcap != 0;
      if (is_capped) return with_wider<In>(args.output.dtype, capped);
    }
    if constexpr (kTerms != kCappedTerms) score(Scaling<Acc>(scores));
  }

  // Skips all vectors from now on.
  FUSEDOPS_DEVICE void skip() { left = 0; }

  // Returns whether any score is visible and not -inf.
  FUSEDOPS_DEVICE bool sees() const {
    bool seen = false;
#pragma unroll
    for (int i = 0; i < kVectors && holds(i); ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) seen |= shows(i, j) && values[i][j] != -INFINITY;
    }
    return seen;
  }

  // Replaces the scores by e^(score - shift), and returns their sum.
  template <class Out>
  FUSEDOPS_DEVICE Acc exponentiate(Acc shift) {
    Acc sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors && holds(i); ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[i][j] = exponential<Out>(values[i][j] - shift);
      sum += tree_sum<kWidth>(values[i]);
    }
    return sum;
  }

  // Calls f(offset, scale * exponentials) for each vector that this thread holds; offset counts
  // columns from the thread's first one.
  template <class F>
  FUSEDOPS_DEVICE void for_each_held(Acc scale, F f) const {
#pragma unroll
    for (int i = 0; i < kVectors && holds(i); ++i) {
      Acc result[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) result[j] = values[i][j] * scale;
      f(offset_of(i), result);
    }
  }

  // Calls f(offset) for each of this thread's vectors that is wholly hidden and begins in the first
  // `cols` columns of the tile.
  template <class F>
  FUSEDOPS_DEVICE void for_each_skipped(int32_t cols, F f) const {
    const int32_t end = cols - column_of<kWidth>(0);
#pragma unroll
    for (int i = kVectors - 1; i >= 0 && !holds(i); --i) {
      if (offset_of(i) < end) f(offset_of(i));
    }
  }

  // Calls f(offset) for the same vectors in a loop that is not unrolled, where f is long and rarely
  // called.
  template <class F>
  FUSEDOPS_DEVICE void for_each_skipped_in_loop(int32_t cols, F f) const {
    const int32_t end = cols - column_of<kWidth>(0);
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      if (!holds(i) && offset_of(i) < end) f(offset_of(i));
    }
  }

 private:
  static FUSEDOPS_DEVICE int32_t offset_of(int i) { return columns_before<kWidth, kThreads>(i); }

  // Returns whether vector i is not wholly hidden by its position. Such vectors come first among a
  // thread's kVectors vectors, so loops can stop at the first one that is not held.
  FUSEDOPS_DEVICE bool holds(int i) const { return offset_of(i) < left; }

  FUSEDOPS_DEVICE bool shows(int i, int j) const {
    return shown.at(i, j) && ((kTerms & kCausalTerm) == 0 || offset_of(i) + j < left);
  }

  // Replaces the hidden scores of vector i by mask_value. A bool mask may hide any element.
  // Causality can only hide elements of the last vector that a thread holds; for the others, one
  // comparison a vector is enough.
  FUSEDOPS_DEVICE void hide(int i, Acc mask_value) {
    if constexpr ((kTerms & kBoolTerm) != 0) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        values[i][j] = shown.at(i, j) ? values[i][j] : mask_value;
      }
    }
    if constexpr ((kTerms & kCausalTerm) != 0 && kWidth > 1) {
      replace_from(values[i], left - offset_of(i), mask_value);
    }
  }

  static FUSEDOPS_DEVICE Acc largest_of(const Acc (&values)[kWidth]) {
    Acc largest = values[0];
#pragma unroll
    for (int j = 1; j < kWidth; ++j) largest = device::maximum(largest, values[j]);
    return largest;
  }
};

}  // namespace fusedops::cuda
