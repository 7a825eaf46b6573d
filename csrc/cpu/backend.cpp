#include "cpu/backend.h"

#include <algorithm>
#include <cstddef>
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

template <class Body>
void for_rows(int64_t rows, int64_t cols, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(cols, 1));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) { body(RowRange{begin, end}); });
}

// Whole segments of a long row, for as many threads as are worth it.
template <class Body>
void for_columns(int64_t cols, int64_t rows, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / kRowSegment / rows);
  parallel_for(row_segments(cols), grain, [&](int64_t begin, int64_t end) {
    body(RowRange{begin * kRowSegment, std::min(end * kRowSegment, cols)});
  });
}

// Long rows: take(row, columns, notes), and once all columns of a row are taken, write(row,
// columns, notes). As many rows as threads go side by side, so that what one has read it finds in
// its cache; of those left over all threads share each.
template <class Take, class Write>
void for_long_rows(int64_t rows, int64_t cols, int64_t note_bytes, Take take, Write write) {
  const int64_t side_by_side = rows - rows % thread_count();
  parallel_for(side_by_side, 1, [&](int64_t begin, int64_t end) {
    std::vector<std::max_align_t> notes(note_bytes / sizeof(std::max_align_t) + 1);
    for (int64_t row = begin; row < end; ++row) {
      take(row, RowRange{0, cols}, notes.data());
      write(row, RowRange{0, cols}, notes.data());
    }
  });
  std::vector<std::max_align_t> notes(note_bytes / sizeof(std::max_align_t) + 1);
  for (int64_t row = side_by_side; row < rows; ++row) {
    for_columns(cols, 1, [&](RowRange part) { take(row, part, notes.data()); });
    for_columns(cols, 1, [&](RowRange part) { write(row, part, notes.data()); });
  }
}

// Scratch memory for one call of a kernel. What most rows need stays with the thread; more is given
// back at once, so that one row of 10^9 elements does not cost memory for ever.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    thread_local const Memory kept(allocate(kKeptBytes));
    if (bytes > kKeptBytes) own_ = Memory(allocate(bytes));
    memory_ = own_ ? own_.get() : kept.get();
  }
  void* get() const { return memory_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<void, Free>;
  static constexpr int64_t kKeptBytes = int64_t(1) << 20;

  static void* allocate(int64_t bytes) {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }

  Memory own_;
  void* memory_;
};

// Of `count` tensors alike, of which at(i) has the arguments. Partitions of all of them side by
// side, then columns.
template <class At>
void backward_of_norms(int64_t count, At at, bool streaming) {
  const CpuKernels& kernels = cpu_kernels();
  const NormBackward each = at(0);
  const RowPartition partition(each.rows);
  const int64_t elements = std::min(partition.rows_each, each.rows) * each.cols;
  for_rows(count * partition.count, elements, [&](RowRange range) {
    const Scratch scratch(norm_scratch_bytes(each));
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t tensor = i / partition.count;
      kernels.norm_backward(at(tensor), i - tensor * partition.count, scratch.get(), streaming);
    }
  });
  if (each.grad_weight.data == nullptr && each.grad_bias.data == nullptr) return;
  const int64_t blocks = padded_cols(each.cols) / kColumnPadding;
  for_rows(count * blocks, partition.count * kColumnPadding, [&](RowRange range) {
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

// body(args, range) over the rows of every tensor of a stack.
template <class Stack, class Body>
void for_stack(const Stack& stack, Body body) {
  const int64_t rows = stack.each.rows;
  for_rows(stack.count * rows, stack.each.cols, [&](RowRange all) {
    for (int64_t row = all.begin; row < all.end;) {
      const int64_t tensor = row / rows, first = tensor * rows;
      const int64_t end = std::min(all.end, first + rows);
      body(stack[static_cast<int32_t>(tensor)], RowRange{row - first, end - first});
      row = end;
    }
  });
}

// body(strips, scratch) over the strips of all planes.
template <class Args, class Body>
void for_strips(const Args& args, Body body) {
  const PlaneStrips strips = plane_strips(args);
  const int64_t elements = args.rows * std::min(strips.lanes_each, args.lanes);
  for_rows(args.planes * strips.count, elements, [&](RowRange range) {
    const Scratch scratch(planes_scratch_bytes(args.rows, strips));
    body(range, scratch.get());
  });
}

// --- long rows ----------------------------------------------------------------------------------

void launch_long(const CpuKernels& kernels, const SoftmaxForward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, softmax_chunks_bytes(args.cols),
      [&](int64_t row, RowRange cols, void* chunks) {
        kernels.long_softmax(args, row, cols, chunks, streaming);
      },
      [&](int64_t row, RowRange cols, const void* chunks) {
        kernels.write_long_softmax(args, row, cols, chunks, streaming);
      });
}

void launch_long(const CpuKernels& kernels, const SoftmaxBackward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, softmax_chunks_bytes(args.cols),
      [&](int64_t row, RowRange cols, void* chunks) {
        kernels.long_softmax_backward(args, row, cols, chunks);
      },
      [&](int64_t row, RowRange cols, const void* chunks) {
        kernels.write_long_softmax_backward(args, row, cols, chunks, streaming);
      });
}

bool is_long(const NormBackward& args) {
  return is_long_row(args.cols) && args.grad_branch.data == nullptr;
}

void launch_long(const CpuKernels& kernels, const NormForward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, norm_notes_bytes(args),
      [&](int64_t row, RowRange cols, void* notes) {
        const Scratch scratch(kLongNormScratchBytes);
        kernels.long_norm(args, row, cols, notes, scratch.get());
      },
      [&](int64_t row, RowRange cols, void* notes) {
        const Scratch scratch(kLongNormScratchBytes);
        kernels.write_long_norm(args, row, cols, notes, scratch.get(), streaming);
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
  for_columns(args.cols, args.rows, [&](RowRange cols) {
    const Scratch scratch(kLongNormScratchBytes);
    for (int64_t row = 0; row < args.rows; ++row) {
      kernels.long_norm_backward(args, row, cols, &notes[row * segments], scratch.get());
    }
  });
  for (int64_t row = 0; row < args.rows; ++row) rows[row] = total(&notes[row * segments], segments);
  for_columns(args.cols, args.rows, [&](RowRange cols) {
    const Scratch scratch(kLongNormScratchBytes);
    kernels.write_long_norm_backward(args, cols, rows.data(), scratch.get(), streaming);
  });
}

}  // namespace

void CpuBackend::launch(const SoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      args.rows * args.cols * (size_of(args.input.dtype) + size_of(args.output.dtype)) >
      kStreamingBytes;
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  for_rows(args.rows, args.cols, [&](RowRange range) {
    const Scratch scratch(softmax_scratch_bytes(args.cols, args.input.dtype));
    kernels.softmax(args, range, scratch.get(), streaming);
  });
}

void CpuBackend::launch(const SoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      args.rows * args.cols * (2 * size_of(args.output.dtype) + size_of(args.grad_input.dtype)) >
      kStreamingBytes;
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  for_rows(args.rows, args.cols, [&](RowRange range) {
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
  for_rows(args.rows, args.cols, [&](RowRange range) {
    const Scratch scratch(masked_softmax_scratch_bytes(args.cols, args.input.dtype));
    kernels.masked_softmax(args, range, scratch.get(), streaming);
  });
}

void CpuBackend::launch(const MaskedSoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t bytes = 2 * size_of(args.probabilities.dtype) + size_of(args.grad_input.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  for_rows(args.rows, args.cols, [&](RowRange range) {
    const Scratch scratch(masked_softmax_scratch_bytes(args.cols, args.probabilities.dtype));
    kernels.masked_softmax_backward(args, range, scratch.get(), streaming);
  });
}

void CpuBackend::launch(const NormForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t tensors = 2 + (args.residual.data != nullptr) + (args.sum.data != nullptr);
  const int64_t bytes = tensors * size_of(args.input.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  for_rows(args.rows, args.cols, [&](RowRange range) {
    const Scratch scratch(norm_scratch_bytes(args));
    kernels.norm(args, range, scratch.get(), streaming);
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
  const auto take = [&](int64_t row, RowRange cols, void* chunks) {
    kernels.long_softmax(forward, row, cols, chunks, true);
  };
  const auto keep = [&](int64_t row, RowRange cols, const void* chunks) {
    if (cols.begin == 0) kernels.softmax_statistics(args, row, chunks);
  };
  const int64_t chunk_bytes = softmax_chunks_bytes(args.cols);
  if (is_long_row(args.cols)) return for_long_rows(args.rows, args.cols, chunk_bytes, take, keep);
  for_rows(args.rows, args.cols, [&](RowRange rows) {
    const Scratch chunks(chunk_bytes);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      take(row, {0, args.cols}, chunks.get());
      keep(row, {0, args.cols}, chunks.get());
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
    for (int64_t row = 0; row < args.rows; ++row) {
      for_columns(args.cols, 1, [&](RowRange cols) { apply(row, cols); });
    }
    return;
  }
  for_rows(args.rows, args.cols, [&](RowRange rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) apply(row, {0, args.cols});
  });
}

void CpuBackend::launch(const SoftmaxStack& stack) const {
  const CpuKernels& kernels = cpu_kernels();
  const SoftmaxForward& each = stack.each;
  const bool streaming = stack.count * each.rows * each.cols *
          (size_of(each.input.dtype) + size_of(each.output.dtype)) >
      kStreamingBytes;
  for_stack(stack, [&](const SoftmaxForward& args, RowRange range) {
    const Scratch scratch(softmax_scratch_bytes(args.cols, args.input.dtype));
    kernels.softmax(args, range, scratch.get(), streaming);
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
  for_stack(stack, [&](const NormForward& args, RowRange range) {
    const Scratch scratch(norm_scratch_bytes(args));
    kernels.norm(args, range, scratch.get(), streaming);
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
