// Rows of any alignment, read in 16-byte vectors.
//
// A vocabulary of odd size, as GPT-2's 50257, begins its rows at any element. Columns belong to
// vectors by their index alone: the sums of a row then have the same bits wherever it lies. A
// vector that is not aligned lies in two aligned words, which are loaded and shifted: two loads and
// four shifts in place of eight loads of single elements. The second word is the next lane's first,
// and comes from L1. Nothing outside of the row is read: of vectors at its ends, for which a word
// would be partly outside, the elements are loaded one by one.
#pragma once

#include "cuda/block/tile.h"
#include "cuda/block/vec.h"

namespace fusedops::cuda {

// The elements from the last aligned address to `pointer`.
template <int kWidth, class T>
FUSEDOPS_DEVICE int32_t misalignment(const T* pointer) {
  return static_cast<int32_t>(reinterpret_cast<uintptr_t>(pointer) / sizeof(T) % kWidth);
}

// Sets element j, of which a register has the bits.
template <class T, int kWidth>
FUSEDOPS_DEVICE void insert(Vec<T, kWidth>& vec, int j, uint32_t bits) {
  if constexpr (sizeof(T) == 2) {
    uint32_t& pair = vec.registers[j / 2];
    pair = j % 2 == 0 ? (pair & 0xffff0000u) | bits : (pair & 0xffffu) | bits << 16;
  } else {
    vec.registers[j] = bits;
  }
}

// Element j alone.
template <class T, int kWidth>
FUSEDOPS_DEVICE Vec<T, 1> element_of(const Vec<T, kWidth>& vec, int j) {
  if constexpr (kWidth == 1) {
    return vec;
  } else if constexpr (sizeof(T) == 2) {
    return {{vec.registers[j / 2] >> j % 2 * 16 & 0xffffu}};
  } else {
    return {{vec.registers[j]}};
  }
}

// The columns of a tile of kVectors vectors a thread.
template <int kWidth, int kVectors>
FUSEDOPS_DEVICE int32_t tile_columns() {
  return static_cast<int32_t>(blockDim.x) * kVectors * kWidth;
}

// A part of a row, in tiles of kVectors vectors a thread, laid out as in tile.h.
template <class T, int kWidth, int kVectors>
class RowVectors {
 public:
  using Vector = Vec<T, kWidth>;

  // Column 0 is at `origin`. The columns from `begin` to before `end` can be read.
  FUSEDOPS_DEVICE RowVectors(const T* origin, int32_t begin, int32_t end)
      : origin_(origin), begin_(begin), end_(end), shift_(misalignment<kWidth>(origin)) {
    const int32_t before = shift_ == 0 ? 0 : kWidth - 1;
    first_ = begin + before;
    last_ = end - kWidth - before;
  }

  // Loads the tile that begins at column `start`. Elements that cannot be read are 0.
  FUSEDOPS_DEVICE void load(Vector (&vectors)[kVectors], int32_t start) const {
    const T* const own = device::whole(origin_ + start + column_of<kWidth>(0));
    const int32_t col = start + column_of<kWidth>(0);
    if constexpr (kWidth > 1) {
      if (shift_ == 0) {
        load_aligned(vectors, own, col);
      } else {
        load_shifted(vectors, own, col);
      }
      const bool is_whole = start >= first_ && start + tile_columns<kWidth, kVectors>() - kWidth <= last_;
      if (!is_whole) load_ends(vectors, own, col);
    } else {
      load_aligned(vectors, own, col);
    }
  }

 private:
  // Whether all words of the vector at this column can be read.
  FUSEDOPS_DEVICE bool has_words(int32_t col) const { return col >= first_ && col <= last_; }

  FUSEDOPS_DEVICE void load_aligned(
      Vector (&vectors)[kVectors], const T* own, int32_t col) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t offset = columns_before<kWidth>(i);
      vectors[i] = has_words(col + offset) ? Vector::load(own + offset) : Vector{};
    }
  }

  // Two vectors at a time: the words of all would take 16 registers more.
  FUSEDOPS_DEVICE void load_shifted(
      Vector (&vectors)[kVectors], const T* own, int32_t col) const {
    constexpr int kEach = 2;
    const T* const words = own - shift_;
#pragma unroll
    for (int first = 0; first < kVectors; first += kEach) {
      Vector low[kEach], high[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int32_t offset = columns_before<kWidth>(first + i);
        const T* const from = device::whole(words + offset);
        const bool has_all = has_words(col + offset);
        low[i] = has_all ? Vector::load_cached(from) : Vector{};
        high[i] = has_all ? Vector::load_cached(from + kWidth) : Vector{};
      }
      shift(vectors + first, low, high);
    }
  }

  // All threads of a row take the same branch, so that registers need no selection.
  template <int kCount>
  FUSEDOPS_DEVICE void shift(
      Vector* vectors, const Vector (&low)[kCount], const Vector (&high)[kCount]) const {
    constexpr int32_t kPerRegister = 4 / sizeof(T);
    switch (shift_ / kPerRegister) {
      case 0:
        return shift_registers<0>(vectors, low, high);
      case 1:
        return shift_registers<1>(vectors, low, high);
      case 2:
        return shift_registers<2>(vectors, low, high);
      default:
        return shift_registers<3>(vectors, low, high);
    }
  }

  template <int kRegisters, int kCount>
  FUSEDOPS_DEVICE void shift_registers(
      Vector* vectors, const Vector (&low)[kCount], const Vector (&high)[kCount]) const {
    constexpr int kEach = Vector::kRegisters;
    const int32_t bits = sizeof(T) == 2 ? shift_ % 2 * 16 : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        const int from = r + kRegisters, after = from + 1;
        const uint32_t first =
            from < kEach ? low[i].registers[from] : high[i].registers[from % kEach];
        const uint32_t second =
            after < kEach ? low[i].registers[after] : high[i].registers[after % kEach];
        vectors[i].registers[r] = sizeof(T) == 2
            ? static_cast<uint32_t>((uint64_t{second} << 32 | first) >> bits)
            : first;
      }
    }
  }

  FUSEDOPS_DEVICE void load_ends(Vector (&vectors)[kVectors], const T* own, int32_t col) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t offset = columns_before<kWidth>(i);
      if (has_words(col + offset)) continue;
      const int32_t begin = begin_ - col - offset, end = end_ - col - offset;
      const T* const from = device::whole(own + offset);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < begin || j >= end) continue;
        insert(vectors[i], j, Vec<T, 1>::load_cached(from + j).registers[0]);
      }
    }
  }

  const T* origin_;
  int32_t begin_, end_;
  int32_t shift_;         // elements from an aligned address to each vector
  int32_t first_, last_;  // vectors that begin in this range are loaded in words
};

}  // namespace fusedops::cuda
