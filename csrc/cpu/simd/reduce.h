// Reductions over the lanes of vectors. The order of their operations is the same for every row.
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

// Combines the lanes as a tree, upper half with lower half. Width is a template argument, because
// with a variable GCC would build the shuffle indices lane by lane: 40 instructions per step.
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
template <class T, class C = Compute<T>>
FUSEDOPS_INLINE double sum_of_columns(Accumulators<Tile<C>> sums, int64_t cols) {
  return ReduceLanes<double>(lanes_of_sum<T>(sums, cols), Add{});
}

// Sets lane i of v[0] to the sum of the lanes of v[i], for all i, in nearly the time that one sum
// takes. Other vectors are overwritten. Each step adds the upper half of each sum's lanes to the
// lower half, and puts the sums of two vectors side by side. Every sum has the order of
// ReduceLanes(), whatever the other vectors hold.
template <class C, int Width, int kStep>
FUSEDOPS_INLINE void fold_lanes(Vec<C> (&v)[kLanes<C>]) {
  constexpr int L = kLanes<C>;
  if constexpr (Width > 1) {
    Lanes<C> lower;
    for (int lane = 0; lane < L; ++lane) {
      const int place = lane % (L / 2), sum = place / (Width / 2);
      lower[lane] = lane / (L / 2) * L + sum * Width + place % (Width / 2);
    }
    for (int i = 0; i < L; i += 2 * kStep) {
      const Vec<C> upper = Permute2<C>(v[i], v[i + kStep], lower + Width / 2);
      v[i] = Permute2<C>(v[i], v[i + kStep], lower) + upper;
    }
    fold_lanes<C, Width / 2, 2 * kStep>(v);
  }
}
// Sets result[i] to the sum of the lanes of v[i]. It folds as many vectors at once as a vector has
// lanes; where fewer are left, copies of the last one take the place of the missing ones.
template <class C, int kCount>
FUSEDOPS_INLINE void sums_over_lanes(const Vec<C> (&v)[kCount], C (&result)[kCount]) {
  constexpr int L = kLanes<C>;
  for (int first = 0; first < kCount; first += L) {
    Vec<C> lanes[L];
    for (int i = 0; i < L; ++i) lanes[i] = v[first + i < kCount ? first + i : kCount - 1];
    fold_lanes<C, L, 1>(lanes);
    for (int i = 0; i < L && first + i < kCount; ++i) result[first + i] = lanes[0][i];
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
