// Launches cross_entropy. The emulator compiles this file too, as C++.
#include "cuda/launch/launch.h"

#include "cuda/cross_entropy/kernels.h"

namespace fusedops::cuda {

// Returns the number of elements of a vector: as many as fill 16 bytes, however rows are aligned,
// but one double.
inline int32_t width_of(DType dtype) {
  return dtype == DType::kFloat64 ? 1 : kMaxVectorBytes / static_cast<int32_t>(size_of(dtype));
}

// Returns the shape of a block: x threads share a row of `cols` columns, and a block has y rows. x
// is a power of two, at most kClassThreads. Up to eight threads, whose vectors fill a line of 128
// bytes, it is the least for which one tile holds the row. Beyond, it is the least for which two
// tiles do, because a block's reductions and the ends of its rows cost as much as a tile. A row of
// more than one vector has at least two threads, which read neighbouring vectors of a sector.
inline dim3 class_threads(int64_t cols, int32_t width) {
  const int32_t elements = width *
      (width > 1 ? kLoopVectors</*kWidth=*/2, /*kTensors=*/1>
                 : kLoopVectors</*kWidth=*/1, /*kTensors=*/1>);
  constexpr int32_t kLineThreads = 128 / kMaxVectorBytes;
  int32_t threads = cols > width ? 2 : 1;
  while (threads < kLineThreads && threads * elements < cols) threads *= 2;
  while (threads < kClassThreads && threads * elements * 2 < cols) threads *= 2;
  return dim3(threads, kClassThreads / threads);
}

// Launches kernel(args, first_row, segments) for all rows, of `cols` columns: segments.count blocks
// for every threads.y rows. Calls after(first_row, rows) after each launch.
template <class Kernel, class Args, class After>
Status launch_class_blocks(
    DType dtype, int64_t cols, Segments segments, const Args& args, Stream stream, After after) {
  const int32_t width = width_of(dtype);
  const auto kernel = find_kernel<Kernel>(dtype, width);
  const dim3 threads = class_threads(cols, width);
  const int64_t most = device::max_grid() / segments.count * threads.y;
  return for_each_launch(args.rows, most, [&](int64_t first, int64_t rows) {
    const int64_t blocks = ceil_div(rows, threads.y) * segments.count;
    const Status status = device::launch(kernel, blocks, threads, stream, args, first, segments);
    return status == device::kSuccess ? after(first, rows) : status;
  });
}

Status launch(const CrossEntropyForward& args, Stream stream) {
  const DType dtype = args.logits.input.dtype;
  const Segments segments = plan_class_segments(args.cols);
  const bool has_one_segment = segments.count == 1;
  if (!has_one_segment && args.rows > 0 && args.workspace == nullptr) return device::kInvalidValue;
  const auto merge = [&](int64_t first, int64_t rows) {
    if (has_one_segment) return device::kSuccess;
    return device::launch_behind(
        cross_entropy_merge_of(dtype), ceil_div(rows, kMergeRows), dim3(kMergeLanes, kMergeRows),
        stream, args, first, segments);
  };
  return launch_class_blocks<CrossEntropyForwardRows>(
      dtype, args.cols, segments, args, stream, merge);
}

int64_t workspace_bytes(const CrossEntropyForward& args) {
  const Segments segments = plan_class_segments(args.cols);
  if (segments.count == 1) return 0;
  const bool is_double = args.logits.input.dtype == DType::kFloat64;
  const size_t each = is_double ? sizeof(ClassSums<double>) : sizeof(ClassSums<float>);
  return args.rows * segments.count * static_cast<int64_t>(each);
}

// Returns the most columns that a row of gradients takes, counted from its first vector's address.
inline int64_t cols_from_alignment(const Rows& rows, int64_t cols) {
  const int64_t item = size_of(rows.dtype), alignment = class_alignment(cols * item);
  const int64_t strides = (rows.spacing.stride | rows.spacing.run_gap) * item;
  const bool are_aligned = (reinterpret_cast<int64_t>(rows.data) | strides) % alignment == 0;
  return are_aligned ? cols : cols + alignment / item - 1;
}

Status launch(const CrossEntropyBackward& args, Stream stream) {
  const DType dtype = args.logits.input.dtype;
  if (args.grad_input.dtype != dtype) return device::kInvalidValue;
  const int64_t cols = cols_from_alignment(args.grad_input, args.cols);
  const auto nothing = [](int64_t, int64_t) { return device::kSuccess; };
  return launch_class_blocks<CrossEntropyBackwardRows>(
      dtype, cols, plan_class_segments(cols), args, stream, nothing);
}

int64_t workspace_bytes(const CrossEntropyBackward&) { return 0; }

}  // namespace fusedops::cuda
