// Fills the table of kernels for the instruction set this file is compiled for: dtypes become
// types.
//
// Included by one source file per instruction set, which defines FUSEDOPS_CPU_ISA, the namespace,
// and FUSEDOPS_CPU_ISA_NAME, as FUSEDOPS_CPU_ISA in the environment spells it.
#pragma once

#include "fusedops/cpu/long_norm.h"
#include "fusedops/cpu/long_softmax.h"
#include "fusedops/cpu/masked_softmax.h"
#include "fusedops/cpu/narrow_norm.h"
#include "fusedops/cpu/narrow_softmax.h"
#include "fusedops/cpu/norm_backward.h"
#include "fusedops/cpu/norm_forward.h"
#include "fusedops/cpu/softmax.h"
#include "fusedops/cpu/softmax_planes.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

template <class T>
struct Tag {
  using type = T;
};

template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(Tag<float>{});
    case DType::kFloat64:
      return body(Tag<double>{});
    case DType::kFloat16:
      return body(Tag<Half>{});
    case DType::kBFloat16:
      return body(Tag<BFloat16>{});
  }
}

// A 16-bit type, or float32 beside it; otherwise both are the same (args.h).
template <class Body>
void with_types(DType narrow, DType wide, Body body) {
  with_type(narrow, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (narrow == wide) return body(tag, tag);
    if constexpr (sizeof(T) == 2) body(tag, Tag<float>{});
  });
}

template <class Args, class Body>
void with_norm(const Args& args, Body body) {
  with_type(args.input.dtype, [&](auto tag) {
    if (args.kind == NormKind::kRms) return body(Constant<false>{}, tag);
    body(Constant<true>{}, tag);
  });
}

struct Put {
  static constexpr bool kStreams = false;
  template <class T, class Part, class V>
  FUSEDOPS_INLINE void operator()(T* to, Part part, V value) const {
    store(to, part, value);
  }
};

struct PutStreaming {
  static constexpr bool kStreams = true;
  template <class T, class V>
  FUSEDOPS_INLINE void operator()(T* to, Whole, V value) const {
    stream(to, value);
  }
  template <class T, class V>
  FUSEDOPS_INLINE void operator()(T* to, First part, V value) const {
    store(to, part, value);
  }
};

// Streaming stores need every vector of every row aligned. Rows that are not wanted need nothing.
inline bool is_aligned(const void* data, int64_t stride, DType dtype) {
  return (reinterpret_cast<uintptr_t>(data) | (stride * size_of(dtype))) % kVectorBytes == 0;
}
inline bool can_stream(const Rows& to) {
  return to.data == nullptr || is_aligned(to.data, to.spacing.stride | to.spacing.jump, to.dtype);
}
inline bool can_stream(const Planes& to) {
  return is_aligned(to.data, to.stride | to.row_stride, to.dtype);
}

template <class Output, class Body>
void with_store(bool streaming, const Output& to, Body body) {
  if (!streaming || !can_stream(to)) return body(Put{});
  body(PutStreaming{});
  finish_streaming();
}

void softmax(const SoftmaxForward& args, RowRange range, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    const RowRange rest = softmax_blocks<In, Out>(args, range);
    if (rest.begin == rest.end) return;
    with_store(streaming, args.output, [&](auto put) {
      if (args.log) return softmax_rows<true, In, Out>(args, rest, scratch, put);
      softmax_rows<false, In, Out>(args, rest, scratch, put);
    });
  });
}

void softmax_backward(const SoftmaxBackward& args, RowRange range, bool streaming) {
  with_types(args.grad_input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    const RowRange rest = softmax_backward_blocks<In, Out>(args, range);
    if (rest.begin == rest.end) return;
    with_store(streaming, args.grad_input, [&](auto put) {
      if (args.log) return softmax_backward_rows<true, In, Out>(args, rest, put);
      softmax_backward_rows<false, In, Out>(args, rest, put);
    });
  });
}

void softmax_planes(
    const SoftmaxPlanesForward& args, RowRange strips, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming, args.output, [&](auto put) {
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
    with_store(streaming, args.grad_input, [&](auto put) {
      if (are_short(args)) return softmax_backward_short_strips<In, Out>(args, strips, put);
      if (args.log) return softmax_backward_strips<true, In, Out>(args, strips, scratch, put);
      softmax_backward_strips<false, In, Out>(args, strips, scratch, put);
    });
  });
}

void masked_softmax(
    const MaskedSoftmaxForward& args, RowRange range, void* scratch, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming && can_stream(args.probabilities), args.output, [&](auto put) {
      masked_softmax_rows<In, Out>(args, range, scratch, put);
    });
  });
}

void masked_softmax_backward(
    const MaskedSoftmaxBackward& args, RowRange range, void* scratch, bool streaming) {
  with_types(args.grad_input.dtype, args.probabilities.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming, args.grad_input, [&](auto put) {
      masked_softmax_backward_rows<In, Out>(args, range, scratch, put);
    });
  });
}

void norm(const NormForward& args, RowRange range, void* scratch, bool streaming) {
  with_norm(args, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    const RowRange rest = norm_blocks<centers.value, T>(args, range, scratch);
    if (rest.begin == rest.end) return;
    with_store(streaming && can_stream(args.sum), args.output, [&](auto put) {
      norm_rows<centers.value, T>(args, rest, scratch, put);
    });
  });
}

void norm_backward(const NormBackward& args, int64_t partition, void* scratch, bool streaming) {
  with_norm(args, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    const PartitionSums<Compute<T>> sums_of_rows(args, partition);
    sums_of_rows.clear(args);
    const RowRange rest = norm_backward_blocks<centers.value, T>(
        args, RowPartition(args.rows)[partition], scratch, sums_of_rows);
    if (rest.begin == rest.end) return;
    with_store(streaming && can_stream(args.grad_branch), args.grad_input, [&](auto put) {
      const auto run = [&](auto sums) {
        norm_backward_rows<centers.value, T, sums.value>(args, partition, rest, scratch, put);
      };
      if (args.grad_bias.data != nullptr) return run(Constant<ColumnSums::kBoth>{});
      if (args.grad_weight.data != nullptr) return run(Constant<ColumnSums::kWeight>{});
      run(Constant<ColumnSums::kNone>{});
    });
  });
}

void norm_finish(const NormBackward& args, int64_t begin, int64_t end) {
  const int64_t partitions = RowPartition(args.rows).count, width = padded_cols(args.cols);
  with_type(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const auto finish = [&](Columns result, const C* partials) {
      if (result.data == nullptr) return;
      with_result<T>(result, [&](auto* to) {
        sum_partitions<T>(partials, to, partitions, 2 * width, begin, end);
      });
    };
    finish(args.grad_weight, static_cast<const C*>(args.workspace));
    finish(args.grad_bias, static_cast<const C*>(args.workspace) + width);
  });
}

void softmax_statistics(const SoftmaxStatistics& args, int64_t row, const void* chunks) {
  with_type(args.input.dtype, [&](auto tag) {
    using In = typename decltype(tag)::type;
    keep_softmax_statistics<In>(args, row, chunks);
  });
}

void softmax_apply(const SoftmaxApply& args, int64_t row, RowRange cols, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming, args.output, [&](auto put) {
      apply_softmax_statistics<In, Out>(args, row, cols, put);
    });
  });
}

// --- long rows ----------------------------------------------------------------------------------

void long_softmax(
    const SoftmaxForward& args, int64_t row, RowRange cols, void* chunks, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    if (args.log) return long_softmax_chunks<true, In, Out>(args, row, cols, chunks, streaming);
    long_softmax_chunks<false, In, Out>(args, row, cols, chunks, streaming);
  });
}

void write_long_softmax(
    const SoftmaxForward& args, int64_t row, RowRange cols, const void* chunks, bool streaming) {
  with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_store(streaming, args.output, [&](auto put) {
      if (args.log) {
        return write_long_softmax_chunks<true, In, Out>(args, row, cols, chunks, streaming, put);
      }
      write_long_softmax_chunks<false, In, Out>(args, row, cols, chunks, streaming, put);
    });
  });
}

void long_softmax_backward(const SoftmaxBackward& args, int64_t row, RowRange cols, void* chunks) {
  with_type(args.output.dtype, [&](auto tag) {
    using Out = typename decltype(tag)::type;
    auto* sums = static_cast<double*>(chunks);
    if (args.log) return long_softmax_backward_sums<true, Out>(args, row, cols, sums);
    long_softmax_backward_sums<false, Out>(args, row, cols, sums);
  });
}

void write_long_softmax_backward(
    const SoftmaxBackward& args, int64_t row, RowRange cols, const void* chunks, bool streaming) {
  with_types(args.grad_input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    const auto* sums = static_cast<const double*>(chunks);
    with_store(streaming, args.grad_input, [&](auto put) {
      if (args.log) {
        return write_long_softmax_gradient<true, In, Out>(args, row, cols, sums, put);
      }
      write_long_softmax_gradient<false, In, Out>(args, row, cols, sums, put);
    });
  });
}

void long_norm(const NormForward& args, int64_t row, RowRange cols, void* notes, void* scratch) {
  with_norm(args, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    long_norm_segments<centers.value, T>(args, row, cols, NormNotes<T>(args, row, notes), scratch);
  });
}

void write_long_norm(
    const NormForward& args, int64_t row, RowRange cols, void* notes, void* scratch,
    bool streaming) {
  with_norm(args, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    with_store(streaming, args.output, [&](auto put) {
      write_long_norm_segments<centers.value, T>(
          args, row, cols, NormNotes<T>(args, row, notes), scratch, put);
    });
  });
}

void long_norm_backward(
    const NormBackward& args, int64_t row, RowRange cols, NormGradSums* notes, void* scratch) {
  with_norm(args, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    long_norm_backward_segments<centers.value, T>(args, row, cols, notes, scratch);
  });
}

void write_long_norm_backward(
    const NormBackward& args, RowRange cols, const NormGradSums* rows, void* scratch,
    bool streaming) {
  with_norm(args, [&](auto centers, auto tag) {
    using T = typename decltype(tag)::type;
    with_store(streaming, args.grad_input, [&](auto put) {
      const auto run = [&](auto sums) {
        const LongNormBackward<centers.value, T, sums.value, decltype(put)> columns{
            args, rows, static_cast<Compute<T>*>(scratch), put};
        for_segments(cols, [&](RowRange segment) { columns.write(segment); });
      };
      if (args.grad_bias.data != nullptr) return run(Constant<ColumnSums::kBoth>{});
      if (args.grad_weight.data != nullptr) return run(Constant<ColumnSums::kWeight>{});
      run(Constant<ColumnSums::kNone>{});
    });
  });
}

}  // namespace

extern const CpuKernels kernels;
const CpuKernels kernels = {
    FUSEDOPS_CPU_ISA_NAME,
    softmax,
    softmax_backward,
    softmax_planes,
    softmax_planes_backward,
    long_softmax,
    write_long_softmax,
    long_softmax_backward,
    write_long_softmax_backward,
    softmax_statistics,
    softmax_apply,
    masked_softmax,
    masked_softmax_backward,
    norm,
    norm_backward,
    norm_finish,
    long_norm,
    write_long_norm,
    long_norm_backward,
    write_long_norm_backward};

}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
