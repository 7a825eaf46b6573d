// Defines the function that GCC's containers call where _GLIBCXX_ASSERTIONS finds a wrong index.
// The standard library exports it only since GCC 12 (GLIBCXX_3.4.30), and some builds of torch
// export a copy, so a library that took it from either would load on fewer machines. The definition
// here is hidden, so that no other library takes it from this one.
#undef _GLIBCXX_ASSERTIONS  // the macro would declare the function with default visibility

#include <stdio.h>
#include <stdlib.h>

namespace std {

[[noreturn, gnu::visibility("hidden")]] void __glibcxx_assert_fail(
    const char* file, int line, const char* function, const char* condition) noexcept {
  fprintf(stderr, "%s:%d: %s: Assertion '%s' failed.\n", file, line, function, condition);
  abort();
}

}  // namespace std
