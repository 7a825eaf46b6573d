// Launches norms of rows, with and without a residual, and norms over a dimension that is not the
// last.
#include <vector>

#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {
namespace {

// Computes the backward of `count` norms of one shape, where at(i) returns the arguments of norm i.
// `kernel` computes a partition, which has `elements` elements. Threads share first the partitions
// of all norms, then the columns whose sums over the partitions are added up.
template <class Args, class At>
void backward_of_norms(
    void (*kernel)(const Args&, int64_t, void*, bool), int64_t count, At at, int64_t elements,
    int64_t scratch_bytes, bool streaming) {
  const int64_t partitions = partition_of(at(0)).count;
  for_rows(count * partitions, elements, scratch_bytes, [&](RowRange range, void* scratch) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t tensor = i / partitions;
      kernel(at(tensor), i - tensor * partitions, scratch, streaming);
    }
  });
  const NormColumnSums each = column_sums_of(at(0));
  if (!each.are_wanted()) return;
  const int64_t column_groups = padded_cols(each.cols) / kColumnPadding;
  for_rows(
      count * column_groups, partitions * kColumnPadding, /*scratch_bytes=*/0,
      [&](RowRange range, void*) {
        for (int64_t i = range.begin; i < range.end;) {
          const int64_t tensor = i / column_groups, first = tensor * column_groups;
          const int64_t end = std::min(range.end, first + column_groups);
          cpu_kernels().norm_finish(
              column_sums_of(at(tensor)), (i - first) * kColumnPadding,
              std::min((end - first) * kColumnPadding, each.cols));
          i = end;
        }
      });
}

template <class At>
void backward_of_rows(int64_t count, At at, bool streaming) {
  const NormBackward each = at(0);
  const int64_t elements = std::min(partition_of(each).size_each, each.rows) * each.cols;
  backward_of_norms(
      cpu_kernels().norm_backward, count, at, elements, norm_scratch_bytes(each), streaming);
}

// --- long rows ----------------------------------------------------------------------------------

// Rows with dropout are not launched as long rows, even if grad_branch is not wanted, so that the
// other gradients have the same bits whether it is wanted or not.
bool is_long(const NormBackward& args) {
  return is_long_row(args.cols) && args.dropout.seed == nullptr;
}

void launch_long(const CpuKernels& kernels, const NormForward& args, bool streaming) {
  for_long_rows(
      args.rows, args.cols, norm_partials_bytes(args), kLongNormScratchBytes,
      [&](int64_t row, RowRange cols, void* partials, void* scratch) {
        kernels.long_norm(args, row, cols, partials, scratch);
      },
      [&](int64_t row, RowRange cols, void* partials, void* scratch) {
        kernels.write_long_norm(args, row, cols, partials, scratch, streaming);
      });
}

NormGradSums total(const NormGradSums* partials, int64_t count) {
  NormGradSums sums{0, 0};
  for (int64_t i = 0; i < count; ++i) {
    sums.of_grad += partials[i].of_grad;
    sums.of_product += partials[i].of_product;
  }
  return sums;
}

// Each thread computes some columns of all rows, because the gradients of weight and bias add up
// over the rows.
void launch_long(const CpuKernels& kernels, const NormBackward& args, bool streaming) {
  const int64_t segments = row_segments(args.cols);
  std::vector<NormGradSums> partials(args.rows * segments), rows(args.rows);
  const Scratch memory(kLongNormScratchBytes);
  for_columns(args.cols, args.rows, memory, [&](RowRange cols, void* scratch) {
    for (int64_t row = 0; row < args.rows; ++row) {
      kernels.long_norm_backward(args, row, cols, &partials[row * segments], scratch);
    }
  });
  for (int64_t row = 0; row < args.rows; ++row)
    rows[row] = total(&partials[row * segments], segments);
  for_columns(args.cols, args.rows, memory, [&](RowRange cols, void* scratch) {
    kernels.write_long_norm_backward(args, cols, rows.data(), scratch, streaming);
  });
}

// --- dimensions other than the last -------------------------------------------------------------

// Returns the number of elements of a segment.
template <class Args>
int64_t segment_elements(const Args& args) {
  return args.dim_size * std::min(norm_segments(args).cols_each, args.inner);
}

}  // namespace

void CpuLauncher::launch(const NormForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const bool streaming =
      is_streaming(args.rows * args.cols, args.output, args.input, args.residual, args.sum);
  if (is_long_row(args.cols)) return launch_long(kernels, args, streaming);
  const int64_t scratch_bytes = norm_scratch_bytes(args);
  for_rows(args.rows, args.cols, scratch_bytes, [&](RowRange range, void* scratch) {
    kernels.norm(args, range, scratch, streaming);
  });
}

void CpuLauncher::launch(const NormBackward& args) const {
  const bool streaming = is_streaming(
      args.rows * args.cols, args.grad_input, args.grad_output, args.grad_sum, args.input,
      args.grad_branch);
  if (is_long(args)) return launch_long(cpu_kernels(), args, streaming);
  backward_of_rows(/*count=*/1, [&](int64_t) { return args; }, streaming);
}

void CpuLauncher::launch(const NormStack& stack) const {
  const CpuKernels& kernels = cpu_kernels();
  const NormForward& each = stack.each;
  const bool streaming = is_streaming(stack.count * each.rows * each.cols, each.output, each.input);
  if (is_long_row(each.cols)) {
    for (int32_t i = 0; i < stack.count; ++i) launch_long(kernels, stack[i], streaming);
    return;
  }
  const int64_t scratch_bytes = norm_scratch_bytes(each);
  for_stack(stack, scratch_bytes, [&](const NormForward& args, RowRange range, void* scratch) {
    kernels.norm(args, range, scratch, streaming);
  });
}

void CpuLauncher::launch(const NormStackBackward& stack) const {
  const NormBackward& each = stack.each;
  const bool streaming = is_streaming(
      stack.count * each.rows * each.cols, each.grad_input, each.grad_output, each.input);
  if (is_long(each)) {
    for (int32_t i = 0; i < stack.count; ++i) launch_long(cpu_kernels(), stack[i], streaming);
    return;
  }
  const auto tensor = [&](int64_t i) { return stack[static_cast<int32_t>(i)]; };
  backward_of_rows(stack.count, tensor, streaming);
}

void CpuLauncher::launch(const SpatialNormForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t elements = args.outer * args.dim_size * args.inner;
  const bool streaming = is_streaming(elements, args.output, args.input);
  for_rows(
      args.outer * norm_segments(args).count, segment_elements(args),
      spatial_norm_scratch_bytes(args.dim_size), [&](RowRange segments, void* scratch) {
        kernels.spatial_norm(args, segments, scratch, streaming);
      });
}

void CpuLauncher::launch(const SpatialNormBackward& args) const {
  const int64_t elements = args.outer * args.dim_size * args.inner;
  const bool streaming = is_streaming(elements, args.grad_input, args.grad_output, args.input);
  backward_of_norms(
      cpu_kernels().spatial_norm_backward, /*count=*/1, [&](int64_t) { return args; },
      partition_of(args).size_each * segment_elements(args),
      spatial_norm_scratch_bytes(args.dim_size), streaming);
}

int64_t CpuLauncher::workspace_bytes(const NormBackward& args) const {
  return is_long(args) ? 0 : column_sums_of(args).workspace_bytes();
}
int64_t CpuLauncher::workspace_bytes(const SpatialNormBackward& args) const {
  return column_sums_of(args).workspace_bytes();
}

}  // namespace fusedops
