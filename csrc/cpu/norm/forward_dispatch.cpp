#include "cpu/dispatch/dtypes.h"
#include "cpu/norm/long_rows.h"
#include "cpu/norm/short_rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void norm(const NormForward& args, RowRange range, void* scratch, bool streaming) {
  with_norm(args.kind, args.output.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    const RowRange rest = short_norm_groups<centers.value, T>(args, range, scratch);
    if (rest.begin == rest.end) return;
    with_store(streaming && can_stream(args.sum), args.output, [&](StoreMode mode) {
      norm_rows<centers.value, T>(args, rest, scratch, mode);
    });
  });
}

void long_norm(const NormForward& args, int64_t row, RowRange cols, void* partials, void* scratch) {
  with_norm(args.kind, args.output.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    long_norm_segments<centers.value, T>(
        args, row, cols, NormPartials<T>(args, row, partials), scratch);
  });
}

void write_long_norm(
    const NormForward& args, int64_t row, RowRange cols, void* partials, void* scratch,
    bool streaming) {
  with_norm(args.kind, args.output.dtype, [&](auto centers, auto tag) {
    using T = decltype(tag);
    with_store(streaming, args.output, [&](StoreMode mode) {
      write_long_norm_segments<centers.value, T>(
          args, row, cols, NormPartials<T>(args, row, partials), scratch, mode);
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
