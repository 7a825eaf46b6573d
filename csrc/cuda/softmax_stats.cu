// Host side of softmax in two steps.
#include "fusedops/cuda/softmax_stats.h"

#include "fusedops/cuda/dispatch.h"

namespace fusedops::cuda {

// body(first row, rows) for as many rows a launch as the grid holds segments of.
template <class Body>
Status for_row_shares(int64_t rows, const Segments& segments, Body body) {
  const int64_t most = device::max_grid() / segments.count;
  Status status = device::kSuccess;
  for (int64_t first = 0; first < rows && status == device::kSuccess; first += most) {
    status = body(first, std::min(rows - first, most));
  }
  return status;
}

// The segments of its rows as softmax_forward_parts takes them; nothing is written but those.
SoftmaxForward as_forward(const SoftmaxStatistics& args) {
  SoftmaxForward parts{};
  parts.input = args.input;
  parts.workspace = args.workspace;
  parts.rows = args.rows;
  parts.cols = args.cols;
  return parts;
}

Status launch(const SoftmaxStatistics& args, Stream stream) {
  if (args.rows > 0 && args.workspace == nullptr) return device::kInvalidValue;
  const Segments segments = plan_segments(args.cols);
  const int32_t width = pick_wide_or_single(args.input.dtype, args.cols, {args.input});
  return with_type(args.input.dtype, [&](auto type) {
    using In = typename decltype(type)::type;
    using Acc = AccumulatorOf<In>;
    return with_wide_or_single<In>(width, [&](auto width) {
      const auto parts = &softmax_forward_parts<In, Acc, decltype(width)::value>;
      const dim3 threads(kSegmentThreads);
      return for_row_shares(args.rows, segments, [&](int64_t first, int64_t rows) {
        const Status status = device::launch(
            parts, rows * segments.count, threads, stream, as_forward(args), first, segments);
        if (status != device::kSuccess) return status;
        const auto merge = &softmax_statistics_merge<Acc>;
        return device::launch(merge, rows, threads, stream, args, first, segments);
      });
    });
  });
}

int64_t workspace_bytes(const SoftmaxStatistics& args) {
  return args.rows * plan_segments(args.cols).count * 2 * accumulator_bytes(args.input.dtype);
}

Status launch(const SoftmaxApply& args, Stream stream) {
  const Segments segments = plan_segments(args.cols);
  const int32_t width = pick_wide_or_single(args.input.dtype, args.cols, {args.input, args.output});
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    return with_wide_or_single<In>(width, [&](auto width) {
      const auto kernel = &softmax_statistics_apply<In, Out, decltype(width)::value>;
      return for_row_shares(args.rows, segments, [&](int64_t first, int64_t rows) {
        const int64_t blocks = rows * segments.count;
        return device::launch(kernel, blocks, dim3(kSegmentThreads), stream, args, first, segments);
      });
    });
  });
}

}  // namespace fusedops::cuda
