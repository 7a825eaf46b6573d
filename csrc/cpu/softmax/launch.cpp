// Launches softmax, log_softmax and their statistics over rows.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/softmax/scratch.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {
namespace {

void launch_long(const CpuKernels& kernels, const SoftmaxForward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, softmax_chunks_bytes(args.cols), /*scratch_bytes=*/0,
      [&](int64_t row, RowRange cols, void* chunks, void*) {
        kernels.long_softmax(args, row, cols, chunks, streaming);
      },
      [&](int64_t row, RowRange cols, const void* chunks, void*) {
        kernels.write_long_softmax(args, row, cols, chunks, streaming);
      });
}

void launch_long(const CpuKernels& kernels, const SoftmaxBackward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, softmax_chunks_bytes(args.cols), /*scratch_bytes=*/0,
      [&](int64_t row, RowRange cols, void* chunks, void*) {
        kernels.long_softmax_backward(args, row, cols, chunks);
      },
      [&](int64_t row, RowRange cols, const void* chunks, void*) {
        kernels.write_long_softmax_backward(args, row, cols, chunks, streaming);
      });
}

}  // namespace

void CpuLauncher::launch(const SoftmaxForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming = is_streaming(args.rows * args.cols, args.output, args.input);
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  const int64_t scratch_bytes = softmax_scratch_bytes(args.cols, args.input.dtype);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.softmax(args, range, scratch, streaming);
  });
}

void CpuLauncher::launch(const SoftmaxBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      is_streaming(args.rows * args.cols, args.grad_input, args.grad_output, args.output);
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  for_rows(args.rows, args.cols, /*scratch_bytes=*/0, [&](RowRange range, void*) {
    kernels.softmax_backward(args, range, streaming);
  });
}

void CpuLauncher::launch(const SoftmaxStatistics& args) const {
  const CpuKernels& kernels = cpu_kernels();
  SoftmaxForward unscaled{};
  unscaled.input = args.input;
  unscaled.output.dtype = args.input.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  unscaled.log = true;
  const auto reduce = [&](int64_t row, RowRange cols, void* chunks, void*) {
    kernels.long_softmax(unscaled, row, cols, chunks, /*streaming=*/false);
  };
  const auto save = [&](int64_t row, RowRange cols, const void* chunks, void*) {
    // One thread writes the statistics of a row.
    if (cols.begin == 0) kernels.write_softmax_statistics(args, row, chunks);
  };
  const int64_t chunk_bytes = softmax_chunks_bytes(args.cols);
  if (is_long_row(args.cols)) {
    return for_long_rows(args.rows, args.cols, chunk_bytes, /*scratch_bytes=*/0, reduce, save);
  }
  for_rows(args.rows, args.cols, chunk_bytes, [&](RowRange rows, void* chunks) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      reduce(row, {0, args.cols}, chunks, /*scratch=*/nullptr);
      save(row, {0, args.cols}, chunks, /*scratch=*/nullptr);
    }
  });
}

void CpuLauncher::launch(const SoftmaxApply& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming = is_streaming(args.rows * args.cols, args.output, args.input);
  for_elements(args.rows, args.cols, [&](RowRange rows, RowRange cols) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      kernels.softmax_apply(args, row, cols, streaming);
    }
  });
}

void CpuLauncher::launch(const SoftmaxStack& stack) const {
  const CpuKernels& kernels = cpu_kernels();
  const SoftmaxForward& each = stack.each;
  const bool streaming = is_streaming(stack.count * each.rows * each.cols, each.output, each.input);
  const int64_t scratch_bytes = softmax_scratch_bytes(each.cols, each.input.dtype);
  for_stack(stack, scratch_bytes, [&](const SoftmaxForward& args, RowRange range, void* scratch) {
    kernels.softmax(args, range, scratch, streaming);
  });
}

}  // namespace fusedops
