#include "cpu/backend.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "fusedops/cpu/kernels.h"

namespace fusedops {
namespace {

// Elements below which a second thread costs more than it brings.
constexpr int64_t kGrainElements = 32768;

// Bytes moved above which results bypass the cache: what is written last would only push out what
// is read next. On 32 MiB of last-level cache, bypassing gains 20-40 % at 24 MiB and nothing at 16.
constexpr int64_t kStreamingBytes = int64_t(20) << 20;

// Scratch memory for a parallel_for(): a part for each thread that may run its body, all there
// before the first writes a result, so that a call without memory leaves its tensors as they are.
// What most calls need stays with the thread that calls; more is given back at once, so that one
// row of 10^9 elements does not cost memory for ever.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : parts_(thread_count()), part_bytes_(aligned(bytes)) {
    thread_local Kept kept;
    if (part_bytes_ > kKeptBytes) {
      own_ = allocate(parts_ * part_bytes_);
    } else if (bytes > 0 && kept.parts < parts_) {
      kept.memory = allocate(parts_ * kKeptBytes);
      kept.parts = parts_;
    }
    if (!own_) part_bytes_ = bytes > 0 ? kKeptBytes : 0;
    memory_ = static_cast<char*>(own_ ? own_.get() : kept.memory.get());
  }

  static int64_t aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  int64_t parts() const { return parts_; }

  // The part of the thread that asks. Work that was not divided may run anywhere: then one part is
  // in use.
  void* of_thread() const {
    const int64_t index = thread_index();
    return memory_ + (index < parts_ ? index : 0) * part_bytes_;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<void, Free>;
  struct Kept {
    Memory memory;
    int64_t parts = 0;
  };
  static constexpr int64_t kKeptBytes = int64_t(1) << 20, kAlignment = 64;

  static Memory allocate(int64_t bytes) {
    void* memory = std::aligned_alloc(kAlignment, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return Memory(memory);
  }

  int64_t parts_, part_bytes_;
  Memory own_;
  char* memory_;
};

// body(range, scratch) over [0, count), on no more threads than the scratch memory has parts.
template <class Body>
void share(int64_t count, int64_t grain, const Scratch& scratch, Body body) {
  const int64_t least = (count + scratch.parts() - 1) / scratch.parts();
  parallel_for(count, std::max(grain, least), [&](int64_t begin, int64_t end) {
    body(RowRange{begin, end}, scratch.of_thread());
  });
}

// body(rows, scratch)
template <class Body>
void for_rows(int64_t rows, int64_t cols, int64_t scratch_bytes, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(cols, 1));
  share(rows, grain, Scratch(scratch_bytes), body);
}

// body(columns, scratch): whole segments of a long row, for as many threads as are worth it.
template <class Body>
void for_columns(int64_t cols, int64_t rows, const Scratch& scratch, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / kRowSegment / rows);
  share(row_segments(cols), grain, scratch, [&](RowRange segments, void* own) {
    const int64_t end = std::min(segments.end * kRowSegment, cols);
    body(RowRange{segments.begin * kRowSegment, end}, own);
  });
}

// Long rows: take(row, columns, notes, scratch), and once all columns of a row are taken,
// write(row, columns, notes, scratch). As many rows as threads go side by side, so that what one
// has read it finds in its cache; of those left over all threads share each.
template <class Take, class Write>
void for_long_rows(
    int64_t rows, int64_t cols, int64_t note_bytes, int64_t scratch_bytes, Take take, Write write) {
  note_bytes = Scratch::aligned(note_bytes);
  const Scratch memory(note_bytes + scratch_bytes);
  const auto scratch_behind = [&](void* notes) { return static_cast<char*>(notes) + note_bytes; };
  const int64_t side_by_side = rows - rows % memory.parts();
  share(side_by_side, 1, memory, [&](RowRange range, void* notes) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      take(row, RowRange{0, cols}, notes, scratch_behind(notes));
      write(row, RowRange{0, cols}, notes, scratch_behind(notes));
    }
  });
  void* const notes = memory.of_thread();
  const auto shared = [&](int64_t row, auto step) {
    for_columns(cols, 1, memory, [&](RowRange part, void* own) {
      step(row, part, notes, scratch_behind(own));
    });
  };
  for (int64_t row = side_by_side; row < rows; ++row) {
    shared(row, take);
    shared(row, write);
  }
}

// The backward of `count` norms of one shape; at(i) gives the arguments of the i-th. Threads share
// the partitions of all of them first, then their columns.
template <class At>
void backward_of_norms(int64_t count, At at, bool streaming) {
  const CpuKernels& kernels = cpu_kernels();
  const NormBackward each = at(0);
  const RowPartition partition(each.rows);
  const int64_t elements = std::min(partition.rows_each, each.rows) * each.cols;
  const int64_t scratch_bytes = norm_scratch_bytes(each);
  for_rows(count * partition.count, elements, scratch_bytes, [&](RowRange range, void* scratch) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t tensor = i / partition.count;
      kernels.norm_backward(at(tensor), i - tensor * partition.count, scratch, streaming);
    }
  });
  if (each.grad_weight.data == nullptr && each.grad_bias.data == nullptr) return;
  const int64_t blocks = padded_cols(each.cols) / kColumnPadding;
  for_rows(count * blocks, partition.count * kColumnPadding, 0, [&](RowRange range, void*) {
    for (int64_t i = range.begin; i < range.end;) {
      const int64_t tensor = i / blocks, first = tensor * blocks;
      const int64_t end = std::min(range.end, first + blocks);
      kernels.norm_finish(
          at(tensor), (i - first) * kColumnPadding,
          std::min((end - first) * kColumnPadding, each.cols));
      i = end;
    }
  });
}

// body(args, range, scratch) over the rows of every tensor of a stack.
template <class Stack, class Body>
void for_stack(const Stack& stack, int64_t scratch_bytes, Body body) {
  const int64_t rows = stack.each.rows, count = stack.count * rows;
  for_rows(count, stack.each.cols, scratch_bytes, [&](RowRange all, void* scratch) {
    for (int64_t row = all.begin; row < all.end;) {
      const int64_t tensor = row / rows, first = tensor * rows;
      const int64_t end = std::min(all.end, first + rows);
      body(stack[static_cast<int32_t>(tensor)], RowRange{row - first, end - first}, scratch);
      row = end;
    }
  });
}

// body(strips, scratch) over the strips of all planes.
template <class Args, class Body>
void for_strips(const Args& args, Body body) {
  const PlaneStrips strips = plane_strips(args);
  const int64_t elements = args.rows * std::min(strips.lanes_each, args.lanes);
  for_rows(args.planes * strips.count, elements, planes_scratch_bytes(args.rows, strips), body);
}

// --- long rows ----------------------------------------------------------------------------------

void launch_long(const CpuKernels& kernels, const SoftmaxForward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, softmax_chunks_bytes(args.cols), 0,
      [&](int64_t row, RowRange cols, void* chunks, void*) {
        kernels.long_softmax(args, row, cols, chunks, streaming);
      },
      [&](int64_t row, RowRange cols, const void* chunks, void*) {
        kernels.write_long_softmax(args, row, cols, chunks, streaming);
      });
}

void launch_long(const CpuKernels& kernels, const SoftmaxBackward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, softmax_chunks_bytes(args.cols), 0,
      [&](int64_t row, RowRange cols, void* chunks, void*) {
        kernels.long_softmax_backward(args, row, cols, chunks);
      },
      [&](int64_t row, RowRange cols, const void* chunks, void*) {
        kernels.write_long_softmax_backward(args, row, cols, chunks, streaming);
      });
}

bool is_long(const NormBackward& args) {
  return is_long_row(args.cols) && args.grad_branch.data == nullptr;
}

void launch_long(const CpuKernels& kernels, const NormForward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, norm_notes_bytes(args), kLongNormScratchBytes,
      [&](int64_t row, RowRange cols, void* notes, void* scratch) {
        kernels.long_norm(args, row, cols, notes, scratch);
      },
      [&](int64_t row, RowRange cols, void* notes, void* scratch) {
        kernels.write_long_norm(args, row, cols, notes, scratch, streaming);
      });
}

NormGradSums total(const NormGradSums* notes, int64_t count) {
  NormGradSums sums{0, 0};
  for (int64_t i = 0; i < count; ++i) {
    sums.of_grad += notes[i].of_grad;
    sums.of_product += notes[i].of_product;
  }
  return sums;
}

// Threads share columns, not rows: those add up over the rows.
void launch_long(const CpuKernels& kernels, const NormBackward& args, bool streaming) {
  const int64_t segments = row_segments(args.cols);
  std::vector<NormGradSums> notes(args.rows * segments), rows(args.rows);
  const Scratch memory(kLongNormScratchBytes);
  for_columns(args.cols, args.rows, memory, [&](RowRange cols, void* scratch) {
    for (int64_t row = 0; row < args.rows; ++row) {
      kernels.long_norm_backward(args, row, cols, &notes[row * segments], scratch);
    }
  });
  for (int64_t row = 0; row < args.rows; ++row) rows[row] = total(&notes[row * segments], segments);
  for_columns(args.cols, args.rows, memory, [&](RowRange cols, void* scratch) {
    kernels.write_long_norm_backward(args, cols, rows.data(), scratch, streaming);
  });
}

}  // namespace

void CpuBackend::launch(const SoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      args.rows * args.cols * (size_of(args.input.dtype) + size_of(args.output.dtype)) >
      kStreamingBytes;
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  const int64_t scratch_bytes = softmax_scratch_bytes(args.cols, args.input.dtype);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.softmax(args, range, scratch, streaming);
  });
}

void CpuBackend::launch(const SoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      args.rows * args.cols * (2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype)) >
      kStreamingBytes;
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  for_rows(args.rows, args.cols, 0, [&](RowRange range, void*) {
    kernels.softmax_backward(args, range, streaming);
  });
}

void CpuBackend::launch(const SoftmaxPlanesForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = size_of(args.input.dtype) + size_of(args.output.dtype);
  const bool streaming = args.planes * args.rows * args.lanes * bytes > kStreamingBytes;
  for_strips(args, [&](RowRange strips, void* scratch) {
    kernels.softmax_planes(args, strips, scratch, streaming);
  });
}

void CpuBackend::launch(const SoftmaxPlanesBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = 2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype);
  const bool streaming = args.planes * args.rows * args.lanes * bytes > kStreamingBytes;
  for_strips(args, [&](RowRange strips, void* scratch) {
    kernels.softmax_planes_backward(args, strips, scratch, streaming);
  });
}

void CpuBackend::launch(const MaskedSoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t outputs = args.probabilities.data == nullptr ? 1 : 2;
  const int64_t bytes = size_of(args.input.dtype) + outputs * size_of(args.output.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  const int64_t scratch_bytes = masked_softmax_scratch_bytes(args.cols, args.input.dtype);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.masked_softmax(args, range, scratch, streaming);
  });
}

void CpuBackend::launch(const MaskedSoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = 2 * size_of(args.probabilities.dtype) + size_of(args.grad_input.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  const int64_t scratch_bytes = masked_softmax_scratch_bytes(args.cols, args.probabilities.dtype);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.masked_softmax_backward(args, range, scratch, streaming);
  });
}

void CpuBackend::launch(const NormForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t tensors = 2 + (args.residual.data != nullptr) + (args.sum.data != nullptr);
  const int64_t bytes = tensors * size_of(args.input.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  const int64_t scratch_bytes = norm_scratch_bytes(args);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.norm(args, range, scratch, streaming);
  });
}

void CpuBackend::launch(const NormBackward& args) const {
  const int64_t tensors = 2 + (args.grad_sum.data != nullptr) + (args.grad_input.data != nullptr) +
      (args.grad_branch.data != nullptr);
  const int64_t bytes = tensors * size_of(args.input.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  if (is_long(args)) return launch_long(cpu_kernels(), args, streaming);
  backward_of_norms(1, [&](int64_t) { return args; }, streaming);
}

void CpuBackend::launch(const SoftmaxStatistics& args) const {
  const CpuKernels& kernels = cpu_kernels();
  // As exactly as the sum is kept: in float beside 16-bit rows.
  const bool is_wide = args.input.dtype == DType::kFloat64;
  SoftmaxForward forward{};
  forward.input = args.input;
  forward.output.dtype = is_wide ? DType::kFloat64 : DType::kFloat32;
  forward.cols = args.cols;
  forward.log = true;  // the sums alone
  const auto take = [&](int64_t row, RowRange cols, void* chunks, void*) {
    kernels.long_softmax(forward, row, cols, chunks, true);
  };
  const auto keep = [&](int64_t row, RowRange cols, const void* chunks, void*) {
    if (cols.begin == 0) kernels.softmax_statistics(args, row, chunks);
  };
  const int64_t chunk_bytes = softmax_chunks_bytes(args.cols);
  if (is_long_row(args.cols)) {
    return for_long_rows(args.rows, args.cols, chunk_bytes, 0, take, keep);
  }
  for_rows(args.rows, args.cols, chunk_bytes, [&](RowRange rows, void* chunks) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      take(row, {0, args.cols}, chunks, nullptr);
      keep(row, {0, args.cols}, chunks, nullptr);
    }
  });
}

void CpuBackend::launch(const SoftmaxApply& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = size_of(args.input.dtype) + size_of(args.output.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  const auto apply = [&](int64_t row, RowRange cols) {
    kernels.softmax_apply(args, row, cols, streaming);
  };
  if (is_long_row(args.cols)) {
    const Scratch none(0);
    for (int64_t row = 0; row < args.rows; ++row) {
      for_columns(args.cols, 1, none, [&](RowRange cols, void*) { apply(row, cols); });
    }
    return;
  }
  for_rows(args.rows, args.cols, 0, [&](RowRange rows, void*) {
    for (int64_t row = rows.begin; row < rows.end; ++row) apply(row, {0, args.cols});
  });
}

void CpuBackend::launch(const SoftmaxStack& stack) const {
  const CpuKernels& kernels = cpu_kernels();
  const SoftmaxForward& each = stack.each;
  const bool streaming = stack.count * each.rows * each.cols *
          (size_of(each.input.dtype) + size_of(each.output.dtype)) >
      kStreamingBytes;
  const int64_t scratch_bytes = softmax_scratch_bytes(each.cols, each.input.dtype);
  for_stack(stack, scratch_bytes, [&](const SoftmaxForward& args, RowRange range, void* scratch) {
    kernels.softmax(args, range, scratch, streaming);
  });
}

void CpuBackend::launch(const NormStack& stack) const {
  const CpuKernels& kernels = cpu_kernels();
  const NormForward& each = stack.each;
  const bool streaming =
      stack.count * each.rows * each.cols * 2 * size_of(each.input.dtype) > kStreamingBytes;
  if (is_long_row(each.cols)) {
    for (int32_t i = 0; i < stack.count; ++i) launch_long(kernels, stack[i], streaming);
    return;
  }
  const int64_t scratch_bytes = norm_scratch_bytes(each);
  for_stack(stack, scratch_bytes, [&](const NormForward& args, RowRange range, void* scratch) {
    kernels.norm(args, range, scratch, streaming);
  });
}

void CpuBackend::launch(const NormStackBackward& stack) const {
  const NormBackward& each = stack.each;
  const int64_t tensors = 2 + (each.grad_input.data != nullptr);
  const bool streaming =
      stack.count * each.rows * each.cols * tensors * size_of(each.input.dtype) > kStreamingBytes;
  if (is_long(each)) {
    for (int32_t i = 0; i < stack.count; ++i) launch_long(cpu_kernels(), stack[i], streaming);
    return;
  }
  const auto tensor = [&](int64_t i) { return stack[static_cast<int32_t>(i)]; };
  backward_of_norms(stack.count, tensor, streaming);
}

int64_t CpuBackend::workspace_bytes(const NormBackward& args) const {
  const bool sums_rows = args.grad_weight.data != nullptr || args.grad_bias.data != nullptr;
  return sums_rows && !is_long(args) ? norm_workspace_bytes(args.rows, args.cols, args.input.dtype)
                                     : 0;
}

}  // namespace fusedops
