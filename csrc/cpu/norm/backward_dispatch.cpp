#include "cpu/dispatch/dtypes.h"
#include "cpu/norm/long_rows.h"
#include "cpu/norm/short_rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Calls body with the sums over rows that are wanted, as a constant.
template <bool kCenters, class Body>
void with_column_sums(const NormBackward& args, Body body) {
  if constexpr (kCenters) {  // norms without a mean have no bias
    if (args.grad_bias.data != nullptr) return body(Constant<SumsOverRows::kBoth>{});
  }
  if (args.grad_weight.data != nullptr) return body(Constant<SumsOverRows::kWeight>{});
  body(Constant<SumsOverRows::kNone>{});
}

}  // namespace

void norm_backward(const NormBackward& args, int64_t partition, void* scratch, bool streaming) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    const PartitionSums<Compute<T>> sums_of_rows(column_sums_of(args), partition);
    sums_of_rows.clear();
    const RowRange rest = short_norm_backward_groups<centers.value, T>(
        args, partition_of(args)[partition], scratch, sums_of_rows);
    if (rest.begin == rest.end) return;
    with_store(streaming && can_stream(args.grad_branch), args.grad_input, [&](StoreMode mode) {
      with_column_sums<centers.value>(args, [&](auto sums) {
        norm_backward_rows<centers.value, T, sums.value>(args, partition, rest, scratch, mode);
      });
    });
  });
}

void norm_finish(const NormColumnSums& sums, int64_t begin, int64_t end) {
  with_type(sums.dtype, [&](auto tag) {
    using T = decltype(tag);
    const PartitionSums<Compute<T>> first(sums, /*partition=*/0);
    const auto finish = [&](Columns result, const Compute<T>* partials) {
      if (result.data == nullptr) return;
      with_result<T>(result, [&](auto* to) {
        sum_partitions<T>(partials, to, sums.partitions, 2 * padded_cols(sums.cols), begin, end);
      });
    };
    finish(sums.grad_weight, first.grad_weight);
    finish(sums.grad_bias, first.grad_bias);
  });
}

void long_norm_backward(
    const NormBackward& args, int64_t row, RowRange cols, NormGradSums* partials, void* scratch) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    long_norm_backward_segments<centers.value, T>(args, row, cols, partials, scratch);
  });
}

void write_long_norm_backward(
    const NormBackward& args, RowRange cols, const NormGradSums* rows, void* scratch,
    bool streaming) {
  with_norm(args.kind, args.input.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    with_store(streaming, args.grad_input, [&](StoreMode mode) {
      with_column_sums<centers.value>(args, [&](auto sums) {
        const LongNormBackward<centers.value, T, sums.value> columns{
            args, rows, static_cast<Compute<T>*>(scratch), mode};
        for_parts(cols, kRowSegment, [&](RowRange segment) { columns.write(segment); });
      });
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
