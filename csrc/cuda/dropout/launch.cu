// Launches dropout. The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/dropout/kernels.h"

namespace fusedops::cuda {

Status launch(const DropoutForward& args, Stream stream) {
  const DType dtype = args.input.dtype;
  if (args.output.dtype != dtype) return device::kInvalidValue;
  const auto allows = [&](const Access& access) { return access.allows(kDropoutWidth); };
  const bool are_aligned =
      args.cols % kDropoutWidth == 0 && allows(args.input) && allows(args.output);
  // A block has x threads for each of its y rows, or all its threads for a tile of a longer row.
  const int32_t vector_bytes = kDropoutWidth * static_cast<int32_t>(size_of(dtype));
  const int32_t row_threads = threads_per_row(args.cols, kDropoutElements, vector_bytes);
  const int32_t x = std::min(row_threads, kDropoutThreads), y = kDropoutThreads / x;
  const auto kernel = find_kernel<DropoutOfRows>(dtype, /*width=*/1);
  const int64_t tiles = args.rows * ceil_div(args.cols, kDropoutTile);
  return for_each_launch(tiles, device::max_grid() * y, [&](int64_t first, int64_t count) {
    return device::launch(kernel, ceil_div(count, y), dim3(x, y), stream, args, first, are_aligned);
  });
}

}  // namespace fusedops::cuda
