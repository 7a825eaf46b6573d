// softmax and log_softmax of rows on the CPU.
//
// Forward: a row is taken in chunks that stay in the L1 cache; each keeps its own maximum and sum,
// so memory is read once and each element costs one exp however long the row is. The chunks are
// combined at the end. Rows that are all -inf, or hold a NaN or +inf, come out NaN, as in PyTorch.
#pragma once

#include "fusedops/cpu/exp.h"
#include "fusedops/cpu/kernels.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// At most 16 KiB, and 64 additions to each lane of a sum.
template <class C>
constexpr int64_t kSoftmaxChunk = 256 * kLanes<C>;
static_assert(kSoftmaxChunk<double> >= kShortestSoftmaxChunk);

// Two rows of a backward, grad_output's and output's, are a quarter of the L2 cache or less.
constexpr int64_t kPrefetchedRowBytes = int64_t(1) << 17;

template <class C>
struct SoftmaxChunk {
  C max;
  double sum;
};

// exp(input - max) into `scratch` (where Keep) and their sum. Meanwhile `next`, the chunk that will
// be read after this one, is on its way from memory.
template <bool Keep, class Out, class In, class C = Compute<In>>
FUSEDOPS_INLINE SoftmaxChunk<C> softmax_chunk(
    const In* input, const In* next, C* scratch, int64_t cols) {
  const auto at = [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    return filled<In>(load(input + col, part), part, -kInfinity<C>);
  };
  const auto lowest = both(-kInfinity<C>);
  // A NaN is dropped here; exp(NaN - max) brings it back.
  const auto max =
      fold_columns<In>(cols, lowest, [&](Tile<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        return larger(so_far, at(col, part));
      });
  const C chunk_max = max_of(max.even, max.odd);
  // All -inf so far: nothing to subtract, and exp(-inf) = 0 lets a finite chunk stay finite.
  const C shift = chunk_max == -kInfinity<C> ? C(0) : chunk_max;
  const auto sum = fold_columns<In>(
      cols, both(C(0)), [&](Tile<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
        prefetch_tile<Cache::kL1>(next + col);
        const Tile<C> e = exp_nonpositive<Out>(at(col, part) - shift);
        if constexpr (Keep) store(scratch + col, e);  // scratch is padded to whole tiles
        return so_far + e;
      });
  return {chunk_max, sum_of(sum.even, sum.odd)};
}

// exp(a - b) for a <= b. Most rows are one chunk, where a and b are equal and nothing is computed.
template <class C>
FUSEDOPS_INLINE double exp_difference(C a, C b) {
  return a == b ? 1.0 : __builtin_exp(double(a) - double(b));
}

// The row's maximum, and the sum of exp(input - maximum).
template <class C>
FUSEDOPS_INLINE SoftmaxChunk<double> combine(const SoftmaxChunk<C>* chunks, int64_t count) {
  C max = -kInfinity<C>;
  for (int64_t i = 0; i < count; ++i) max = Larger{}(max, chunks[i].max);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += chunks[i].sum * exp_difference(chunks[i].max, max);
  return {double(max), sum};
}

// tile * factor / sum, rounded as seldom as what it is stored as can tell. A float factor comes in
// two parts; a double one, where speed matters less, is divided by.
template <class Out, class C>
FUSEDOPS_INLINE Tile<C> scaled(Tile<C> tile, double factor, double sum) {
  const double scale = factor / sum;
  const C high = C(scale);
  if constexpr (sizeof(Out) == sizeof(double)) return tile * factor / sum;
  if constexpr (sizeof(Out) == sizeof(float)) return tile * high + tile * C(scale - double(high));
  return tile * high;
}

template <class In, class Out, class C, class Store>
FUSEDOPS_INLINE void write_softmax(
    Out* output, const C* scratch, const SoftmaxChunk<C>* chunks, SoftmaxChunk<double> row,
    int64_t cols, Store put) {
  for (int64_t begin = 0, chunk = 0; begin < cols; begin += kSoftmaxChunk<C>, ++chunk) {
    const int64_t count = cols - begin < kSoftmaxChunk<C> ? cols - begin : kSoftmaxChunk<C>;
    const double factor = exp_difference(chunks[chunk].max, C(row.max));
    for_columns<In>(count, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> e = load(scratch + begin + col);
      put(output + begin + col, part, in_order<In, Out>(scaled<Out>(e, factor, row.sum)));
    });
  }
}

template <class Out, class In, class Store, class C = Compute<In>>
FUSEDOPS_INLINE void write_log_softmax(
    Out* output, const In* input, SoftmaxChunk<double> row, int64_t cols, Store put) {
  const C max = C(row.max), log_sum = C(__builtin_log(row.sum));
  for_columns<In>(cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
    put(output + col, part, in_order<In, Out>((load(input + col, part) - max) - log_sum));
  });
}

template <bool Log, class In, class Out, class Store>
FUSEDOPS_INLINE void softmax_rows(
    const SoftmaxForward& args, RowRange range, void* scratch_memory, Store put) {
  using C = Compute<In>;
  C* scratch = static_cast<C*>(scratch_memory);
  auto* chunks = reinterpret_cast<SoftmaxChunk<C>*>(scratch + padded_cols(args.cols));
  for (int64_t row = range.begin; row < range.end; ++row) {
    const In* input = static_cast<const In*>(args.input.data) + args.input.spacing.offset(row);
    Out* output = static_cast<Out*>(args.output.data) + args.output.spacing.offset(row);
    int64_t count = 0;
    for (int64_t begin = 0; begin < args.cols; begin += kSoftmaxChunk<C>, ++count) {
      const int64_t left = args.cols - begin;
      const bool last = left <= kSoftmaxChunk<C>;
      const int64_t cols = last ? left : kSoftmaxChunk<C>;
      const In* next = last ? input + args.input.spacing.stride : input + begin + cols;
      chunks[count] = softmax_chunk<!Log, Out>(input + begin, next, scratch + begin, cols);
    }
    const SoftmaxChunk<double> whole = combine(chunks, count);
    if constexpr (Log) {
      write_log_softmax(output, input, whole, args.cols, put);
    } else {
      write_softmax<In>(output, scratch, chunks, whole, args.cols, put);
    }
  }
}

template <bool Log, class In, class Out, class Store>
FUSEDOPS_INLINE void softmax_backward_rows(const SoftmaxBackward& args, RowRange range, Store put) {
  using C = Compute<Out>;
  // Where the data is larger than the cache, the next row is on its way while one is written: +10
  // %, and a loss of 20 % where it is not. A row that the cache would not hold is left to itself.
  const bool fits = args.cols * int64_t(sizeof(Out)) <= kPrefetchedRowBytes;
  const int64_t grad_ahead = fits ? args.grad_output.spacing.stride : 0;
  const int64_t output_ahead = fits ? args.output.spacing.stride : 0;
  for (int64_t row = range.begin; row < range.end; ++row) {
    const auto* grad =
        static_cast<const Out*>(args.grad_output.data) + args.grad_output.spacing.offset(row);
    const auto* output =
        static_cast<const Out*>(args.output.data) + args.output.spacing.offset(row);
    auto* result = static_cast<In*>(args.grad_input.data) + args.grad_input.spacing.offset(row);
    const auto sums = fold_columns<Out>(
        args.cols, both(C(0)), [&](Tile<C> so_far, int64_t col, auto part) FUSEDOPS_LAMBDA {
          const Tile<C> g = load(grad + col, part);
          return so_far + (Log ? g : g * load(output + col, part));
        });
    const C sum = C(sum_of(sums.even, sums.odd));
    for_columns<Out>(args.cols, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      if constexpr (Store::kStreams) {
        prefetch_tile<Cache::kL2>(grad + grad_ahead + col);
        prefetch_tile<Cache::kL2>(output + output_ahead + col);
      }
      const Tile<C> g = load(grad + col, part), y = load(output + col, part);
      const Tile<C> grad_input = Log ? g - exp_nonpositive<In>(y) * sum : (g - sum) * y;
      put(result + col, part, in_order<Out, In>(grad_input));
    });
  }
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
