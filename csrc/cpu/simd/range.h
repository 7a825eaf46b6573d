// Finds the largest and the smallest value of rows of 16-bit floats by comparing their bits.
//
// The bits of a float are a sign and a magnitude. So numbers that are not negative compare as their
// bits do, negative ones the other way round, and as unsigned integers all negative ones exceed all
// others.
#pragma once

#include "cpu/simd/reduce.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds the largest and the smallest value of each lane.
template <class C>
struct LanesOfRange {
  Vec<C> max, min;
};

// Whether T has 16 bits, and comparing them takes half of the instructions of converting T to float
// and comparing that.
template <class T>
constexpr bool kHasWordRange = sizeof(T) == 2 && kComparesWords;

FUSEDOPS_INLINE Tile<float> promoted(Words words, const BFloat16*) {
  return {{PromoteEven((VecU32)words), PromoteOdd((VecU32)words)}};
}
FUSEDOPS_INLINE Tile<float> promoted(Words words, const Half*) {
  return {{PromoteHalf(LowerHalf(words)), PromoteHalf(UpperHalf(words))}};
}

// Returns the range of a row of at least kTile<T> columns. NaNs count as values beyond infinity.
template <class T>
FUSEDOPS_INLINE LanesOfRange<float> lanes_of_word_range(const T* row, int64_t cols) {
  using SignedWords = VecOf<int16_t, kVectorBytes>::type;
  SignedWords most = SignedWords{} - 0x7fff - 1;
  Words least_bits = Words{} - 1, most_bits{};
  const auto include = [&](const T* columns) FUSEDOPS_LAMBDA {
    const Words x = Load<Words>(columns);
    most = (SignedWords)x > most ? (SignedWords)x : most;
    least_bits = x < least_bits ? x : least_bits;
    most_bits = x > most_bits ? x : most_bits;
  };
  for (int64_t col = 0; col + kTile<T> <= cols; col += kTile<T>) include(row + col);
  if (cols % kTile<T> != 0) include(row + cols - kTile<T>);
  const Words max = most < 0 ? least_bits : (Words)most;
  const Words min = (SignedWords)most_bits < 0 ? most_bits : least_bits;
  const Tile<float> upper = promoted(max, row), lower = promoted(min, row);
  return {Max(upper.v[0], upper.v[1]), Min(lower.v[0], lower.v[1])};
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
