# fusedops_sanitizers: flags for the libraries in tests/sanitize. FUSEDOPS_SANITIZE=address is
# AddressSanitizer with UndefinedBehaviorSanitizer, =thread ThreadSanitizer; empty is no sanitizer.
set(FUSEDOPS_SANITIZE "" CACHE STRING "address, thread or empty")
set_property(CACHE FUSEDOPS_SANITIZE PROPERTY STRINGS "" address thread)
add_library(fusedops_sanitizers INTERFACE)
if(FUSEDOPS_SANITIZE STREQUAL "")
  return()
elseif(FUSEDOPS_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined)
  # An undefined-behaviour report ends the process.
  set(options -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Address checks are calls, because inline checks double the size of the kernels.
    list(APPEND options --param=asan-instrumentation-with-call-threshold=0)
  endif()
elseif(FUSEDOPS_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
  set(options)
else()
  message(FATAL_ERROR
    "FUSEDOPS_SANITIZE is '${FUSEDOPS_SANITIZE}', wanted address, thread or nothing")
endif()
# -O1 -fno-inline, because with full optimisation and inlining the checks at each access make
# compilation ten times as long.
target_compile_options(fusedops_sanitizers INTERFACE
  ${sanitizers} ${options} -O1 -fno-inline -g1 -fno-omit-frame-pointer)
target_link_options(fusedops_sanitizers INTERFACE ${sanitizers})
