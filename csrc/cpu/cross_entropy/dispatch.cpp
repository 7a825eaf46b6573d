#include "cpu/cross_entropy/rows.h"
#include "cpu/dispatch/dtypes.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void cross_entropy(const CrossEntropyForward& args, RowRange range) {
  with_type(args.logits.input.dtype, [&](auto tag) {
    cross_entropy_rows<decltype(tag)>(args, range);
  });
}

void cross_entropy_backward(const CrossEntropyBackward& args, RowRange range) {
  with_type(args.logits.input.dtype, [&](auto tag) {
    cross_entropy_backward_rows<decltype(tag)>(args, range);
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
