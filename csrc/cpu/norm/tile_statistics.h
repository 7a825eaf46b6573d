// Computes the statistics of the lanes of a tile, each of which is a row or a column.
#pragma once

#include "cpu/norm/forward.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds for each lane what Moments and NormStatistics hold for a row.
template <class C>
struct TileMoments {
  WideTile<C> squares, shift, away;
};
template <class C>
struct TileStatistics {
  Tile<C> mean, rstd, remainder;
};

// Turns sums over `count` values into moments, in place. On entry, `away` holds the sum of
// deviations from the shift, and `squares` the sum of their squares. Returns whether all lanes are
// exact (are_exact()), and sets exact[lane] to 0 where one is not.
template <bool kCenters, class C>
FUSEDOPS_INLINE bool finish_moments(
    TileMoments<C>& moments, double count, double lowest, int64_t* exact) {
  bool all_exact = true;
  for (int64_t i = 0; i < kWideVectors<C>; ++i) {
    Vec<double>& squares = vector_of(moments.squares, i);
    VecI64 holds = VecI64{} - 1;
    if constexpr (kCenters) {
      Vec<double>& away = vector_of(moments.away, i);
      const Vec<double> total = away;
      away = total / count;
      const Vec<double> left = squares - total * away;
      squares = left < 0.0 ? Vec<double>{} : left;
      holds = (VecI64)(away * away * count <= squares);
    }
    holds &= (VecI64)(squares >= lowest) & (VecI64)(squares < kInfinity<double>);
    Store(exact + i * kLanes<double>, holds);
    all_exact &= !AnyTrue(~holds);
  }
  return all_exact;
}

// Returns for each lane what NormStatistics::from_moments() returns for a row.
template <bool kCenters, class C>
FUSEDOPS_INLINE TileStatistics<C> statistics_of(NormFormula norm, const TileMoments<C>& moments) {
  WideTile<C> rstds, remainders;
  for (int64_t i = 0; i < kWideVectors<C>; ++i) {
    vector_of(rstds, i) = rstd_of(norm, vector_of(moments.squares, i));
  }
  Tile<C> mean = Broadcast(C(0));
  if constexpr (kCenters) mean = demoted(moments.shift + moments.away);
  const Tile<C> rstd = demoted(rstds);
  const WideTile<C> rounded = promoted(kCenters ? mean : rstd);
  for (int64_t i = 0; i < kWideVectors<C>; ++i) {
    const Vec<double> high = vector_of(rounded, i);
    if constexpr (kCenters) {
      const Vec<double> low = (vector_of(moments.shift, i) - high) + vector_of(moments.away, i);
      const Vec<double> value = low * vector_of(rstds, i);
      constexpr double least = double(kTinyRoot<C>) * double(kTinyRoot<C>);
      vector_of(remainders, i) = (value < least) & (value > -least) ? Vec<double>{} : value;
    } else {
      const Vec<double> low = vector_of(rstds, i) - high;
      vector_of(remainders, i) = high < kInfinity<double> ? low : Vec<double>{};
    }
  }
  return {mean, rstd, demoted(remainders)};
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
