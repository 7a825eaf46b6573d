// Launches masked softmax for rows that clusters hold. The emulator compiles this file too, as C++.
#include "cuda/launch/cluster.h"
#include "cuda/masked_softmax/rows.h"

namespace fusedops::cuda {

// f(the width of wide vectors, as a type), where masked softmax has kernels of clusters for them.
template <class T, class F>
Status with_cluster_width(F f) {
  constexpr int kWidth = kMaxVectorBytes / sizeof(T);
  if constexpr (kFitsClusters<T, kWidth>) return f(Int<kWidth>{});
  return device::kInvalidValue;
}

Status launch_clusters(const ForwardArgs& args, const RowPlan& plan, Stream stream) {
  return with_types(args.input.dtype, args.output.dtype, [&](auto in, auto out) {
    using In = TypeOf<decltype(in)>;
    using Out = TypeOf<decltype(out)>;
    return with_cluster_width<In>([&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kVectors = cluster_vectors<In, kWidth>(masked_clusters(sizeof(In)));
      const auto kernel = &masked_softmax_forward_cluster<In, Out, kWidth, kVectors>;
      return launch_row_clusters(kernel, plan, args, stream);
    });
  });
}

Status launch_clusters(const BackwardArgs& args, const RowPlan& plan, Stream stream) {
  return with_types(args.grad_input.dtype, args.probabilities.dtype, [&](auto out, auto type) {
    using Out = TypeOf<decltype(out)>;
    using T = TypeOf<decltype(type)>;
    return with_cluster_width<T>([&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kVectors = cluster_vectors<T, kWidth>(masked_clusters(sizeof(T)));
      const auto kernel = &masked_softmax_backward_cluster<T, Out, kWidth, kVectors>;
      return launch_row_clusters(kernel, plan, args, stream);
    });
  });
}

}  // namespace fusedops::cuda
