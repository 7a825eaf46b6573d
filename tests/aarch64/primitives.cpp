// Compares the primitives of csrc/cpu/simd/arm.h with those of portable.h, and prints the names of
// those that differ.
#include <cstdio>

#include "cpu/simd/load_store.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {

bool all_equal = true;

template <class V>
bool are_equal(V a, V b) {
  return std::memcmp(&a, &b, sizeof(V)) == 0;
}
void expect(bool holds, const char* claim) {
  if (!holds && all_equal) std::printf("%s\n", claim);
  all_equal = all_equal && holds;
}
#define EXPECT_SAME(call) expect(are_equal(call, portable::call), #call)

// Numbers of every exponent, with the bits around which 16-bit types round; and denormals.
template <class Body>
void for_floats(Body body) {
  const uint32_t lower[] = {0,      1,      0xfff,  0x1000, 0x1001, 0x1fff, 0x2fff,
                            0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t low : lower) {
      const uint32_t bits = upper << 16 | low;
      if ((bits & 0x7fffffff) <= 0x7f800000) body((Vec<float>)(VecU32{} + bits));
    }
  }
}

void conversions() {
  for (uint32_t i = 0; i < 0x10000; i += 4) {
    const VecU16 bits = {uint16_t(i), uint16_t(i + 1), uint16_t(i + 2), uint16_t(i + 3)};
    if ((i & 0x7fff) <= 0x7c00 - 4) EXPECT_SAME(PromoteHalf(bits));
    const Vec<float> promoted = PromoteHalf(bits);
    expect((i & 0x7fff) <= 0x7c00 || promoted[1] != promoted[1], "PromoteHalf(NaN)");
  }
  for_floats([](Vec<float> x) {
    EXPECT_SAME(DemoteHalf(x));
    const VecU32 both = portable::RoundEvenOdd(
        x, x, [](Vec<float> each) { return portable::RoundToBFloat16(each); });
    expect(are_equal(DemoteEvenOdd(x, x), both), "RoundToBFloat16");
    BFloat16 numbers[kTile<BFloat16>];
    store_numbers(numbers, Full{}, Tile<float>{{x, x}});
    expect(are_equal(Load<VecU32>(numbers), both), "RoundNumberToBFloat16");
    EXPECT_SAME(PromoteLower(x));
    EXPECT_SAME(PromoteUpper(x));
    const Vec<double> wide = PromoteLower(x) * 1.00000009;
    EXPECT_SAME(Demote2(wide, wide));
  });
  const Vec<float> nan = (Vec<float>)(VecU32{0x7fffffff, 0xffffffff, 0x7fc00000, 0x7fc00001});
  const VecU32 rounded = DemoteEvenOdd(nan, nan);
  const Vec<float> back = PromoteEven(rounded);
  expect(!AnyTrue(back == back), "RoundToBFloat16(NaN)");
  const Vec<float> half = PromoteHalf(DemoteHalf(nan));
  expect(!AnyTrue(half == half), "DemoteHalf(NaN)");
  const VecU32 odd = {1, 2, 3, 4}, even = {5, 6, 7, 8};
  const VecU32 wanted = {5 | 1 << 16, 6 | 2 << 16, 7 | 3 << 16, 8 | 4 << 16};
  const VecU32 upper_even = even << 16, upper_odd = odd << 16;
  const auto found = DemoteEvenOdd((Vec<float>)upper_even, (Vec<float>)upper_odd);
  expect(are_equal(found, wanted), "the order of DemoteEvenOdd");
}

// Numbers whose results are normal or zero raise no flag of denormals.
void flags() {
  volatile uint32_t sink = 0;
  __builtin_aarch64_set_fpsr(0);
  for_floats([&](Vec<float> x) {
    const float size = __builtin_fabsf(x[0]);
    if (size >= 0x1p-126f) sink = DemoteEvenOdd(x, x)[0];
    if (size >= 0x1p-14f || size <= 0x1p-25f) sink = DemoteHalf(x)[0];
  });
  expect((__builtin_aarch64_get_fpsr() & 0x88) == 0, "flags of conversions");
}

void arithmetic() {
  const Vec<float> a = {1, -0.0f, 3, -4}, b = {-1, 2, 5, -6};
  EXPECT_SAME(Max(a, b));
  EXPECT_SAME(Min(a, b));
  EXPECT_SAME(Sqrt(Vec<double>{2, 3}));
  EXPECT_SAME(MulEven(VecU64{0xffffffff12345678, 0xfedcba98}, VecU64{0x187654321, 7}));
  for (int lane = 0; lane < 4; ++lane) {
    VecI32 lanes = {};
    expect(!AnyTrue(lanes), "AnyTrue(nothing)");
    lanes[lane] = -1;
    expect(AnyTrue(lanes), "AnyTrue");
  }
  const Vec<float> x = {-1, 1, float(kNaN), 2};
  const Vec<float> shown = IfThenElseZero(NotLessEqual(x, 1.0f), x);
  expect(shown[0] == 0 && shown[1] == 0 && shown[2] != shown[2] && shown[3] == 2, "NotLessEqual");
}

template <class T>
void parts() {
  T from[kTile<T>], loaded[kTile<T>], stored[kTile<T>], wanted[kTile<T>];
  for (size_t i = 0; i < sizeof(from); ++i) reinterpret_cast<char*>(from)[i] = char(i + 1);
  for (int count = 0; count <= kTile<T>; ++count) {
    for (int i = 0; i < kTile<T>; ++i) wanted[i] = i < count ? from[i] : T{};
    LoadN(loaded, from, count);
    expect(std::memcmp(loaded, wanted, sizeof(loaded)) == 0, "LoadN");
    std::memset(stored, 0, sizeof(stored));
    StoreN(stored, from, count);
    expect(std::memcmp(stored, wanted, sizeof(stored)) == 0, "StoreN");
  }
}

void bools() {
  Bool from[16];
  for (int i = 0; i < 16; ++i) from[i].value = uint8_t(i * 31 + 1);
  EXPECT_SAME(PromoteBytes<VecI32>(from + 1));
  EXPECT_SAME(PromoteBytes<VecI64>(from + 1));
  EXPECT_SAME(PromoteBytePairs(from + 1));
  const float floats[] = {1, 2, 3};
  EXPECT_SAME(PromoteFloats(floats + 1));
}

}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA

int main() {
  using namespace fusedops::FUSEDOPS_CPU_ISA;
  conversions();
  flags();
  arithmetic();
  parts<float>();
  parts<double>();
  parts<BFloat16>();
  parts<Half>();
  bools();
  return all_equal ? 0 : 1;
}
