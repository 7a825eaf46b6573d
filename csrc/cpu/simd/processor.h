// Selects the primitives: operations on vectors for which the language has no operator. Those that
// Google Highway has too have its names.
//
// portable.h defines each primitive without intrinsics. A processor's file defines those for
// which the processor has an instruction. A using-declaration adds portable.h's function where
// other files, or the processor's own, overload its name.
#pragma once

#if defined(__x86_64__)
#include "cpu/simd/x86.h"
#elif defined(__aarch64__)
#include "cpu/simd/arm.h"
#else
#include "cpu/simd/portable.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {
using portable::Max;
using portable::Stream;
}  // namespace
}  // namespace fusedops::FUSEDOPS_CPU_ISA
#endif
