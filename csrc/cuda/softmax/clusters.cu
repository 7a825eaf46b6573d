// Launches softmax for rows that clusters hold. The emulator compiles this file too, as C++.
#include "cuda/launch/cluster.h"
#include "cuda/softmax/rows.h"

namespace fusedops::cuda {

// f(width, as a type) for the widths that softmax has kernels of clusters for.
template <class T, class F>
Status with_cluster_width(int32_t width, F f) {
  return with_wide_or_single<T>(width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    if constexpr (kFitsClusters<T, kWidth> || kFitsNarrowClusters<T, kWidth>) return f(width);
    return device::kInvalidValue;
  });
}

Status launch_clusters(const SoftmaxForward& args, const RowPlan& plan, Stream stream) {
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    return with_cluster_width<In>(plan.width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kVectors = cluster_vectors<In, kWidth>(softmax_clusters(sizeof(In)));
      const auto kernel = &softmax_forward_cluster<In, Out, kWidth, kVectors>;
      return launch_row_clusters(kernel, plan, args, stream);
    });
  });
}

Status launch_clusters(const SoftmaxBackward& args, const RowPlan& plan, Stream stream) {
  return with_types(args.grad_input.dtype, args.output.dtype, [&](auto out, auto type) {
    using Out = TypeOf<decltype(out)>;
    using T = TypeOf<decltype(type)>;
    return with_cluster_width<T>(plan.width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kVectors = cluster_vectors<T, kWidth>(kSoftmaxBackwardClusters);
      const auto kernel = &softmax_backward_cluster<T, Out, kWidth, kVectors>;
      return launch_row_clusters(kernel, plan, args, stream);
    });
  });
}

}  // namespace fusedops::cuda
