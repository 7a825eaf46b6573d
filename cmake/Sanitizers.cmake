# fusedops_sanitizers: the libraries as tests/sanitize runs them. FUSEDOPS_SANITIZE=address is
# AddressSanitizer with UndefinedBehaviorSanitizer, =thread ThreadSanitizer; empty, as installed.
set(FUSEDOPS_SANITIZE "" CACHE STRING "address, thread or empty")
set_property(CACHE FUSEDOPS_SANITIZE PROPERTY STRINGS "" address thread)
add_library(fusedops_sanitizers INTERFACE)
if(FUSEDOPS_SANITIZE STREQUAL "")
  return()
elseif(FUSEDOPS_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined)
  # A report ends the process.
  set(options -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Checks of addresses are calls: in place they double the kernels' code.
    list(APPEND options --param=asan-instrumentation-with-call-threshold=0)
  endif()
elseif(FUSEDOPS_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
  set(options)
else()
  message(FATAL_ERROR
    "FUSEDOPS_SANITIZE is '${FUSEDOPS_SANITIZE}', wanted address, thread or nothing")
endif()
# -O1 -fno-inline: the kernels' loops, optimised and inlined as installed, and with a check at each
# access, take the compiler ten times as long.
target_compile_options(fusedops_sanitizers INTERFACE
  ${sanitizers} ${options} -O1 -fno-inline -g1 -fno-omit-frame-pointer)
target_link_options(fusedops_sanitizers INTERFACE ${sanitizers})
