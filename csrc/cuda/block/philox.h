// Computes Philox4x32-7, and dropout with it.
//
// Seven rounds of two multiplications turn a counter and a key into four random words ("Parallel
// random numbers: as easy as 1, 2, 3", Salmon et al., SC 2011). Seven rounds are the fewest that
// pass BigCrush in that paper; docs/numerics.md lists the tests of dropout. There is no state: any
// thread, forward or backward, can compute an element's word, which depends on its row, its column
// and the seed.
#pragma once

#include "args.h"
#include "cuda/block/device.h"

namespace fusedops::cuda {

FUSEDOPS_DEVICE uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t even = uint64_t{0xD2511F53u} * counter.x;
    const uint64_t odd = uint64_t{0xCD9E8D57u} * counter.z;
    counter = {
        static_cast<uint32_t>(odd >> 32) ^ counter.y ^ key.x, static_cast<uint32_t>(odd),
        static_cast<uint32_t>(even >> 32) ^ counter.w ^ key.y, static_cast<uint32_t>(even)};
    key = {key.x + 0x9E3779B9u, key.y + 0xBB67AE85u};
  }
  return counter;
}

// Returns words[index]. It selects the word, because registers cannot be indexed.
FUSEDOPS_DEVICE uint32_t word_of(uint4 words, int32_t index) {
  const uint32_t low = index % 2 == 0 ? words.x : words.y;
  const uint32_t high = index % 2 == 0 ? words.z : words.w;
  return index < 2 ? low : high;
}

// Applies dropout to the elements of one row; Dropout in args.h says which of them are kept.
template <class Acc>
class DropoutRow {
 public:
  FUSEDOPS_DEVICE DropoutRow(const Dropout& dropout, int64_t row)
      : is_on_(dropout.seed != nullptr),
        threshold_(dropout.threshold),
        scale_(static_cast<Acc>(dropout.scale)),
        row_(halves(row)),
        key_(is_on_ ? halves(*dropout.seed) : uint2{0, 0}) {}

  FUSEDOPS_DEVICE bool is_on() const { return is_on_; }

  // Multiplies `values`, the elements of neighbouring columns from `column` on, by the scale or, if
  // dropped, by 0; does nothing without dropout. A vector of four or more elements begins at a
  // multiple of four, so that it uses all words of its counters.
  template <int kWidth>
  FUSEDOPS_DEVICE void apply(Acc (&values)[kWidth], int32_t column) const {
    if (!is_on_) return;
#pragma unroll
    for (int first = 0; first < kWidth; first += 4) {
      const auto counter = static_cast<uint32_t>(column + first) / 4;
      const uint4 words = philox({counter, row_.x, row_.y, 0}, key_);
#pragma unroll
      for (int j = first; j < kWidth && j < first + 4; ++j) {
        const int32_t index = (kWidth < 4 ? column + j : j) % 4;
        values[j] *= word_of(words, index) >= threshold_ ? scale_ : Acc(0);
      }
    }
  }

 private:
  static FUSEDOPS_DEVICE uint2 halves(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
  }

  bool is_on_;
  uint32_t threshold_;
  Acc scale_;
  uint2 row_, key_;
};

}  // namespace fusedops::cuda
