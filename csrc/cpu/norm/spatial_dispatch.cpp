#include "cpu/dispatch/dtypes.h"
#include "cpu/dispatch/isa_functions.h"
#include "cpu/norm/spatial.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {

void spatial_norm(
    const SpatialNormForward& args, RowRange segments, void* scratch, bool streaming) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    with_store(streaming, args.output, [&](Put put) {
      SpatialNorm<centers.value, T>(args, scratch, put).run(segments);
    });
  });
}

void spatial_norm_backward(
    const SpatialNormBackward& args, int64_t partition, void* scratch, bool streaming) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    with_store(streaming, args.grad_input, [&](Put put) {
      SpatialNormGradient<centers.value, T>(args, partition, scratch, put)
          .run(SegmentPartition(args)[partition]);
    });
  });
}

}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
