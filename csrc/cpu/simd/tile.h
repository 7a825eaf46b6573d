// Defines tiles. A tile holds the columns that one step of a kernel computes.
#pragma once

#include "cpu/simd/processor.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

// A tile is two vectors. Its columns have the order in which load() gets them most cheaply from the
// type T in memory: for bfloat16 the even columns come first and then the odd ones, as one
// instruction extracts each; for other types they stay in order. Tiles in scratch memory, including
// those of weight and bias, have this order too. store() to an array of T restores memory order.
template <class C>
struct Tile {
  Vec<C> v[2];
};

// Holds the lanes of a vector of C as doubles, in order: kWide<C> vectors.
template <class C>
constexpr int kWide = sizeof(double) / sizeof(C);
template <class C>
struct Wide {
  Vec<double> v[kWide<C>];
};
template <class C>
struct WideTile {
  Wide<C> v[2];
};

template <class T>
constexpr bool kEvenOdd = false;
template <>
constexpr bool kEvenOdd<BFloat16> = true;

// Returns the column, within its tile, that is in lane `lane` of vector `half`.
template <class T>
constexpr int column_of(int half, int lane) {
  return kEvenOdd<T> ? 2 * lane + half : half * kLanes<Compute<T>> + lane;
}
// Returns the columns that are in the lanes of vector `half`.
template <class T>
FUSEDOPS_INLINE Lanes<Compute<T>> columns_of_lanes(int half) {
  Lanes<Compute<T>> column;
  for (int lane = 0; lane < kLanes<Compute<T>>; ++lane) column[lane] = column_of<T>(half, lane);
  return column;
}

// --- arithmetic ---------------------------------------------------------------------------------

template <class C>
FUSEDOPS_INLINE Tile<C> Broadcast(C value) {
  return {{Set(value), Set(value)}};
}
#define FUSEDOPS_OPERATOR(op)                                             \
  template <class C>                                                      \
  FUSEDOPS_INLINE Tile<C> operator op(Tile<C> a, Tile<C> b) {             \
    return {{a.v[0] op b.v[0], a.v[1] op b.v[1]}};                        \
  }                                                                       \
  template <class C>                                                      \
  FUSEDOPS_INLINE Tile<C> operator op(Tile<C> a, C b) {                   \
    return {{a.v[0] op b, a.v[1] op b}};                                  \
  }                                                                       \
  FUSEDOPS_INLINE Wide<float> operator op(Wide<float> a, Wide<float> b) { \
    return {{a.v[0] op b.v[0], a.v[1] op b.v[1]}};                        \
  }
FUSEDOPS_OPERATOR(+)
FUSEDOPS_OPERATOR(-)
FUSEDOPS_OPERATOR(*)
FUSEDOPS_OPERATOR(/)
#undef FUSEDOPS_OPERATOR

template <class C>
FUSEDOPS_INLINE Tile<C> MulAdd(Tile<C> a, Tile<C> b, Tile<C> c) {
  if constexpr (!kHasMulAdd) {
    return a * b + c;
  } else {
    return {{MulAdd(a.v[0], b.v[0], c.v[0]), MulAdd(a.v[1], b.v[1], c.v[1])}};
  }
}
// Returns a * b - c. `b` and `c` are numbers or tiles.
template <class C, class S>
FUSEDOPS_INLINE Tile<C> MulSub(Tile<C> a, S b, S c) {
  if constexpr (!kHasMulAdd) {
    return a * b - c;
  } else if constexpr (sizeof(S) == sizeof(C)) {
    return MulSub(a, Broadcast(b), Broadcast(c));
  } else {
    return {{MulSub(a.v[0], b.v[0], c.v[0]), MulSub(a.v[1], b.v[1], c.v[1])}};
  }
}
template <class C>
FUSEDOPS_INLINE Tile<C> Max(Tile<C> a, Tile<C> b) {
  return {{Max(a.v[0], b.v[0]), Max(a.v[1], b.v[1])}};
}
template <class C>
FUSEDOPS_INLINE Tile<C> Min(Tile<C> a, Tile<C> b) {
  return {{Min(a.v[0], b.v[0]), Min(a.v[1], b.v[1])}};
}

// Keeps a product from being fused into an addition. The compiler would fuse the two if they stand
// in one loop, and not if they stand apart, so that the bits of a result would depend on where it
// is computed.
template <class C>
FUSEDOPS_INLINE Tile<C> unfused(Tile<C> product) {
  return {{Opaque(product.v[0]), Opaque(product.v[1])}};
}

// Holds a condition for each column of a tile. Lanes are nonzero where it is true.
template <class C>
struct Mask {
  Lanes<C> v[2];
};
template <class C>
FUSEDOPS_INLINE Tile<C> IfThenElse(Mask<C> mask, Tile<C> yes, C no) {
  Tile<C> tile;
  for (int half = 0; half < 2; ++half) tile.v[half] = mask.v[half] != 0 ? yes.v[half] : Set(no);
  return tile;
}

// Holds a condition for each column as a bit, in the order of the tile's lanes, if masks of the
// processor are bits (kHasLaneBits). Each half is a number of its own, because to shift a mask
// takes as long as to find it.
struct TileBits {
  uint32_t halves[2];

  template <class C>
  FUSEDOPS_INLINE LaneBits<C> of_half(int half) const {
    return LaneBits<C>(halves[half]);
  }
};
template <class C>
FUSEDOPS_INLINE Tile<C> IfThenElse(TileBits mask, Tile<C> yes, C no) {
  for (int half = 0; half < 2; ++half) {
    yes.v[half] = IfThenElse(mask.of_half<C>(half), yes.v[half], Set(no));
  }
  return yes;
}
template <class M>
FUSEDOPS_INLINE M operator&(M mask, AllLanes) {
  return mask;
}

// Returns the maximum of `a` and `b` where `mask` is true, and `a` elsewhere.
template <class C>
FUSEDOPS_INLINE Tile<C> MaskedMax(AllLanes, Tile<C> a, Tile<C> b) {
  return Max(a, b);
}
template <class C>
FUSEDOPS_INLINE Tile<C> MaskedMax(TileBits mask, Tile<C> a, Tile<C> b) {
  for (int half = 0; half < 2; ++half) {
    a.v[half] = MaskedMax(mask.of_half<C>(half), a.v[half], b.v[half]);
  }
  return a;
}

// --- order --------------------------------------------------------------------------------------

// Returns a vector whose lane i is lane `lane[i]` of `low` and `high` side by side.
template <class C>
FUSEDOPS_INLINE Vec<C> Permute2(Vec<C> low, Vec<C> high, Lanes<C> lane) {
#if defined(__clang__)  // Clang's builtin accepts only constants
  constexpr int L = kLanes<C>;
  Vec<C> result;
  for (int i = 0; i < L; ++i) result[i] = lane[i] < L ? low[lane[i]] : high[lane[i] - L];
  return result;
#else
  return __builtin_shuffle(low, high, lane);
#endif
}

// Permutes a tile of From into the column order of a tile of To.
template <class From, class To, class C>
FUSEDOPS_INLINE Tile<C> in_order(Tile<C> tile) {
  if constexpr (kEvenOdd<From> == kEvenOdd<To>) {
    return tile;
  } else {
    constexpr int L = kLanes<float>;
    VecI32 first, second;
    for (int i = 0; i < L; ++i) {
      first[i] = kEvenOdd<From> ? (i % 2) * L + i / 2 : 2 * i;
      second[i] = first[i] + (kEvenOdd<From> ? L / 2 : 1);
    }
    return {{Permute2<C>(tile.v[0], tile.v[1], first), Permute2<C>(tile.v[0], tile.v[1], second)}};
  }
}

// --- doubles ------------------------------------------------------------------------------------

FUSEDOPS_INLINE Wide<float> promoted(Vec<float> value) {
  return {{PromoteLower(value), PromoteUpper(value)}};
}
FUSEDOPS_INLINE Wide<double> promoted(Vec<double> value) { return {{value}}; }
template <class C>
FUSEDOPS_INLINE WideTile<C> promoted(Tile<C> tile) {
  return {{promoted(tile.v[0]), promoted(tile.v[1])}};
}

FUSEDOPS_INLINE Vec<float> demoted(Wide<float> value) { return Demote2(value.v[0], value.v[1]); }
FUSEDOPS_INLINE Vec<double> demoted(Wide<double> value) { return value.v[0]; }
template <class C>
FUSEDOPS_INLINE Tile<C> demoted(WideTile<C> wide) {
  return {{demoted(wide.v[0]), demoted(wide.v[1])}};
}

// A wide tile has this many vectors. vector_of() numbers them in the order of the tile's lanes.
template <class C>
constexpr int64_t kWideVectors = 2 * kWide<C>;
template <class C>
FUSEDOPS_INLINE Vec<double>& vector_of(WideTile<C>& wide, int64_t index) {
  return wide.v[index / kWide<C>].v[index % kWide<C>];
}
template <class C>
FUSEDOPS_INLINE const Vec<double>& vector_of(const WideTile<C>& wide, int64_t index) {
  return wide.v[index / kWide<C>].v[index % kWide<C>];
}

// Returns a wide tile whose vectors are body(vector of a, vector of b).
template <class C, class Body>
FUSEDOPS_INLINE WideTile<C> each(WideTile<C> a, WideTile<C> b, Body body) {
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kWide<C>; ++i) a.v[half].v[i] = body(a.v[half].v[i], b.v[half].v[i]);
  }
  return a;
}
template <class C>
FUSEDOPS_INLINE WideTile<C> operator+(WideTile<C> a, WideTile<C> b) {
  return each(a, b, [](auto x, auto y) { return x + y; });
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
