#include "fusedops/cpu/softmax_planes.h"
#include "fusedops/cpu/dispatch.h"
#include "fusedops/cpu/narrow_softmax.h"
#include "fusedops/cpu/table.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {

void softmax_planes(
    const SoftmaxPlanesForward& args, RowRange strips, void* scratch, bool streaming) {
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

void softmax_planes_backward(
    const SoftmaxPlanesBackward& args, RowRange strips, void* scratch, bool streaming) {
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
