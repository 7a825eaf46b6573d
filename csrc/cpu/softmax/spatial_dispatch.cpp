#include "cpu/dispatch/dtypes.h"
#include "cpu/softmax/short_rows.h"
#include "cpu/softmax/spatial.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void spatial_softmax(
    const SpatialSoftmaxForward& args, RowRange segments, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    with_store(streaming, args.output, [&](StoreMode mode) {
      if (are_short(args)) return softmax_short_segments<In, Out>(args, segments, mode);
      if (args.log) return softmax_segments<true, In, Out>(args, segments, scratch, mode);
      softmax_segments<false, In, Out>(args, segments, scratch, mode);
    });
  });
}

void spatial_softmax_backward(
    const SpatialSoftmaxBackward& args, RowRange segments, void* scratch, bool streaming) {
  with_types(args.grad_input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    with_store(streaming, args.grad_input, [&](StoreMode mode) {
      if (are_short(args)) return softmax_backward_short_segments<In, Out>(args, segments, mode);
      if (args.log) return softmax_backward_segments<true, In, Out>(args, segments, scratch, mode);
      softmax_backward_segments<false, In, Out>(args, segments, scratch, mode);
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
