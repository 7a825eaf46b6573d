#include "cpu/cross_entropy/short_rows.h"
#include "cpu/dispatch/dtypes.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Calls body(a value of the input's type, logits).
template <class Body>
void with_logits(const Logits& logits, Body body) {
  with_type(logits.input.dtype, [&](auto in) {
    using C = Compute<decltype(in)>;
    if (logits.softcap != 0) return body(in, LogitsOf<C, true>(logits));
    body(in, LogitsOf<C, false>(logits));
  });
}

}  // namespace

void cross_entropy(const CrossEntropyForward& args, RowRange rows) {
  with_logits(args.logits, [&](auto in, auto logits) {
    using In = decltype(in);
    if (args.cols <= kMaxLossGroupCols) return cross_entropy_groups<In>(args, rows, logits);
    cross_entropy_rows<In>(args, rows, logits);
  });
}

void long_cross_entropy(
    const CrossEntropyForward& args, int64_t row, RowRange cols, LogitSums* partials) {
  with_logits(args.logits, [&](auto in, auto logits) {
    long_cross_entropy_segments<decltype(in)>(args, row, cols, partials, logits);
  });
}

void write_long_cross_entropy(
    const CrossEntropyForward& args, int64_t row, const LogitSums* partials) {
  with_logits(args.logits, [&](auto in, auto logits) {
    write_long_losses<decltype(in)>(args, row, partials, logits);
  });
}

void cross_entropy_backward(const CrossEntropyBackward& args, RowRange rows, RowRange cols) {
  with_logits(args.logits, [&](auto in, auto logits) {
    using In = decltype(in);
    if (args.cols <= kMaxGradientGroupCols) {  // such rows always come with all their columns
      return cross_entropy_backward_groups<In>(args, rows, logits);
    }
    cross_entropy_backward_rows<In>(args, rows, cols, logits);
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
