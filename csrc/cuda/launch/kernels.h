// find_kernel() returns the kernel that was compiled for the dtype and the plan of a launch.
//
// Each family of kernels (softmax, norm and so on) has a header kernels.h, which lists them with
// the macros below. find_kernel() instantiates each of them for every dtype and every plan of its
// pass in plans.def, and for nothing else.
#pragma once

#include <utility>

#include "cuda/launch/dispatch.h"

namespace fusedops::cuda {

template <class T>
inline constexpr DType kDTypeOf = std::is_same_v<T, double> ? DType::kFloat64
    : std::is_same_v<T, float>                              ? DType::kFloat32
    : std::is_same_v<T, Half>                               ? DType::kFloat16
                                                            : DType::kBFloat16;

// Defines `Name`, which describes a kernel to find_kernel(). The kernel's template arguments may
// contain T, the type of the rows that are read, kWidth, kVectors and kThreads.
#define KERNEL(Name, pass, scope, kernel, ...)                 \
  struct Name {                                                \
    static constexpr Pass kPass = Pass::pass;                  \
    static constexpr Scope kScope = Scope::scope;              \
    template <class T, int kWidth, int kVectors, int kThreads> \
    static constexpr auto instance() {                         \
      return &kernel<__VA_ARGS__>;                             \
    }                                                          \
  };
// Describes a kernel that holds kVectors vectors of a row in each thread. Only what its template
// arguments have besides T, kWidth and kVectors is listed.
#define TILE_KERNEL(Name, pass, scope, kernel, ...) \
  KERNEL(Name, pass, scope, kernel, T, kWidth, kVectors, ##__VA_ARGS__)
// Defines Name(dtype), which returns the kernel with the accumulators for rows of that dtype. It is
// a template so that the kernel is compiled only in files that call it.
#define ACCUMULATOR_KERNEL(Name, kernel)                                \
  template <class = void>                                               \
  auto Name(DType dtype) {                                              \
    return dtype == DType::kFloat64 ? &kernel<double> : &kernel<float>; \
  }
// Defines Name(), which returns a kernel that exists only with float accumulators.
#define FLOAT_KERNEL(Name, kernel) \
  template <class = void>          \
  auto Name() {                    \
    return &kernel<float>;         \
  }

// Names the list of plans that the library's kernels are compiled for.
struct ShippedPlans {
  static constexpr const auto& kList = kPlans;
};
template <class Kernel, class Plans>
inline constexpr PlanRange kPlansOf = plans_of(Kernel::kPass, Plans::kList);

// Returns the kernel for rows of Half with the first listed plan that has one.
template <class Kernel, size_t kIndex = 0>
constexpr auto first_instance() {
  constexpr ListedPlan listed = kPlansOf<Kernel, ShippedPlans>.first[kIndex];
  constexpr int kWidth = listed.vectors == Vectors::kWide16 ? kMaxVectorBytes / sizeof(Half) : 1;
  if constexpr (listed.scope != Kernel::kScope) {
    return first_instance<Kernel, kIndex + 1>();
  } else {
    static_assert(width_in(listed, kWidth, sizeof(Half)) == kWidth);
    return Kernel::template instance<Half, kWidth, listed.elements / kWidth, listed.threads>();
  }
}
// A kernel has the same type for all dtypes and plans.
template <class Kernel>
using FunctionOf = decltype(first_instance<Kernel>());

// Says whether a kernel takes a stack of tensors. Only kernels with 16-byte vectors exist for
// stacks: with narrower vectors, the tensors of a stack are launched one by one.
template <class Kernel>
inline constexpr bool kTakesStack = std::is_invocable_v<FunctionOf<Kernel>, SoftmaxStack> ||
    std::is_invocable_v<FunctionOf<Kernel>, NormStack> ||
    std::is_invocable_v<FunctionOf<Kernel>, NormStackBackward>;

// Sets `function` to the kernel for listed plan kIndex, if this plan has that kernel for T and
// kWidth, with these elements a thread and this fixed number of threads. Else does nothing.
template <class Kernel, class Plans, class T, int kWidth, size_t kIndex>
void find_in_plan(int32_t elements, int32_t threads, FunctionOf<Kernel>& function) {
  constexpr ListedPlan listed = kPlansOf<Kernel, Plans>.first[kIndex];
  constexpr bool kHasKernel = listed.scope == Kernel::kScope &&
      width_in(listed, kWidth, sizeof(T)) == kWidth && (!kTakesStack<Kernel> || kIsWide<T, kWidth>);
  if constexpr (kHasKernel) {
    if (listed.elements == elements && listed.threads == threads) {
      function = Kernel::template instance<T, kWidth, listed.elements / kWidth, listed.threads>();
    }
  }
}

// Returns the kernel for the listed plan that has these elements and this fixed number of threads,
// or null.
template <class Kernel, class Plans, class T, int kWidth, size_t... kIndex>
FunctionOf<Kernel> find_in_plans(
    int32_t elements, int32_t threads, std::index_sequence<kIndex...>) {
  FunctionOf<Kernel> function = nullptr;
  (find_in_plan<Kernel, Plans, T, kWidth, kIndex>(elements, threads, function), ...);
  return function;
}

// Returns the kernel for vectors of `width` elements of T, or null. There are kernels for single
// elements, for vectors of 16 bytes (but not of doubles) and for pairs of 16-bit elements.
template <class Kernel, class Plans, class T>
FunctionOf<Kernel> find_width(int32_t width, int32_t elements, int32_t threads) {
  constexpr int kWidest = sizeof(T) == 8 ? 1 : kMaxVectorBytes / sizeof(T);
  constexpr std::make_index_sequence<kPlansOf<Kernel, Plans>.count> kEach{};
  if (width == 1) return find_in_plans<Kernel, Plans, T, 1>(elements, threads, kEach);
  if (width == kWidest) return find_in_plans<Kernel, Plans, T, kWidest>(elements, threads, kEach);
  if constexpr (sizeof(T) == 2) {
    if (width == 2) return find_in_plans<Kernel, Plans, T, 2>(elements, threads, kEach);
  }
  return nullptr;
}

// Returns the kernel for rows of this dtype, vectors of `width`, `elements` a thread and a fixed
// number of threads (0 if it is not fixed), or null if there is none.
template <class Kernel, class Plans = ShippedPlans>
FunctionOf<Kernel> find_kernel(
    DType dtype, int32_t width, int32_t elements = 0, int32_t threads = 0) {
#define DTYPE(T)                                                   \
  if (dtype == kDTypeOf<T>) {                                      \
    return find_width<Kernel, Plans, T>(width, elements, threads); \
  }
#include "cuda/launch/plans.def"
  return nullptr;
}

template <class Kernel, class Plans = ShippedPlans>
FunctionOf<Kernel> find_kernel(DType dtype, const RowPlan& plan) {
  return find_kernel<Kernel, Plans>(dtype, plan.width, plan.elements, plan.fixed_threads);
}

}  // namespace fusedops::cuda
