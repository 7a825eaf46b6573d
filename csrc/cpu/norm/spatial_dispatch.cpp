#include "cpu/dispatch/dtypes.h"
#include "cpu/norm/spatial.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void spatial_norm(
    const SpatialNormForward& args, RowRange segments, void* scratch, bool streaming) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    with_store(streaming, args.output, [&](StoreMode mode) {
      SpatialNorm<centers.value, T>(args, scratch, mode).run(segments);
    });
  });
}

void spatial_norm_backward(
    const SpatialNormBackward& args, int64_t partition, void* scratch, bool streaming) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    with_store(streaming, args.grad_input, [&](StoreMode mode) {
      SpatialNormGradient<centers.value, T>(args, partition, scratch, mode)
          .run(partition_of(args)[partition]);
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
