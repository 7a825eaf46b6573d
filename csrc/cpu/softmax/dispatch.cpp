#include "cpu/dispatch/dtypes.h"
#include "cpu/softmax/long_rows.h"
#include "cpu/softmax/short_rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void softmax(const SoftmaxForward& args, RowRange range, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    const RowRange rest = short_softmax_groups<In, Out>(args, range);
    if (rest.begin == rest.end) return;
    with_store(streaming, args.output, [&](StoreMode mode) {
      if (args.log) return softmax_rows<true, In, Out>(args, rest, scratch, mode);
      softmax_rows<false, In, Out>(args, rest, scratch, mode);
    });
  });
}

void softmax_backward(const SoftmaxBackward& args, RowRange range, bool streaming) {
  with_types(args.grad_input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    const RowRange rest = short_softmax_backward_groups<In, Out>(args, range);
    if (rest.begin == rest.end) return;
    with_store(streaming, args.grad_input, [&](StoreMode mode) {
      if (args.log) return softmax_backward_rows<true, In, Out>(args, rest, mode);
      softmax_backward_rows<false, In, Out>(args, rest, mode);
    });
  });
}

void long_softmax(
    const SoftmaxForward& args, int64_t row, RowRange cols, void* chunks, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    if (args.log) return long_softmax_chunks<true, In, Out>(args, row, cols, chunks, streaming);
    long_softmax_chunks<false, In, Out>(args, row, cols, chunks, streaming);
  });
}

void write_long_softmax(
    const SoftmaxForward& args, int64_t row, RowRange cols, const void* chunks, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    with_store(streaming, args.output, [&](StoreMode mode) {
      if (args.log) {
        return write_long_softmax_chunks<true, In, Out>(args, row, cols, chunks, streaming, mode);
      }
      write_long_softmax_chunks<false, In, Out>(args, row, cols, chunks, streaming, mode);
    });
  });
}

void long_softmax_backward(const SoftmaxBackward& args, int64_t row, RowRange cols, void* chunks) {
  with_type(args.output.dtype, [&](auto tag) {
    using Out = decltype(tag);
    auto* sums = static_cast<double*>(chunks);
    if (args.log) return long_softmax_backward_sums<true, Out>(args, row, cols, sums);
    long_softmax_backward_sums<false, Out>(args, row, cols, sums);
  });
}

void write_long_softmax_backward(
    const SoftmaxBackward& args, int64_t row, RowRange cols, const void* chunks, bool streaming) {
  with_types(args.grad_input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    const auto* sums = static_cast<const double*>(chunks);
    with_store(streaming, args.grad_input, [&](StoreMode mode) {
      if (args.log) {
        return write_long_softmax_gradient<true, In, Out>(args, row, cols, sums, mode);
      }
      write_long_softmax_gradient<false, In, Out>(args, row, cols, sums, mode);
    });
  });
}

void write_softmax_statistics(const SoftmaxStatistics& args, int64_t row, const void* chunks) {
  with_type(
      args.input.dtype, [&](auto tag) { write_statistics<decltype(tag)>(args, row, chunks); });
}

void softmax_apply(const SoftmaxApply& args, int64_t row, RowRange cols, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    with_store(streaming, args.output, [&](StoreMode mode) {
      apply_softmax_statistics<In, Out>(args, row, cols, mode);
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
