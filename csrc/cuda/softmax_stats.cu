// Host side of softmax in two steps.
#include "fusedops/cuda/softmax_stats.h"

#include "fusedops/cuda/dispatch.h"
#include "fusedops/cuda/launch.h"

namespace fusedops::cuda {

// Few registers wait for few loads: a row takes as many threads as a block has at most.
constexpr int32_t threads_of(int64_t vectors) {
  return vectors < kLoopThreads ? round_up(vectors, device::kWarpLanes) : kLoopThreads;
}

Status launch(const SoftmaxStatistics& args, Stream stream) {
  const int32_t width = pick_wide_or_single(args.input.dtype, args.cols, {args.input});
  return with_type(args.input.dtype, [&](auto type) {
    using In = typename decltype(type)::type;
    return with_wide_or_single<In>(width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const dim3 threads(threads_of(args.cols / kWidth));
      const auto kernel = &softmax_statistics<In, kWidth>;
      return launch_shares(kernel, args.rows, 1, threads, args, stream);
    });
  });
}

Status launch(const SoftmaxApply& args, Stream stream) {
  const int32_t width = pick_wide_or_single(args.input.dtype, args.cols, {args.input, args.output});
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return with_wide_or_single<In>(width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int32_t threads = threads_of(args.cols / kWidth);
      const int64_t part = int64_t{threads} * kWidth * kLoopVectors<kWidth, 1>;
      const auto kernel = &softmax_apply<In, Out, kWidth>;
      const int64_t parts = args.rows * ceil_div(args.cols, part);
      return launch_shares(kernel, parts, 1, dim3(threads), args, stream);
    });
  });
}

int64_t workspace_bytes(const SoftmaxStatistics&) { return 0; }

}  // namespace fusedops::cuda
