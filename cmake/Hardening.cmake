# fusedops_hardening: what makes a mistake in the libraries end the process instead of being of use to
# somebody. Costs nothing that the kernels' times show: their loops hold no array on the stack that
# the protector would guard, nor calls that it would check.
add_library(fusedops_hardening INTERFACE)
include(CheckCXXCompilerFlag)
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER "FUSEDOPS_HAS${flag}" has_flag)
  check_cxx_compiler_flag(${flag} ${has_flag})
  if(${has_flag})
    target_compile_options(fusedops_hardening INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:${flag}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flag}>)
  endif()
endforeach()
# It says nothing without optimisation but that it needs it; sanitizers check more, and replace what
# it would call.
if(NOT FUSEDOPS_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(fusedops_hardening INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
endif()
# Range checks of the standard library.
target_compile_definitions(fusedops_hardening INTERFACE $<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
target_link_options(fusedops_hardening INTERFACE
  LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
