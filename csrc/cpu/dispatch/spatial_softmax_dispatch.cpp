#include "fusedops/cpu/dtype_dispatch.h"
#include "fusedops/cpu/isa_functions.h"
#include "fusedops/cpu/softmax_narrow.h"
#include "fusedops/cpu/spatial_softmax.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {

void spatial_softmax(
    const SpatialSoftmaxForward& args, RowRange strips, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming, args.output, [&](Put put) {
      if (are_short(args)) return softmax_short_strips<In, Out>(args, strips, put);
      if (args.log) return softmax_strips<true, In, Out>(args, strips, scratch, put);
      softmax_strips<false, In, Out>(args, strips, scratch, put);
    });
  });
}

void spatial_softmax_backward(
    const SpatialSoftmaxBackward& args, RowRange strips, void* scratch, bool streaming) {
  with_types(args.grad_input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming, args.grad_input, [&](Put put) {
      if (are_short(args)) return softmax_backward_short_strips<In, Out>(args, strips, put);
      if (args.log) return softmax_backward_strips<true, In, Out>(args, strips, scratch, put);
      softmax_backward_strips<false, In, Out>(args, strips, scratch, put);
    });
  });
}

}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
