// Finds which columns masks hide: bool masks, which are converted to bits, and added padding masks
// that many rows share.
#pragma once

#include <limits>
#include <type_traits>

#include "cpu/masked_softmax/scratch.h"
#include "cpu/masked_softmax/visible.h"
#include "cpu/simd/exp.h"
#include "cpu/simd/reduce.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// Holds a bool mask of a row as bits. `shown` begins with the first true bool and ends with the
// last one; it is {0, 0} if there is none. A padding mask hides columns outside of it, but has no
// holes.
struct RowBits {
  const TileBits* bits;
  RowRange shown;
  bool hides, has_holes;  // whether any bool is false, and whether one in `shown` is
};

// Returns the first true column of a tile, and the one after the last. One of them must be true.
template <class T>
FUSEDOPS_INLINE Between true_columns(TileBits tile) {
  const auto first = [](uint64_t bits) FUSEDOPS_LAMBDA { return __builtin_ctzll(bits); };
  const auto after_last = [](uint64_t bits)
                              FUSEDOPS_LAMBDA { return 63 - __builtin_clzll(2 * bits + 1); };
  if constexpr (!kEvenOdd<T>) return {first(tile.bits), after_last(tile.bits)};
  constexpr int kHalf = kTile<T> / 2;
  constexpr uint64_t kNone = uint64_t(1) << kHalf;
  const uint64_t even = tile.bits % kNone, odd = tile.bits / kNone;
  return {
      Min(2 * first(even | kNone), 2 * first(odd | kNone) + 1),
      Max(2 * after_last(even) - 1, 2 * after_last(odd))};
}

// Converts bool masks to bits. Rows in succession that have the same mask share its bits. The
// memory holds as many masks as a group has rows and is filled in turn, so that the bits of all
// rows of a group exist at once.
template <class In>
class MaskBits {
 public:
  MaskBits(char* memory, int64_t cols, int64_t group_rows)
      : memory_(memory), cols_(cols), masks_(group_rows) {}

  const RowBits& of(const Bool* mask) {
    if (mask != last_) {
      last_ = mask;
      index_ = index_ + 1 < masks_ ? index_ + 1 : 0;
      converted_ = converted(mask, memory_ + index_ * mask_bits_bytes(cols_));
    }
    return converted_;
  }

 private:
  FUSEDOPS_INLINE RowBits converted(const Bool* mask, char* memory) const {
    auto* bits = reinterpret_cast<TileBits*>(memory);
    TileBits* to = bits;
    int64_t first = cols_, last = 0, count = 0;  // the first and the last tile with a true bool
    for_columns<In>(cols_, [&](int64_t col, auto part) FUSEDOPS_LAMBDA {
      const TileBits tile = bits_of<In>(mask + col, part);
      *to++ = tile;
      count += __builtin_popcount(tile.bits);
      first = tile.bits != 0 && first > col ? col : first;
      last = tile.bits != 0 ? col : last;
    });
    if (count == 0) return {bits, {0, 0}, true, false};
    const int64_t begin = first + true_columns<In>(bits[first / kTile<In>]).begin;
    const int64_t end = last + true_columns<In>(bits[last / kTile<In>]).end;
    return {bits, {begin, end}, count < cols_, count < end - begin};
  }

  char* memory_;
  int64_t cols_, masks_, index_ = 0;
  const Bool* last_ = nullptr;
  RowBits converted_ = {};
};

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
