// Reads rows of any alignment in 16-byte vectors.
//
// If a vocabulary has an odd size, as GPT-2's 50257, rows begin at any element. Columns belong to
// vectors by their index alone, so that the sums of a row have the same bits wherever it lies. A
// vector that is not aligned lies in two aligned words, which are loaded and shifted: two loads and
// four shifts in place of eight loads of single elements. The second word is the first word of the
// next lane, and comes from L1. Nothing outside of the row is read: if a word of a vector is partly
// outside, the vector's elements are loaded one by one.
#pragma once

#include "cuda/block/tile.h"
#include "cuda/block/vec.h"

namespace fusedops::cuda {

// Returns how many elements `pointer` lies behind the last multiple of `bytes`, a power of two.
template <class T>
FUSEDOPS_DEVICE int32_t elements_behind(const T* pointer, int32_t bytes) {
  return static_cast<int32_t>(reinterpret_cast<uintptr_t>(pointer) & (bytes - 1)) / sizeof(T);
}

// Sets element j to the value whose bits are `bits`. If T has 16 bits, the upper half of `bits` is
// 0.
template <class T, int kWidth>
FUSEDOPS_DEVICE void insert(Vec<T, kWidth>& vec, int j, uint32_t bits) {
  if constexpr (sizeof(T) == 2) {
    uint32_t& pair = vec.registers[j / 2];
    pair = j % 2 == 0 ? (pair & 0xffff0000u) | bits : (pair & 0xffffu) | bits << 16;
  } else {
    vec.registers[j] = bits;
  }
}

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

// Reads a part of a row, in tiles of kVectors vectors a thread, laid out as in tile.h. Columns are
// counted from this thread's first one in the tile: the tile's start would take one more register.
template <class T, int kWidth, int kVectors>
class RowVectors {
 public:
  using Vector = Vec<T, kWidth>;

  // The part begins at `origin`. The columns from `begin` to before `end` can be read, counted from
  // `origin`.
  FUSEDOPS_DEVICE RowVectors(const T* origin, int32_t begin, int32_t end)
      : own_(origin + column_of<kWidth>(0)),
        begin_(begin - column_of<kWidth>(0)),
        end_(end - column_of<kWidth>(0)),
        shift_(elements_behind(origin, kWidth * sizeof(T))) {}

  FUSEDOPS_DEVICE int32_t begin() const { return begin_; }
  FUSEDOPS_DEVICE int32_t end() const { return end_; }

  // Returns the number of columns in a tile of all threads that share a row.
  static FUSEDOPS_DEVICE int32_t step() { return Tile<T, kWidth, kVectors>::step(); }

  FUSEDOPS_DEVICE void advance() {
    own_ += step();
    begin_ -= step();
    end_ -= step();
  }

  // Returns whether all vectors of this thread in the tile can be loaded as whole words.
  FUSEDOPS_DEVICE bool is_whole() const {
    return has_words(0) && has_words(columns_before<kWidth>(kVectors - 1));
  }

  // Loads the tile; `whole` is is_whole(). Elements that cannot be read become 0.
  FUSEDOPS_DEVICE void load(Vector (&vectors)[kVectors], bool whole) const {
    if constexpr (kWidth == 1) {
      load_aligned(vectors);
    } else {
      if (shift_ != 0) {
        load_shifted(vectors);
      } else if (whole) {
        const T* const own = device::whole(own_);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          vectors[i] = Vector::load(own + columns_before<kWidth>(i));
        }
      } else {
        load_aligned(vectors);
      }
      if (!whole) load_ends(vectors);
    }
  }

 private:
  // Returns whether all words of the vector at this column can be read.
  FUSEDOPS_DEVICE bool has_words(int32_t col) const {
    const int32_t before = shift_ == 0 ? 0 : kWidth - 1;
    return begin_ + before <= col && col + kWidth + before <= end_;
  }

  FUSEDOPS_DEVICE void load_aligned(Vector (&vectors)[kVectors]) const {
    const T* const own = device::whole(own_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t offset = columns_before<kWidth>(i);
      vectors[i] = has_words(offset) ? Vector::load(own + offset) : Vector{};
    }
  }

  // Loads vectors that lie across two aligned words. All threads of a row take the same branch, in
  // which the numbers of the registers to shift are constants, as registers cannot be indexed.
  FUSEDOPS_DEVICE void load_shifted(Vector (&vectors)[kVectors]) const {
    constexpr int32_t kPerRegister = 4 / sizeof(T);
    switch (shift_ / kPerRegister) {
      case 0:
        return load_shifted_by<0>(vectors);
      case 1:
        return load_shifted_by<1>(vectors);
      case 2:
        return load_shifted_by<2>(vectors);
      default:
        return load_shifted_by<3>(vectors);
    }
  }

  // Each vector begins kRegisters registers after an aligned address, or half a register more. Two
  // vectors are loaded at a time: the words of all four would take 16 registers more.
  template <int kRegisters>
  FUSEDOPS_DEVICE void load_shifted_by(Vector (&vectors)[kVectors]) const {
    constexpr int kEach = 2;
    const T* const words = own_ - shift_;
#pragma unroll
    for (int first = 0; first < kVectors; first += kEach) {
      Vector low[kEach], high[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int32_t offset = columns_before<kWidth>(first + i);
        const T* const from = device::whole(words + offset);
        const bool has_all = has_words(offset);
        low[i] = has_all ? Vector::load_cached(from) : Vector{};
        high[i] = has_all ? Vector::load_cached(from + kWidth) : Vector{};
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        vectors[first + i] = shifted<kRegisters>(low[i], high[i]);
      }
    }
  }

  // Returns the vector that lies across two aligned words, shift_ elements after the first element
  // of `low`.
  template <int kRegisters>
  FUSEDOPS_DEVICE Vector shifted(const Vector& low, const Vector& high) const {
    constexpr int kEach = Vector::kRegisters;
    const int32_t bits = shift_ % 2 * 16;  // not used for elements of 4 bytes
    const auto at = [&](int r) { return r < kEach ? low.registers[r] : high.registers[r % kEach]; };
    Vector result;
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const uint64_t pair = uint64_t{at(r + kRegisters + 1)} << 32 | at(r + kRegisters);
      result.registers[r] = static_cast<uint32_t>(sizeof(T) == 2 ? pair >> bits : pair);
    }
    return result;
  }

  // Loads element by element the vectors of which a word is outside of the columns that can be
  // read. They have to be zeros before.
  FUSEDOPS_DEVICE void load_ends(Vector (&vectors)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t offset = columns_before<kWidth>(i);
      if (has_words(offset)) continue;
      const int32_t begin = begin_ - offset, end = end_ - offset;
      const T* const from = device::whole(own_ + offset);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < begin || j >= end) continue;
        insert(vectors[i], j, Vec<T, 1>::load_cached(from + j).registers[0]);
      }
    }
  }

  const T* own_;
  int32_t begin_, end_;
  int32_t shift_;  // elements from an aligned address to the start of each vector
};

}  // namespace fusedops::cuda
