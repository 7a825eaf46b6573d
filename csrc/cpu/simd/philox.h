// Computes which columns of a row dropout keeps (args.h), a tile at a time, by Philox4x32-7
// (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// Each of a counter's four words is in the lower half of a 64-bit lane. The multiplication 32 x 32
// -> 64 bits, which every instruction set has, then gives both halves of the product in place. A
// lane serves four columns of a tile of floats: its counter gives four random words, one for each
// of these columns.
#pragma once

#include "cpu/simd/load_store.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

struct PhiloxKey {
  uint32_t low, high;

  explicit PhiloxKey(int64_t seed) : low(uint32_t(seed)), high(uint32_t(uint64_t(seed) >> 32)) {}
};

// Holds one counter in each 64-bit lane: word i of the counters is in the lower 32 bits of word[i].
struct PhiloxWords {
  VecU64 word[4];
};

// Returns the random words of each counter.
FUSEDOPS_INLINE PhiloxWords philox(PhiloxKey key, PhiloxWords counter) {
  VecU64* c = counter.word;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const VecU64 first = MulEven(c[0], VecU64{} + 0xD2511F53u);
    const VecU64 second = MulEven(c[2], VecU64{} + 0xCD9E8D57u);
    c[0] = (second >> 32) ^ c[1] ^ uint64_t(key.low);
    c[1] = second;
    c[2] = (first >> 32) ^ c[3] ^ uint64_t(key.high);
    c[3] = first;
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

// Computes the dropout of one row.
struct DropoutRow {
  PhiloxKey key;
  uint32_t threshold;
  uint64_t row;

  DropoutRow(const Dropout& dropout, int64_t row_)
      : key(*dropout.seed), threshold(dropout.threshold), row(uint64_t(row_)) {}

  // Returns a tile that is 1 where dropout keeps the column and 0 elsewhere, for the columns from
  // `col` on, in the column order of a tile of T (tile.h).
  template <class T>
  FUSEDOPS_INLINE Tile<float> kept(int64_t col) const {
    VecU64 index;
    for (int lane = 0; lane < kLanes<double>; ++lane) index[lane] = lane;
    const VecU64 none = {};
    const PhiloxWords words =
        philox(key, {{index + uint64_t(col / 4), none + (row & 0xffffffffu), none + (row >> 32)}});
    // Words 0 and 2 side by side are the even columns in order; words 1 and 3 are the odd columns.
    const Vec<float> zero = {}, one = zero + 1.0f;
    Tile<float> tile;
    for (int odd = 0; odd < 2; ++odd) {
      const VecU32 word = (VecU32)((words.word[odd] & 0xffffffffu) | (words.word[odd + 2] << 32));
      tile.v[odd] = word >= threshold ? one : zero;
    }
    return in_order<BFloat16, T>(tile);
  }
};

// Applies dropout, without its scale, to `cols` values: the columns from `begin` on, in the column
// order of a tile of T. Dropped values are multiplied by 0, so that a NaN stays. `values` is padded
// to kColumnPadding, and `begin` is a multiple of kTile<float>.
template <class T>
void drop_columns(DropoutRow dropout, float* values, int64_t begin, int64_t cols) {
  for (int64_t col = 0; col < cols; col += kTile<float>) {
    store(values + col, load(values + col) * dropout.kept<T>(begin + col));
  }
}
template <class T>
void drop_columns(DropoutRow dropout, double* values, int64_t begin, int64_t cols) {
  for (int64_t col = 0; col < cols; col += kTile<float>) {
    const Tile<float> kept = dropout.kept<T>(begin + col);
    // Values past the last column were never written, and tiles that hold only such values are
    // skipped.
    for (int half = 0; half < 2 && col + half * kTile<double> < cols; ++half) {
      double* to = values + col + half * kTile<double>;
      const Wide<float> wide = promoted(kept.v[half]);
      store(to, load(to) * Tile<double>{{wide.v[0], wide.v[1]}});
    }
  }
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
