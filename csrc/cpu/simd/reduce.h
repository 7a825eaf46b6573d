// Combines the lanes of vectors into one value. The order of operations is the same for every row.
#pragma once

#include "cpu/simd/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

struct Add {
  template <class V>
  FUSEDOPS_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
struct Maximum {
  template <class V>
  FUSEDOPS_INLINE V operator()(V a, V b) const {
    return Max(a, b);
  }
};

// Combines the lanes as a tree: in each step the upper half with the lower half. Width is a
// template argument, because with a variable GCC would build the shuffle indices lane by lane, in
// 40 instructions per step.
template <class C, int Width = kLanes<C> / 2, class Combine>
FUSEDOPS_INLINE C ReduceLanes(Vec<C> value, Combine combine) {
  if constexpr (Width == 0) {
    return value[0];
  } else {
    Lanes<C> partner;
    for (int lane = 0; lane < kLanes<C>; ++lane) partner[lane] = lane ^ Width;
    const Vec<C> other = Permute2<C>(value, value, partner);
    return ReduceLanes<C, Width / 2>(combine(value, other), combine);
  }
}

template <class C>
FUSEDOPS_INLINE C max_of(Tile<C> a, Tile<C> b) {
  const Tile<C> all = Max(a, b);
  return ReduceLanes<C>(Max(all.v[0], all.v[1]), Maximum{});
}

FUSEDOPS_INLINE Vec<double> promoted_sum(Vec<float> value) {
  const Wide<float> wide = promoted(value);
  return wide.v[0] + wide.v[1];
}
FUSEDOPS_INLINE Vec<double> promoted_sum(Vec<double> value) { return value; }

// Returns the sum of all lanes of both tiles. They are added in double, so that one large term does
// not cost the digits of the others.
template <class C>
FUSEDOPS_INLINE double sum_of(Tile<C> a, Tile<C> b) {
  const Vec<double> first = promoted_sum(a.v[0]) + promoted_sum(a.v[1]);
  const Vec<double> second = promoted_sum(b.v[0]) + promoted_sum(b.v[1]);
  return ReduceLanes<double>(first + second, Add{});
}

// Adds, in double, the two accumulators that fold_columns() returns for a row of `cols` columns;
// the lanes of the result remain to be added. Vectors to which no column was added are 0, and are
// not converted.
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE Vec<double> lanes_of_sum(Accumulators<Tile<C>> sums, int64_t cols) {
  Vec<double> first = promoted_sum(sums.even.v[0]), second{};
  if (kEvenOdd<T> || cols > kLanes<C>) {
    first += promoted_sum(sums.even.v[1]);
  } else {
    first += second;  // adding zeros turns -0 into +0, as in longer rows
  }
  if (cols >= 2 * kTile<T>) second = promoted_sum(sums.odd.v[0]) + promoted_sum(sums.odd.v[1]);
  return first + second;
}

// Sets lane i of v[0] to the combination of the lanes of v[i], for all i, in nearly the time of a
// single reduction. Other vectors are overwritten. Each step combines the lower half of each
// vector's lanes with the upper half, and puts the results of two vectors side by side. Every
// result has the order of ReduceLanes(), whatever the other vectors hold.
template <class C, int Width, int kStep, int kCount, class Combine>
FUSEDOPS_INLINE void fold_lanes(Vec<C> (&v)[kCount], Combine combine) {
  constexpr int L = kLanes<C>;
  if constexpr (Width > 1) {
    Lanes<C> lower;
    for (int lane = 0; lane < L; ++lane) {
      const int place = lane % (L / 2), result = place / (Width / 2);
      lower[lane] = lane / (L / 2) * L + result * Width + place % (Width / 2);
    }
    for (int i = 0; i < kCount; i += 2 * kStep) {
      const Vec<C> other = v[i + kStep < kCount ? i + kStep : i];
      const Vec<C> upper = Permute2<C>(v[i], other, lower + Width / 2);
      v[i] = combine(Permute2<C>(v[i], other, lower), upper);
    }
    fold_lanes<C, Width / 2, 2 * kStep>(v, combine);
  }
}
// Sets result[i] to the combination of the lanes of v[i]. It folds as many vectors at once as a
// vector has lanes; where fewer are left, the last one is folded several times.
template <class C, int kCount, class Combine>
FUSEDOPS_INLINE void reduce_lanes_of(
    const Vec<C> (&v)[kCount], C (&result)[kCount], Combine combine) {
  constexpr int kEach = kCount < kLanes<C> ? kCount : kLanes<C>;
  for (int first = 0; first < kCount; first += kEach) {
    Vec<C> lanes[kEach];
    for (int i = 0; i < kEach; ++i) lanes[i] = v[first + i < kCount ? first + i : kCount - 1];
    fold_lanes<C, kLanes<C>, 1>(lanes, combine);
    for (int i = 0; i < kEach && first + i < kCount; ++i) result[first + i] = lanes[0][i];
  }
}
template <class C, int kCount>
FUSEDOPS_INLINE void sums_over_lanes(const Vec<C> (&v)[kCount], C (&result)[kCount]) {
  reduce_lanes_of<C>(v, result, Add{});
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
