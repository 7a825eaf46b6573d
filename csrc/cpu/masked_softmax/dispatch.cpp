#include "cpu/dispatch/dtypes.h"
#include "cpu/masked_softmax/backward.h"
#include "cpu/masked_softmax/short_rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void masked_softmax(
    const MaskedSoftmaxForward& args, RowRange range, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    with_store(streaming && can_stream(args.probabilities), args.output, [&](StoreMode mode) {
      using In = decltype(in);
      using Out = decltype(out);
      const RowRange rest = masked_softmax_groups<In, Out>(args, range, scratch, mode);
      if (rest.begin < rest.end) masked_softmax_rows<In, Out>(args, rest, scratch, mode);
    });
  });
}

void masked_softmax_backward(
    const MaskedSoftmaxBackward& args, RowRange range, void* scratch, bool streaming) {
  with_types(args.grad_input.dtype, args.probabilities.dtype, [&](auto in, auto out) {
    with_store(streaming, args.grad_input, [&](StoreMode mode) {
      masked_softmax_backward_rows<decltype(in), decltype(out)>(args, range, scratch, mode);
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
