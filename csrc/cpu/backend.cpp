#include "cpu/backend.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "cpu/isa.h"
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
  torch::stable::parallel_for(
      0, rows, grain, [&](int64_t begin, int64_t end) { body(RowRange{begin, end}); });
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
    const Scratch scratch(kPlanesScratchBytes);
    body(range, scratch.get());
  });
}

}  // namespace

void CpuBackend::launch(const SoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      args.rows * args.cols * (size_of(args.input.dtype) + size_of(args.output.dtype)) >
      kStreamingBytes;
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
  for_rows(args.rows, args.cols, [&](RowRange range) {
    const Scratch scratch(norm_scratch_bytes(args));
    kernels.norm(args, range, scratch.get(), streaming);
  });
}

void CpuBackend::launch(const NormBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t tensors = 2 + (args.grad_sum.data != nullptr) + (args.grad_input.data != nullptr) +
      (args.grad_branch.data != nullptr);
  const int64_t bytes = tensors * size_of(args.input.dtype);
  const bool streaming = args.rows * args.cols * bytes > kStreamingBytes;
  const RowPartition partition(args.rows);
  torch::stable::parallel_for(0, partition.count, 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(norm_scratch_bytes(args));
    for (int64_t i = begin; i < end; ++i) {
      kernels.norm_backward(args, i, scratch.get(), streaming);
    }
  });
  if (args.grad_weight.data == nullptr && args.grad_bias.data == nullptr) return;
  const int64_t blocks = padded_cols(args.cols) / kColumnPadding;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / partition.count / kColumnPadding);
  torch::stable::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    kernels.norm_finish(args, begin * kColumnPadding, std::min(end * kColumnPadding, args.cols));
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
  for_stack(stack, [&](const NormForward& args, RowRange range) {
    const Scratch scratch(norm_scratch_bytes(args));
    kernels.norm(args, range, scratch.get(), streaming);
  });
}

void CpuBackend::launch(const NormStackBackward& stack) const {
  for (int32_t i = 0; i < stack.count; ++i) launch(stack[i]);
}

int64_t CpuBackend::workspace_bytes(const NormBackward& args) const {
  const bool sums_rows = args.grad_weight.data != nullptr || args.grad_bias.data != nullptr;
  return sums_rows ? norm_workspace_bytes(args.rows, args.cols, args.input.dtype) : 0;
}

}  // namespace fusedops
