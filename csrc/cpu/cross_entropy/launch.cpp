// Launches cross_entropy and its backward.
#include "cpu/cross_entropy/scratch.h"
#include "cpu/dispatch/isa.h"
#include "cpu/launcher.h"
#include "cpu/threads/work_sharing.h"

namespace fusedops {
namespace {

void launch_long(const CpuKernels& kernels, const CrossEntropyForward& args) {
  for_long_rows(
      args.rows, args.cols, logit_sums_bytes(args.cols), /*scratch_bytes=*/0,
      [&](int64_t row, RowRange cols, void* partials, void*) {
        kernels.long_cross_entropy(args, row, cols, static_cast<LogitSums*>(partials));
      },
      [&](int64_t row, RowRange cols, const void* partials, void*) {
        if (cols.begin != 0) return;  // only the call with column 0 writes the row's loss
        kernels.write_long_cross_entropy(args, row, static_cast<const LogitSums*>(partials));
      });
}

// The columns of a gradient do not depend on each other, so threads share the segments of all rows.
void launch_long(const CpuKernels& kernels, const CrossEntropyBackward& args) {
  const int64_t segments = row_segments(args.cols);
  const auto body = [&](RowRange range, void*) {
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t row = at / segments, first = row * segments;
      const int64_t end = std::min(range.end, first + segments);
      const RowRange cols{
          (at - first) * kRowSegment, std::min((end - first) * kRowSegment, args.cols)};
      kernels.cross_entropy_backward(args, RowRange{row, row + 1}, cols);
      at = end;
    }
  };
  for_range(args.rows * segments, kGrainElements / kRowSegment, Scratch(0), body);
}

}  // namespace

void CpuLauncher::launch(const CrossEntropyForward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  if (is_long_row(args.cols)) return launch_long(kernels, args);
  for_rows(args.rows, args.cols, /*scratch_bytes=*/0, [&](RowRange rows, void*) {
    kernels.cross_entropy(args, rows);
  });
}

void CpuLauncher::launch(const CrossEntropyBackward& args) const {
  const CpuKernels& kernels = cpu_kernels();
  if (is_long_row(args.cols)) return launch_long(kernels, args);
  for_rows(args.rows, args.cols, /*scratch_bytes=*/0, [&](RowRange rows, void*) {
    kernels.cross_entropy_backward(args, rows, RowRange{0, args.cols});
  });
}

}  // namespace fusedops
