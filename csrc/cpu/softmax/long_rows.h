// Computes softmax and log_softmax of long rows on the CPU, some columns at a time: threads share a
// row, or one thread computes all of it. A row is read twice, the second time from the output if
// its exponentials were saved there. The first pass stores the maximum and the sum of each chunk of
// columns (SoftmaxChunk). They are combined in the order of the chunks, whichever threads computed
// them, so that the results have the same bits as if rows.h had computed the row in one piece.
#pragma once

#include <type_traits>

#include "cpu/softmax/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

static_assert(kRowSegment % kSoftmaxChunk<float> == 0);
static_assert(kRowSegment % kSoftmaxChunk<double> == 0);

// Whether the exponentials of a softmax may be saved in its output: input and output have to have
// the compute type, so that nothing is rounded. They are saved unless the output bypasses the cache
// (is_streaming()). Exponentials that are not saved are computed again, with the same bits, which
// costs less than to keep them in other memory.
template <bool Log, class In, class Out>
constexpr bool kMaySave = !Log && std::is_same_v<In, Compute<In>> && std::is_same_v<Out, In>;

// Computes the chunks' maxima and sums, and saves no exponentials.
template <bool Log, class Out, class In, class C = Compute<In>>
FUSEDOPS_NOINLINE void reduce_softmax_chunks(
    const In* input, SoftmaxChunk<C>* chunks, RowRange cols) {
  C* nowhere = nullptr;
  const Out* unwritten = nullptr;
  softmax_chunks<Log, Save::kNot>(input, input + cols.end, unwritten, nowhere, chunks, cols);
}

// Computes the chunks' maxima and sums, and saves the exponentials in the output where it may.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE void long_softmax_chunks(
    const SoftmaxForward& args, int64_t row, RowRange cols, void* chunk_memory, bool streaming) {
  using C = Compute<In>;
  const In* input = start_of<In>(args.input, row);
  auto* chunks = static_cast<SoftmaxChunk<C>*>(chunk_memory);
  if constexpr (kMaySave<Log, In, Out>) {
    C* output = start_of<C>(args.output, row);
    if (!streaming) {
      return softmax_chunks<Log, Save::kInRow, Out>(
          input, input + cols.end, output, output, chunks, cols);
    }
  }
  reduce_softmax_chunks<Log, Out>(input, chunks, cols);
}

// Writes the results in the columns `cols`, from the chunks of the whole row.
template <bool Log, class In, class Out>
FUSEDOPS_INLINE void write_long_softmax_chunks(
    const SoftmaxForward& args, int64_t row, RowRange cols, const void* chunk_memory,
    bool streaming, StoreMode mode) {
  using C = Compute<In>;
  const In* input = start_of<In>(args.input, row);
  Out* output = start_of<Out>(args.output, row);
  const auto* chunks = static_cast<const SoftmaxChunk<C>*>(chunk_memory);
  const SoftmaxRow whole = combine(chunks, softmax_chunk_count<C>(args.cols));
  if constexpr (Log) {
    return write_log_softmax(output, input, whole, cols, mode);
  }
  if constexpr (kMaySave<Log, In, Out>) {
    const FromMemory<C> saved{output};
    if (!streaming) return write_softmax<In>(output, saved, chunks, whole, cols, mode);
  }
  write_softmax<In>(output, Recomputed<In, Out>{input}, chunks, whole, cols, mode);
}

// --- statistics ---------------------------------------------------------------------------------

template <class In, class C = Compute<In>>
void write_statistics(const SoftmaxStatistics& args, int64_t row, const void* chunk_memory) {
  const auto* chunks = static_cast<const SoftmaxChunk<C>*>(chunk_memory);
  const SoftmaxRow whole = combine(chunks, softmax_chunk_count<C>(args.cols));
  static_cast<C*>(args.max)[row] = C(whole.max);
  static_cast<C*>(args.sum)[row] = C(whole.sum);
}

// Writes exp(input - max) / sum. The row's max and sum are given, but not the smallest exponential
// of each chunk. So every tile is checked for exponentials that have to be divided in steps, as a
// multiplication would lose bits (exp_division.h).
template <class In, class Out>
FUSEDOPS_INLINE void apply_softmax_statistics(
    const SoftmaxApply& args, int64_t row, RowRange cols, StoreMode mode) {
  using C = Compute<In>;
  const In* input = start_of<In>(args.input, row);
  Out* output = start_of<Out>(args.output, row);
  const C shift = shift_of(static_cast<const C*>(args.max)[row]);
  const double sum = static_cast<const C*>(args.sum)[row];
  // The exponentials are scaled (exp.h) and the saved sum is not, so the sum is scaled here.
  const DivisionAsNeeded<Out> divide(Divisor<Out>(1.0, sum * kExpScale<C>));
  for_columns<In>(cols.end - cols.begin, [&](int64_t offset, auto part) FUSEDOPS_LAMBDA {
    const int64_t col = cols.begin + offset;
    const Tile<C> e = Recomputed<In, Out>{input}.at(col, part, shift);
    mode.store(output + col, part, in_order<In, Out>(divide(e)));
  });
}

// --- backward -----------------------------------------------------------------------------------

// Sets an element of `sums` for each chunk to its softmax_backward_sum().
template <bool Log, class Out, class C = Compute<Out>>
FUSEDOPS_INLINE void long_softmax_backward_sums(
    const SoftmaxBackward& args, int64_t row, RowRange cols, double* sums) {
  const SoftmaxGradRow<Out> grad_row(args, row);
  for_parts(cols, kSoftmaxChunk<C>, [&](RowRange chunk) FUSEDOPS_LAMBDA {
    sums[chunk.begin / kSoftmaxChunk<C>] = softmax_backward_sum<Log>(grad_row, chunk);
  });
}

template <bool Log, class In, class Out>
FUSEDOPS_INLINE void write_long_softmax_gradient(
    const SoftmaxBackward& args, int64_t row, RowRange cols, const double* sums, StoreMode mode) {
  using C = Compute<Out>;
  double sum = 0;
  for (int64_t i = 0; i < softmax_chunk_count<C>(args.cols); ++i) sum += sums[i];
  In* result = start_of<In>(args.grad_input, row);
  const SoftmaxGradRow<Out> grad_row(args, row);
  write_softmax_backward<Log>(result, grad_row, C(sum), cols, RowsAhead{}, mode);
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
