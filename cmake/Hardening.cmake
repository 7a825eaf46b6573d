# fusedops_hardening: flags that make memory errors in the libraries end the process instead of being
# exploitable. They do not change the kernels' times, because their loops have neither arrays on the
# stack, which the protector would guard, nor calls that it would check.
add_library(fusedops_hardening INTERFACE)
include(CheckCXXCompilerFlag)
set(CMAKE_REQUIRED_FLAGS -Werror)  # clang only warns of a flag that the system has no use for
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection
        -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "FUSEDOPS_HAS${flag}" has_flag)
  check_cxx_compiler_flag(${flag} ${has_flag})
  if(${has_flag})
    target_compile_options(fusedops_hardening INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:${flag}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flag}>)
  endif()
endforeach()
unset(CMAKE_REQUIRED_FLAGS)
# _FORTIFY_SOURCE only warns without optimisation. Sanitizers check more, and replace the functions
# that it would call.
if(NOT FUSEDOPS_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(fusedops_hardening INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
endif()
# _GLIBCXX_ASSERTIONS enables the range checks of the standard library.
target_compile_definitions(fusedops_hardening INTERFACE $<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
if(NOT APPLE)  # whose linker does so always
  target_link_options(fusedops_hardening INTERFACE
    LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endif()
