// The CPU kernels as a table of functions. There is one table per instruction set.
#pragma once

#include "fusedops/args.h"
#include "fusedops/cpu/work_division.h"

namespace fusedops {

struct CpuKernels {
  const char* isa;

  // `scratch` holds softmax_scratch_bytes() and is aligned to 64 bytes. With `streaming`, results
  // bypass the cache; their values are the same.
  void (*softmax)(const SoftmaxForward&, RowRange, void* scratch, bool streaming);
  void (*softmax_backward)(const SoftmaxBackward&, RowRange, bool streaming);

  // Segments of inner columns are numbered through all outer indices. `scratch` holds
  // spatial_scratch_bytes() and is aligned to 64 bytes.
  void (*spatial_softmax)(
      const SpatialSoftmaxForward&, RowRange segments, void* scratch, bool streaming);
  void (*spatial_softmax_backward)(
      const SpatialSoftmaxBackward&, RowRange segments, void* scratch, bool streaming);

  // These functions process whole segments of a long row. `chunks` holds softmax_chunks_bytes() for
  // the whole row. `streaming` must be the same in both steps: without it the first step stores
  // exponentials in the output.
  void (*long_softmax)(
      const SoftmaxForward&, int64_t row, RowRange cols, void* chunks, bool streaming);
  void (*write_long_softmax)(
      const SoftmaxForward&, int64_t row, RowRange cols, const void* chunks, bool streaming);
  void (*long_softmax_backward)(const SoftmaxBackward&, int64_t row, RowRange cols, void* chunks);
  void (*write_long_softmax_backward)(
      const SoftmaxBackward&, int64_t row, RowRange cols, const void* chunks, bool streaming);

  // softmax_statistics() combines the `chunks` of a row that long_softmax() filled. softmax_apply()
  // accepts any range of columns.
  void (*softmax_statistics)(const SoftmaxStatistics&, int64_t row, const void* chunks);
  void (*softmax_apply)(const SoftmaxApply&, int64_t row, RowRange cols, bool streaming);

  // `scratch` holds masked_softmax_scratch_bytes() and is aligned to 64 bytes.
  void (*masked_softmax)(const MaskedSoftmaxForward&, RowRange, void* scratch, bool streaming);
  void (*masked_softmax_backward)(
      const MaskedSoftmaxBackward&, RowRange, void* scratch, bool streaming);

  // `scratch` holds norm_scratch_bytes() and is aligned to 64 bytes.
  void (*norm)(const NormForward&, RowRange, void* scratch, bool streaming);
  // Computes the gradients of the rows of one partition, and writes the partition's sums to the
  // workspace.
  void (*norm_backward)(const NormBackward&, int64_t partition, void* scratch, bool streaming);
  // Adds up the partitions' sums: columns [begin, end) of grad_weight and grad_bias. begin is a
  // multiple of kColumnPadding.
  void (*norm_finish)(const NormBackward&, int64_t begin, int64_t end);

  // These functions process whole segments of a long row. `partials` holds norm_partials_bytes();
  // `scratch` holds kLongNormScratchBytes and is aligned to 64 bytes.
  void (*long_norm)(const NormForward&, int64_t row, RowRange cols, void* partials, void* scratch);
  void (*write_long_norm)(
      const NormForward&, int64_t row, RowRange cols, void* partials, void* scratch,
      bool streaming);
  // The backward of long rows, without dropout. The first function fills partials[segment]. The
  // second reads the sum of each row's partials, and writes the gradients of all rows and the sums
  // over rows.
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
