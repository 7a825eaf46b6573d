// Selects the primitives: operations on vectors for which the language has no operator. Those that
// Google Highway has too have its names.
//
// portable.h defines each primitive without intrinsics. A processor's file defines those for
// which the processor has an instruction, and takes the others from portable.h.
#pragma once

#if defined(__x86_64__)
#include "cpu/simd/x86.h"
#elif defined(__aarch64__)
#include "cpu/simd/arm.h"
#else
#include "cpu/simd/portable.h"

namespace fusedops::FUSEDOPS_CPU_ISA {
namespace {
using namespace portable;
}
}  // namespace fusedops::FUSEDOPS_CPU_ISA
#endif
