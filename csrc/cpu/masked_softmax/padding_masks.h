// Finds which columns are hidden by added padding masks that many rows share.
#pragma once

#include <limits>
#include <type_traits>

#include "cpu/masked_softmax/visible.h"
#include "cpu/simd/exp.h"
#include "cpu/simd/reduce.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// An added mask hides the columns to which it adds this value or less: their exponentials are 0
// unless scores differ by thousands, which PaddedRows rules out. Masks of models add -inf, the
// lowest finite number or -10000.
constexpr float kHidingValue = -8192;

// Finds which columns an added padding mask leaves visible. Only masks that many rows in succession
// share are looked at, and only where nothing else is added and rows have no intervals.
template <class In>
class PaddingMasks {
 public:
  using C = Compute<In>;

  PaddingMasks(const Scores& scores, DType input, int64_t cols) : cols_(cols) {
    const Operand& mask = scores.mask;
    const int32_t last = scores.dims.count - 1;
    const bool is_row = mask.data != nullptr && !mask.is_bool && mask.col_stride != 0;
    const bool is_alone = scores.bias.data == nullptr && scores.softcap == 0 && !scores.causal.on &&
        !scores.has_bounds();
    are_shared_ = is_row && mask.dtype == input && is_alone && last >= 0 &&
        mask.strides[last] == 0 && scores.dims.sizes[last] >= 8;
  }

  // Returns the columns that the mask leaves visible if it adds 0 to all of these and hides all
  // others. Returns {0, 0} for any other mask.
  RowRange visible(const void* mask) {
    if (!are_shared_) return {0, 0};
    if (mask != last_) {
      last_ = mask;
      visible_ = columns_visible(static_cast<const In*>(mask));
    }
    return visible_;
  }

 private:
  FUSEDOPS_NOINLINE RowRange columns_visible(const In* mask) const {
    const auto hides = [=](int64_t col) {
      return load(mask + col, Tail{1}).v[0][0] <= kHidingValue;
    };
    int64_t begin = cols_, end = 0;
    for_columns<In>(cols_, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> added = filled<In>(load(mask + col, part), part, C(kHidingValue));
      if (!AnyTrue(~(added.v[0] <= kHidingValue) | ~(added.v[1] <= kHidingValue))) return;
      begin = begin < col ? begin : col;
      end = col + kTile<In> < cols_ ? col + kTile<In> : cols_;
    });
    while (begin < end && hides(begin)) ++begin;
    while (begin < end && hides(end - 1)) --end;
    bool adds = false;
    for_columns<In>(end - begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const Tile<C> added = load(mask + begin + col, part);
      adds |= AnyTrue((added.v[0] != 0) | (added.v[1] != 0));
    });
    return adds ? RowRange{0, 0} : range_of(begin, end);
  }

  int64_t cols_;
  bool are_shared_;
  const void* last_ = nullptr;
  RowRange visible_ = {};
};

// Describes rows of the input that have the same padding mask.
template <class T>
struct PaddedRows {
  const ConstRows& input;
  int64_t first, count, cols;
  RowRange visible;

  // Whether the exponentials of all columns that are not visible are 0, because the mask adds at
  // most kHidingValue to their scores. `least` is the smallest maximum of a row, computed without
  // these columns. The limit of 2^20 bounds what the scores' rounding adds, for which the
  // comparison leaves 1.
  FUSEDOPS_INLINE bool vanish(double scale, double least) const {
    double largest = 0;
    if (visible.begin > 0) largest = largest_magnitude(RowRange{0, visible.begin});
    if (visible.end < cols) largest += largest_magnitude(RowRange{visible.end, cols});
    const double score = largest * (scale < 0 ? -scale : scale);
    return score < 0x1p20 && score + kHidingValue < least + ExpFor<Compute<T>>::type::kLowest - 1;
  }

 private:
  // Returns the largest magnitude in some columns, or infinity if any is infinite or NaN. Without
  // their signs, floating-point numbers have the order of their bits as integers, NaN the last.
  FUSEDOPS_NOINLINE double largest_magnitude(RowRange range) const {
    using C = Compute<T>;
    using Bits = std::conditional_t<sizeof(C) == sizeof(double), int64_t, int32_t>;
    constexpr Bits kNoSign = std::numeric_limits<Bits>::max();
    const Lanes<C> infinite = (Lanes<C>)Set(kInfinity<C>);
    Lanes<C> largest = {};
    for (int64_t row = first; row < first + count; ++row) {
      const T* from = start_of<T>(input, row) + range.begin;
      for_columns<T>(range.end - range.begin, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
        const Tile<C> x = load(from + col, part);
        for (int half = 0; half < 2; ++half) {
          const Lanes<C> size = (Lanes<C>)x.v[half] & kNoSign;
          largest = size > largest ? size : largest;
        }
      });
    }
    largest = largest > infinite ? infinite : largest;
    return ReduceLanes<C>((Vec<C>)largest, Maximum{});
  }
};

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
