// Groups of narrow rows on the CPU: each column has a tile, and each row has a lane of every tile.
// A reduction over a row needs no step across lanes, and no column is masked out.
//
// Rows are loaded and stored in pieces of 16 bytes. Pieces of several rows lie side by side in a
// vector, and the words of four vectors (two for double) are transposed within those 16 bytes,
// which every instruction set can do. The last piece of a row ends with the row: the columns that
// it shares with the piece before are loaded and stored twice.
#pragma once

#include "cpu/simd/vec.h"
#include "cpu/threads/work_division.h"

namespace fusedops {
namespace FUSEDOPS_CPU_ISA {
namespace {

// Rows of up to kNarrowCols columns may be computed in groups, and of up to kMaxGroupCols if a
// group needs only one array of tiles. Rows that do not fill a group are computed one by one, with
// the same bits.
constexpr int64_t kNarrowCols = 64, kMaxGroupCols = 256;
template <class T>
constexpr int64_t kGroupRows = kTile<T>;

// Whether rows end within a tile, and the instruction set has no column masks: such a tile costs
// calls of memcpy.
template <class T>
constexpr bool end_within_a_tile(int64_t cols) {
  return !kHasColumnMasks<T> && cols % kTile<T> != 0;
}

constexpr int kPieceBytes = 16;
constexpr int kPieces = kVectorBytes / kPieceBytes;  // per vector
template <class T>
constexpr int kPieceCols = kPieceBytes / sizeof(T);
template <class C>
constexpr int kPieceWords = kPieceBytes / sizeof(C);

typedef uint64_t Piece __attribute__((vector_size(kPieceBytes)));

// --- pieces -------------------------------------------------------------------------------------

// Read or write the first `bytes` of a piece, 2 to 15.
#if defined(__AVX512F__) && !defined(FUSEDOPS_SANITIZED)
FUSEDOPS_INLINE Piece read_piece(const void* from, int bytes) {
  return (Piece)_mm_maskz_loadu_epi8((1u << bytes) - 1, from);
}
FUSEDOPS_INLINE void write_piece(void* to, Piece piece, int bytes) {
  _mm_mask_storeu_epi8(to, (1u << bytes) - 1, (__m128i)piece);
}
#else
// Reads two words, which overlap if `bytes` is between one and two words.
template <class Word>
FUSEDOPS_INLINE uint64_t read_two(const char* from, int bytes) {
  const uint64_t last = read<Word>(from + bytes - sizeof(Word));
  return read<Word>(from) | last << 8 * (bytes - sizeof(Word));
}
FUSEDOPS_INLINE Piece read_piece(const void* memory, int bytes) {
  const char* from = static_cast<const char*>(memory);
  if (bytes < 4) return Piece{read<uint16_t>(from)};
  if (bytes <= 8) return Piece{read_two<uint32_t>(from, bytes)};
  return Piece{read<uint64_t>(from), read<uint64_t>(from + bytes - 8) >> 8 * (16 - bytes)};
}
FUSEDOPS_INLINE void write_piece(void* memory, Piece piece, int bytes) {
  char* to = static_cast<char*>(memory);
  const uint64_t low = piece[0], high = piece[1];
  if (bytes < 4) return write(to, static_cast<uint16_t>(low));
  if (bytes < 8) {
    write(to, static_cast<uint32_t>(low));
    return write(to + bytes - 4, static_cast<uint32_t>(low >> 8 * (bytes - 4)));
  }
  write(to, low);
  if (bytes > 8) write(to + bytes - 8, low >> 8 * (bytes - 8) | high << 8 * (16 - bytes));
}
#endif

// Joins the pieces of a vector.
template <class C>
FUSEDOPS_INLINE Vec<C> joined(const Piece (&piece)[kPieces]) {
#if defined(__AVX512F__)
  const auto low =
      _mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)piece[0]), (__m128i)piece[1], 1);
  const auto high =
      _mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)piece[2]), (__m128i)piece[3], 1);
  return (Vec<C>)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#elif defined(__AVX2__)
  const __m256i low = _mm256_castsi128_si256((__m128i)piece[0]);
  return (Vec<C>)_mm256_inserti128_si256(low, (__m128i)piece[1], 1);
#else
  return (Vec<C>)piece[0];
#endif
}

template <class C>
FUSEDOPS_INLINE void split(Vec<C> vec, Piece (&piece)[kPieces]) {
#if defined(__AVX512F__)
  piece[0] = (Piece)_mm512_castsi512_si128((__m512i)vec);
  piece[1] = (Piece)_mm512_extracti32x4_epi32((__m512i)vec, 1);
  piece[2] = (Piece)_mm512_extracti32x4_epi32((__m512i)vec, 2);
  piece[3] = (Piece)_mm512_extracti32x4_epi32((__m512i)vec, 3);
#elif defined(__AVX2__)
  piece[0] = (Piece)_mm256_castsi256_si128((__m256i)vec);
  piece[1] = (Piece)_mm256_extracti128_si256((__m256i)vec, 1);
#else
  piece[0] = (Piece)vec;
#endif
}

// --- transposition ------------------------------------------------------------------------------

// Within each piece: interleaves the lower or the upper halves of two vectors, kWords words at a
// time.
template <class C, int kWords, bool kUpper>
FUSEDOPS_INLINE Vec<C> interleaved(Vec<C> a, Vec<C> b) {
  constexpr int kPiece = kPieceWords<C>;
  Lanes<C> lane;
  for (int i = 0; i < kLanes<C>; ++i) {
    const int word = i % kPiece, turn = word / kWords;
    const int from = turn / 2 * kWords + word % kWords + (kUpper ? kPiece / 2 : 0);
    lane[i] = i - word + from + turn % 2 * kLanes<C>;
  }
  return shuffled<C>(a, b, lane);
}

// Swaps word j of the pieces of vector i with word i of the pieces of vector j. The function is its
// own inverse.
FUSEDOPS_INLINE void transpose(Vec<double> (&v)[2]) {
  const Vec<double> low = interleaved<double, 1, false>(v[0], v[1]);
  v[1] = interleaved<double, 1, true>(v[0], v[1]);
  v[0] = low;
}
FUSEDOPS_INLINE void transpose(Vec<float> (&v)[4]) {
  const Vec<float> low01 = interleaved<float, 1, false>(v[0], v[1]);
  const Vec<float> high01 = interleaved<float, 1, true>(v[0], v[1]);
  const Vec<float> low23 = interleaved<float, 1, false>(v[2], v[3]);
  const Vec<float> high23 = interleaved<float, 1, true>(v[2], v[3]);
  v[0] = interleaved<float, 2, false>(low01, low23);
  v[1] = interleaved<float, 2, true>(low01, low23);
  v[2] = interleaved<float, 2, false>(high01, high23);
  v[3] = interleaved<float, 2, true>(high01, high23);
}

// Splits a transposed word into the halves of its columns' tiles: one column, or two columns of 16
// bits.
template <class C>
FUSEDOPS_INLINE void unpack(Vec<C> word, int half, Tile<C>* columns, const C*) {
  columns[0].v[half] = word;
}
FUSEDOPS_INLINE void unpack(Vec<float> word, int half, Tile<float>* columns, const BFloat16*) {
  columns[0].v[half] = (Vec<float>)((VecU32)word << 16);
  columns[1].v[half] = (Vec<float>)((VecU32)word & 0xffff0000u);
}
FUSEDOPS_INLINE void unpack(Vec<float> word, int half, Tile<float>* columns, const Half*) {
  columns[0].v[half] = widen_half(__builtin_convertvector((VecU32)word & 0xffffu, VecU16));
  columns[1].v[half] = widen_half(__builtin_convertvector((VecU32)word >> 16, VecU16));
}

template <class C>
FUSEDOPS_INLINE Vec<C> pack(const Tile<C>* columns, int half, const C*) {
  return columns[0].v[half];
}
FUSEDOPS_INLINE Vec<float> pack(const Tile<float>* columns, int half, const BFloat16* to) {
  return (Vec<float>)packed(Tile<float>{{columns[0].v[half], columns[1].v[half]}}, to);
}
FUSEDOPS_INLINE Vec<float> pack(const Tile<float>* columns, int half, const Half*) {
  const auto even = __builtin_convertvector(narrow_half(columns[0].v[half]), VecU32);
  const auto odd = __builtin_convertvector(narrow_half(columns[1].v[half]), VecU32);
  return (Vec<float>)(even | odd << 16);
}

// --- groups -------------------------------------------------------------------------------------

// The rows of a group, evenly spaced.
template <class T>
struct GroupRows {
  T* first;
  int64_t stride;

  FUSEDOPS_INLINE T* operator[](int64_t row) const { return first + row * stride; }
};

// Calls body(first column, number of bytes) for each piece of a row of T.
template <class T, class Body>
FUSEDOPS_INLINE void for_pieces(int64_t cols, Body body) {
  if (cols < kPieceCols<T>) return body(0, static_cast<int>(cols * sizeof(T)));
  int64_t col = 0;
  for (; col + kPieceCols<T> <= cols; col += kPieceCols<T>) body(col, Whole{});
  if (col < cols) body(cols - kPieceCols<T>, Whole{});
}

FUSEDOPS_INLINE Piece read_piece(const void* from, Whole) { return read<Piece>(from); }
FUSEDOPS_INLINE void write_piece(void* to, Piece piece, Whole) { write(to, piece); }

// The row of a group to which piece `piece` of vector `vector` belongs, in half `half` of the
// tiles.
template <class C>
constexpr int row_of(int half, int vector, int piece) {
  return half * kLanes<C> + piece * kPieceWords<C> + vector;
}

// `group` has room for a whole piece, even if rows are shorter.
template <class T, class C = Compute<T>>
FUSEDOPS_NOINLINE void load_even_rows(GroupRows<const T> rows, int64_t cols, Tile<C>* group) {
  for_pieces<T>(cols, [&](int64_t col, auto bytes) FUSEDOPS_LAMBDA {
    for (int half = 0; half < 2; ++half) {
      constexpr int kCount = kPieceWords<C>;
      Vec<C> words[kCount];
      for (int i = 0; i < kCount; ++i) {
        Piece piece[kPieces];
        for (int p = 0; p < kPieces; ++p) {
          piece[p] = read_piece(rows[row_of<C>(half, i, p)] + col, bytes);
        }
        words[i] = joined<C>(piece);
      }
      transpose(words);
      const T* type = nullptr;
      constexpr int kEach = kPieceCols<T> / kCount;
      for (int i = 0; i < kCount; ++i) unpack(words[i], half, group + col + i * kEach, type);
    }
  });
}

template <class T, class C = Compute<T>>
FUSEDOPS_NOINLINE void store_even_rows(GroupRows<T> rows, int64_t cols, const Tile<C>* group) {
  for_pieces<T>(cols, [&](int64_t col, auto bytes) FUSEDOPS_LAMBDA {
    for (int half = 0; half < 2; ++half) {
      constexpr int kCount = kPieceWords<C>;
      Vec<C> words[kCount];
      const T* type = nullptr;
      constexpr int kEach = kPieceCols<T> / kCount;
      for (int i = 0; i < kCount; ++i) words[i] = pack(group + col + i * kEach, half, type);
      transpose(words);
      for (int i = 0; i < kCount; ++i) {
        Piece piece[kPieces];
        split<C>(words[i], piece);
        for (int p = 0; p < kPieces; ++p) {
          write_piece(rows[row_of<C>(half, i, p)] + col, piece[p], bytes);
        }
      }
    }
  });
}

// If the rows of a group lie in two runs, they are copied first, so that they are evenly spaced.
template <class T>
FUSEDOPS_INLINE void load_group(
    const ConstRows& rows, int64_t first, int64_t cols, Tile<Compute<T>>* group) {
  if (are_even(rows, first, kGroupRows<T>)) {
    return load_even_rows<T>({start_of<T>(rows, first), rows.spacing.stride}, cols, group);
  }
  T copy[kGroupRows<T> * kMaxGroupCols];
  for (int64_t r = 0; r < kGroupRows<T>; ++r) {
    std::memcpy(copy + r * cols, start_of<T>(rows, first + r), cols * sizeof(T));
  }
  load_even_rows<T>({copy, cols}, cols, group);
}

template <class T>
FUSEDOPS_INLINE void store_group(
    const Rows& rows, int64_t first, int64_t cols, const Tile<Compute<T>>* group) {
  if (are_even(rows, first, kGroupRows<T>)) {
    return store_even_rows<T>({start_of<T>(rows, first), rows.spacing.stride}, cols, group);
  }
  T copy[kGroupRows<T> * kMaxGroupCols];
  store_even_rows<T>({copy, cols}, cols, group);
  for (int64_t r = 0; r < kGroupRows<T>; ++r) {
    std::memcpy(start_of<T>(rows, first + r), copy + r * cols, cols * sizeof(T));
  }
}

// Calls body(first row) for each whole group. Returns the remaining rows.
template <class T, class Body>
FUSEDOPS_INLINE RowRange for_row_groups(RowRange rows, Body body) {
  for (; rows.begin + kGroupRows<T> <= rows.end; rows.begin += kGroupRows<T>) body(rows.begin);
  return rows;
}

}  // namespace
}  // namespace FUSEDOPS_CPU_ISA
}  // namespace fusedops
