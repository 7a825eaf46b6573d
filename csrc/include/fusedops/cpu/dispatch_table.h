// The CPU kernels as a table of functions, one table per instruction set.
#pragma once

#include "fusedops/args.h"
#include "fusedops/cpu/work_division.h"

namespace fusedops {

struct CpuKernels {
  const char* isa;

  // `scratch` holds softmax_scratch_bytes(), aligned to 64 bytes. With `streaming`, results bypass
  // the cache; their values are the same.
  void (*softmax)(const SoftmaxForward&, RowRange, void* scratch, bool streaming);
  void (*softmax_backward)(const SoftmaxBackward&, RowRange, bool streaming);

  // Inner segments are numbered through all outer indices. `scratch` holds spatial_scratch_bytes(),
  // aligned to 64 bytes.
  void (*spatial_softmax)(
      const SpatialSoftmaxForward&, RowRange segments, void* scratch, bool streaming);
  void (*spatial_softmax_backward)(
      const SpatialSoftmaxBackward&, RowRange segments, void* scratch, bool streaming);

  // Columns of a long row, whole segments: `chunks` holds softmax_chunks_bytes() for all of it.
  // What is streaming leaves the output alone until it is written; the same in both steps.
  void (*long_softmax)(
      const SoftmaxForward&, int64_t row, RowRange cols, void* chunks, bool streaming);
  void (*write_long_softmax)(
      const SoftmaxForward&, int64_t row, RowRange cols, const void* chunks, bool streaming);
  void (*long_softmax_backward)(const SoftmaxBackward&, int64_t row, RowRange cols, void* chunks);
  void (*write_long_softmax_backward)(
      const SoftmaxBackward&, int64_t row, RowRange cols, const void* chunks, bool streaming);

  // The statistics of a row whose `chunks` long_softmax() has noted; then any columns of a row.
  void (*softmax_statistics)(const SoftmaxStatistics&, int64_t row, const void* chunks);
  void (*softmax_apply)(const SoftmaxApply&, int64_t row, RowRange cols, bool streaming);

  // `scratch` holds masked_softmax_scratch_bytes(), aligned to 64 bytes.
  void (*masked_softmax)(const MaskedSoftmaxForward&, RowRange, void* scratch, bool streaming);
  void (*masked_softmax_backward)(
      const MaskedSoftmaxBackward&, RowRange, void* scratch, bool streaming);

  // `scratch` holds norm_scratch_bytes(), aligned to 64 bytes.
  void (*norm)(const NormForward&, RowRange, void* scratch, bool streaming);
  // Rows of one partition: their gradients, and the partition's sums into the workspace.
  void (*norm_backward)(const NormBackward&, int64_t partition, void* scratch, bool streaming);
  // Columns [begin, end), begin a multiple of kColumnPadding, of grad_weight and grad_bias from the
  // partitions' sums.
  void (*norm_finish)(const NormBackward&, int64_t begin, int64_t end);

  // Columns of a long row, whole segments; `partials` holds norm_partials_bytes(). `scratch` holds
  // kLongNormScratchBytes, aligned to 64 bytes.
  void (*long_norm)(const NormForward&, int64_t row, RowRange cols, void* partials, void* scratch);
  void (*write_long_norm)(
      const NormForward&, int64_t row, RowRange cols, void* partials, void* scratch,
      bool streaming);
  // Without dropout. The first fills partials[segment]; the second takes the sums of each
  // row's partials, and writes the gradients of all rows and their sums.
  void (*long_norm_backward)(
      const NormBackward&, int64_t row, RowRange cols, NormGradSums* partials, void* scratch);
  void (*write_long_norm_backward)(
      const NormBackward&, RowRange cols, const NormGradSums* rows, void* scratch, bool streaming);
};

namespace default_ {
extern const CpuKernels kernels;
}
namespace avx2 {
extern const CpuKernels kernels;
}
namespace avx512 {
extern const CpuKernels kernels;
}

}  // namespace fusedops
