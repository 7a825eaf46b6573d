// Launches layer_norm and rms_norm over a dimension that is not the last.
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {
namespace {

// Returns the number of elements of a segment.
template <class Args>
int64_t segment_elements(const Args& args) {
  return args.dim_size * std::min(norm_segments(args).cols_each, args.inner);
}

}  // namespace

void CpuLauncher::launch(const SpatialNormForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t elements = args.outer * args.dim_size * args.inner;
  const bool streaming = is_streaming(elements, 2 * size_of(args.input.dtype));
  for_rows(
      args.outer * norm_segments(args).count, segment_elements(args),
      spatial_norm_scratch_bytes(args.dim_size), [&](RowRange segments, void* scratch) {
        kernels.spatial_norm(args, segments, scratch, streaming);
      });
}

// Threads share first the partitions. Then they share the dim_size entries of grad_weight and
// grad_bias, each of which is a sum over all partitions.
void CpuLauncher::launch(const SpatialNormBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t elements = args.outer * args.dim_size * args.inner;
  const int64_t tensors = 2 + (args.grad_input.data != nullptr);
  const bool streaming = is_streaming(elements, tensors * size_of(args.input.dtype));
  const NormPartition partition = partition_of(args);
  for_rows(
      partition.count, partition.size_each * segment_elements(args),
      spatial_norm_scratch_bytes(args.dim_size), [&](RowRange range, void* scratch) {
        for (int64_t i = range.begin; i < range.end; ++i) {
          kernels.spatial_norm_backward(args, i, scratch, streaming);
        }
      });
  const NormColumnSums sums = column_sums_of(args);
  if (!sums.are_wanted()) return;
  const int64_t groups = padded_cols(args.dim_size) / kColumnPadding;
  for_rows(
      groups, partition.count * kColumnPadding, /*scratch_bytes=*/0, [&](RowRange range, void*) {
        kernels.norm_finish(
            sums, range.begin * kColumnPadding,
            std::min(range.end * kColumnPadding, args.dim_size));
      });
}

int64_t CpuLauncher::workspace_bytes(const SpatialNormBackward& args) const {
  return column_sums_of(args).workspace_bytes();
}

}  // namespace fusedops
