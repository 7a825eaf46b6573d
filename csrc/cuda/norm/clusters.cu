// Launches LayerNorm, StdNorm and RMSNorm for rows that clusters hold. The emulator compiles this
// file too, as C++.
#include "cuda/launch/cluster.h"
#include "cuda/norm/backward.h"
#include "cuda/norm/forward.h"

namespace fusedops::cuda {

// f(width, whether a residual is added), as types, where norms have kernels of clusters.
template <class T, class F>
Status with_cluster_width(int32_t width, bool adds, F f) {
  return with_wide_or_single<T>(width, [&](auto width) {
    return with_bool(adds, [&](auto add) {
      constexpr int kWidth = decltype(width)::value;
      constexpr bool kFitsNarrow = kFitsNarrowClusters<T, kWidth> && !decltype(add)::value;
      if constexpr (kFitsClusters<T, kWidth> || kFitsNarrow) return f(width, add);
      return device::kInvalidValue;
    });
  });
}

Status launch_clusters(const NormForward& args, const RowPlan& plan, Stream stream) {
  return with_type(args.output.dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    return with_cluster_width<T>(plan.width, args.residual.data, [&](auto width, auto add) {
      constexpr int kWidth = decltype(width)::value;
      constexpr bool kAdd = decltype(add)::value;
      constexpr int kVectors =
          cluster_vectors<T, kWidth>(norm_clusters(sizeof(T), kAdd), kNarrowNormClusters);
      const auto kernel = &norm_forward_cluster<T, kWidth, kVectors, kAdd>;
      return launch_row_clusters(kernel, plan, args, stream);
    });
  });
}

Status launch_clusters(const NormBackward& args, const NormBackwardPlan& plan, Stream stream) {
  return with_type(args.input.dtype, [&](auto type) {
    using T = TypeOf<decltype(type)>;
    return with_cluster_width<T>(plan.row.width, adds(args), [&](auto width, auto add) {
      constexpr int kWidth = decltype(width)::value;
      constexpr bool kAdd = decltype(add)::value;
      constexpr int kVectors = cluster_vectors<T, kWidth>(
          norm_backward_clusters(sizeof(T), kAdd), kNarrowNormBackwardClusters);
      return device::launch_clusters(
          &norm_backward_cluster<T, kWidth, kVectors, kAdd>, plan.partitions * plan.row.blocks,
          plan.row.blocks, dim3(plan.row.threads), stream, args);
    });
  });
}

}  // namespace fusedops::cuda
