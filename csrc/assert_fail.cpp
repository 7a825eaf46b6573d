// Defines the function that GCC's containers call where _GLIBCXX_ASSERTIONS finds a wrong index.
// The standard library exports it only since GCC 12 (GLIBCXX_3.4.30), and some builds of torch
// export a copy, so a library that took it from either would load on fewer machines. This one stays
// in the library.
#undef _GLIBCXX_ASSERTIONS  // which would declare the function with default visibility

#include <stdio.h>
#include <stdlib.h>

namespace std {

[[noreturn, gnu::visibility("hidden")]] void __glibcxx_assert_fail(
    const char* file, int line, const char* function, const char* condition) noexcept {
  fprintf(stderr, "%s:%d: %s: Assertion '%s' failed.\n", file, line, function, condition);
  abort();
}

}  // namespace std
