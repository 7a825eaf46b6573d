// Computes LayerNorm and RMSNorm over dim_size, for each outer and inner index, and their
// gradients.
//
// Contract: as in softmax/spatial.h, whose strips these kernels use. Weight and bias have one value
// for each index of dim_size. _channel_sums adds up grad_weight and grad_bias: blockDim.x threads,
// a number that row_reduce() allows, share kChannels indices and walk over the inner columns of a
// partition. Workspace: as in backward.h, whose _finish adds the partials.
//
// Numerics: as in forward.h, where m is the mean of a column's first tile. The tile is the
// kSpatialVectors * blockDim.y elements that the column's threads load at once: the whole column up
// to a dim_size of 256, except in doubles. If it is a share p of the column, the squares lose
// log2(1 / p) bits at worst. The bits of a column depend on dtype, dim_size and blockDim.y alone,
// and those of grad_weight and grad_bias on the sizes and the device's multiprocessors.
#pragma once

#include "cuda/norm/backward.h"
#include "cuda/norm/forward.h"
#include "cuda/softmax/spatial.h"

namespace fusedops::cuda {

// Returns the arguments of the norm of a single column, as if it were a row.
FUSEDOPS_DEVICE NormForward as_row(const SpatialNormForward& args) {
  NormForward row{};
  row.kind = args.kind;
  row.weight = args.weight;
  row.bias = args.bias;
  row.mean = args.mean;
  row.rstd = args.rstd;
  row.cols = args.dim_size;
  row.eps = args.eps;
  return row;
}
FUSEDOPS_DEVICE NormBackward as_row(const SpatialNormBackward& args) {
  NormBackward row{};
  row.kind = args.kind;
  row.weight = args.weight;
  row.cols = args.dim_size;
  return row;
}

// Returns the weight for an index of dim_size, or 1 without a weight.
template <class T>
FUSEDOPS_DEVICE AccumulatorOf<T> weight_at(const NormBackward& row, uint32_t index) {
  AccumulatorOf<T> weight[1];
  load_scale<T>(weight, row, index, /*is_inside=*/true);
  return weight[0];
}

// --- forward ------------------------------------------------------------------------------------

// Loads the first tile, and sets `bases` to each column's mean in it.
template <class Strip, int kWidth, class Acc>
FUSEDOPS_DEVICE void load_bases(
    Acc (&bases)[kWidth], Strip& strip, const SpatialNormForward& args, Acc* shared) {
  const auto dim_size = static_cast<uint32_t>(args.dim_size);
  const uint32_t count = dim_size < strip.step() ? dim_size : strip.step();
  strip.load(/*start=*/0, /*fill=*/0);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    Acc values[Strip::kVectors];
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i) values[i] = strip.vectors[i].at(j);
    bases[j] = tree_sum<Strip::kVectors>(values);
  }
  column_reduce<Sum>(bases, shared);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) bases[j] = mean_of(bases[j], static_cast<Acc>(count));
}

// Adds the loaded tile's deviations from `bases` to `sums`, and their squares to `squares`.
template <class Strip, int kWidth, class Acc>
FUSEDOPS_DEVICE void add_deviations(
    Acc (&sums)[kWidth], Acc (&squares)[kWidth], const Acc (&bases)[kWidth], const Strip& strip,
    uint32_t start, uint32_t dim_size) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    Acc of_tile = 0, squares_of_tile = 0;
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i) {
      const Acc deviation = strip.index_of(start, i) < dim_size
          ? static_cast<Acc>(strip.vectors[i].at(j)) - bases[j]
          : Acc(0);
      of_tile += deviation;
      squares_of_tile += deviation * deviation;
    }
    sums[j] += of_tile;
    squares[j] += squares_of_tile;
  }
}

// Computes the norm of a block's columns: the first pass finds each column's statistics, and the
// second stores the results. The launch bound is one block a multiprocessor: without it the
// compiler makes room for two blocks of 1024 threads, and registers spill.
template <class T, int kWidth>
FUSEDOPS_KERNEL((kSpatialMaxThreads<T, kWidth>), 1)
spatial_norm_forward(SpatialNormForward args, int64_t first_segment, bool staged) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Acc, shared, (kSpatialMaxThreads<T, kWidth> * kWidth));
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  using Strip = SpatialStrip<T, kWidth>;
  Strip strip(columns, args.input, args.dim_size, /*tensor=*/0, staged);
  Acc bases[kWidth] = {}, sums[kWidth] = {}, squares[kWidth] = {};
  if (has_mean(args)) {
    load_bases(bases, strip, args, shared);
  } else {
    strip.load(/*start=*/0, /*fill=*/0);
  }
  for (uint32_t start = 0; start < columns.dim_size; start += strip.step()) {
    if (start > 0) strip.load(start, 0);
    add_deviations(sums, squares, bases, strip, start, columns.dim_size);
  }
  if (has_mean(args)) column_reduce<Sum>(sums, shared);
  column_reduce<Sum>(squares, shared);

  const NormForward row = as_row(args);
  const int64_t first_row = columns.outer * args.inner + columns.inner;
  Acc offset[kWidth], rstd[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const NormStatistics<Acc> statistics(row, bases[j], {sums[j], squares[j]});
    offset[j] = statistics.mean_offset;
    rstd[j] = statistics.rstd;
    if (threadIdx.y == 0 && columns.dim_size > 0) statistics.save(row, first_row + j);
  }
  T* to = columns.begin<T>(args.output) + threadIdx.y * args.output.dim_stride;
  for (uint32_t start = 0; start < columns.dim_size; start += strip.step()) {
    strip.load_again(start);
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i, to += blockDim.y * args.output.dim_stride) {
      const uint32_t index = strip.index_of(start, i);
      if (index >= columns.dim_size) continue;
      Acc weight[1], bias[1], values[kWidth];
      load_parameters<T>(weight, bias, row, index);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc normal = ((strip.vectors[i].at(j) - bases[j]) - offset[j]) * rstd[j];
        values[j] = normal * weight[0] + bias[0];
      }
      store(to, values);
    }
  }
}

// --- backward -----------------------------------------------------------------------------------

// Holds the statistics of a thread's columns. They are 0 for a thread beyond the last column.
template <int kWidth, class Acc>
struct ColumnStatistics {
  Acc mean[kWidth] = {}, rstd[kWidth] = {};

  FUSEDOPS_DEVICE ColumnStatistics(const SpatialNormBackward& args, int64_t first, bool is_inside) {
    if (!is_inside) return;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (has_mean(args)) mean[j] = static_cast<const Acc*>(args.mean)[first + j];
      rstd[j] = static_cast<const Acc*>(args.rstd)[first + j];
    }
  }
};

// Computes grad_input of a block's columns: the first pass finds the sums along each column, and
// the second stores the results.
template <class T, int kWidth>
FUSEDOPS_KERNEL((kSpatialMaxThreads<T, kWidth>))
spatial_norm_backward(SpatialNormBackward args, int64_t first_segment, bool staged) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Acc, shared, (kSpatialMaxThreads<T, kWidth> * kWidth));
  const InnerColumns columns = InnerColumns::of<kWidth>(args, first_segment);
  using Strip = SpatialStrip<T, kWidth>;
  Strip grads(columns, args.grad_output, args.dim_size, /*tensor=*/0, staged);
  Strip inputs(columns, args.input, args.dim_size, /*tensor=*/1, staged);
  const NormBackward row = as_row(args);
  const ColumnStatistics<kWidth, Acc> statistics(
      args, columns.outer * args.inner + columns.inner, columns.dim_size > 0);
  Acc sums[kWidth] = {}, products[kWidth] = {};
  for (uint32_t start = 0; start < columns.dim_size; start += Strip::step()) {
    grads.load(start, 0);
    inputs.load(start, 0);
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i) {
      const uint32_t index = Strip::index_of(start, i);
      if (index >= columns.dim_size) continue;
      const Acc weight = weight_at<T>(row, index);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc weighted = grads.vectors[i].at(j) * weight;
        const Acc normal = (inputs.vectors[i].at(j) - statistics.mean[j]) * statistics.rstd[j];
        sums[j] += weighted;
        products[j] += weighted * normal;
      }
    }
  }
  if (has_mean(args)) column_reduce<Sum>(sums, shared);
  column_reduce<Sum>(products, shared);

  const Acc inverse = device::reciprocal(static_cast<Acc>(args.dim_size));
  Pair<Acc> means[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    means[j] = means_of(row, {sums[j], products[j]}, inverse, statistics.rstd[j]);
  }
  T* to = columns.begin<T>(args.grad_input) + threadIdx.y * args.grad_input.dim_stride;
  for (uint32_t start = 0; start < columns.dim_size; start += Strip::step()) {
    grads.load_again(start);
    inputs.load_again(start);
#pragma unroll
    for (int i = 0; i < Strip::kVectors; ++i, to += blockDim.y * args.grad_input.dim_stride) {
      const uint32_t index = Strip::index_of(start, i);
      if (index >= columns.dim_size) continue;
      const Acc weight = weight_at<T>(row, index);
      Acc values[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const Acc weighted = grads.vectors[i].at(j) * weight;
        const Acc normal = (inputs.vectors[i].at(j) - statistics.mean[j]) * statistics.rstd[j];
        values[j] = (weighted - (means[j].first + normal * means[j].second)) * statistics.rstd[j];
      }
      store(to, values);
    }
  }
}

// A thread adds up grad_weight and grad_bias for this many indices of dim_size.
inline constexpr int32_t kChannels = 4;
inline constexpr int32_t kChannelThreads = 256;

// Adds the thread's kWidth columns, from `inner` on, to `sums`: grad_weight and grad_bias of its
// channels, which are kChannels indices of dim_size from `first` on.
template <class T, int kWidth>
FUSEDOPS_DEVICE void add_channels(
    Pair<AccumulatorOf<T>> (&sums)[kChannels], const SpatialNormBackward& args, int64_t first,
    int64_t outer, int64_t inner) {
  using Acc = AccumulatorOf<T>;
  const ColumnStatistics<kWidth, Acc> statistics(
      args, outer * args.inner + inner, /*is_inside=*/true);
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    if (first + k >= args.dim_size) continue;
    const auto at = [&](const ConstSlices& slices) {
      return static_cast<const T*>(slices.data) + outer * slices.outer_stride +
          (first + k) * slices.dim_stride + inner;
    };
    const auto grad = Vec<T, kWidth>::load(at(args.grad_output));
    const auto input = Vec<T, kWidth>::load(at(args.input));
    Pair<Acc> own{0, 0};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      own.first += grad.at(j) * ((input.at(j) - statistics.mean[j]) * statistics.rstd[j]);
      own.second += grad.at(j);
    }
    sums[k] = sums[k] + own;
  }
}

// Leaves in the workspace the sums of a block's channels over its partition. A unit is a segment of
// inner columns of one outer index, and a partition has every partitions-th unit.
template <class T, int kWidth>
FUSEDOPS_KERNEL(kChannelThreads)
spatial_norm_channel_sums(SpatialNormBackward args, int64_t partitions) {
  using Acc = AccumulatorOf<T>;
  FUSEDOPS_SHARED(Pair<Acc>, shared, kChannels * kMaxWarps);
  const int64_t partition = blockIdx.x % partitions;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x / partitions) * blockDim.y + threadIdx.y) * kChannels;
  const int64_t segment_cols = static_cast<int64_t>(blockDim.x) * kWidth;
  const int64_t segments = (args.inner + segment_cols - 1) / segment_cols;
  Pair<Acc> sums[kChannels] = {};
  for (int64_t unit = partition; unit < args.outer * segments; unit += partitions) {
    const int64_t outer = unit / segments;
    const int64_t inner =
        (unit - outer * segments) * segment_cols + static_cast<int64_t>(threadIdx.x) * kWidth;
    if (inner < args.inner) add_channels<T, kWidth>(sums, args, first, outer, inner);
  }
  Acc* const weights = static_cast<Acc*>(args.workspace) + partition * args.dim_size;
  Acc* const biases = weights + partitions * args.dim_size;
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    const Pair<Acc> sum = row_reduce<Sum>(sums[k], shared + k * kMaxWarps);
    if (threadIdx.x > 0 || first + k >= args.dim_size) continue;
    weights[first + k] = sum.first;
    biases[first + k] = sum.second;
  }
}

}  // namespace fusedops::cuda
