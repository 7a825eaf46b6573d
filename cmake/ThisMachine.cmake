# The machines to build for. FUSEDOPS_NATIVE builds only for this machine, in a fraction of the time:
# for its widest instruction set, and for its GPUs, without CUDA if there is none. Otherwise the build
# is for all machines. Sets FUSEDOPS_CPU_ISAS and, with FUSEDOPS_NATIVE,
# FUSEDOPS_NATIVE_CUDA_ARCHITECTURES.
option(FUSEDOPS_NATIVE "build only for this machine" OFF)
if(NOT FUSEDOPS_NATIVE MATCHES "^(0|1|OFF|ON)$")
  message(FATAL_ERROR "FUSEDOPS_BUILD_NATIVE is '${FUSEDOPS_NATIVE}', wanted 1 or 0")
endif()

if(FUSEDOPS_NATIVE AND CMAKE_CROSSCOMPILING)
  message(FATAL_ERROR
    "FUSEDOPS_BUILD_NATIVE is 1, but the build is for ${CMAKE_SYSTEM_PROCESSOR}, not for this "
    "machine; wanted 0")
endif()

# The instruction sets beside the default one, from fewer instructions to more, with the names of
# their features in the compilers' options, which are also Linux's.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(isas avx2 avx512)
  set(FUSEDOPS_avx2_FEATURES avx2 fma f16c)
  set(FUSEDOPS_avx512_FEATURES avx512f avx512bw avx512dq avx512vl fma f16c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64" AND NOT APPLE)  # isa.cpp asks Linux alone
  set(isas bf16)
  set(FUSEDOPS_bf16_FEATURES bf16)
endif()

function(fusedops_is_here isa result)
  file(STRINGS /proc/cpuinfo flags REGEX "^(flags|Features)" LIMIT_COUNT 1)
  string(REGEX MATCHALL "[a-z0-9_]+" flags "${flags}")
  set(lacking ${FUSEDOPS_${isa}_FEATURES})
  list(REMOVE_ITEM lacking ${flags})
  if(lacking)
    set(${result} OFF PARENT_SCOPE)
  else()
    set(${result} ON PARENT_SCOPE)
  endif()
endfunction()

set(FUSEDOPS_CPU_ISAS default)
foreach(isa IN LISTS isas)
  if(FUSEDOPS_NATIVE)
    fusedops_is_here(${isa} is_here)
    if(is_here)
      set(FUSEDOPS_CPU_ISAS ${isa})
    endif()
  else()
    list(APPEND FUSEDOPS_CPU_ISAS ${isa})
  endif()
endforeach()
list(JOIN FUSEDOPS_CPU_ISAS " " isas_text)
message(STATUS "CPU kernels: for ${isas_text}")

if(FUSEDOPS_NATIVE)
  # "9.0" for each GPU, as 90-real; nothing where there is none.
  execute_process(
    COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE failed)
  set(FUSEDOPS_NATIVE_CUDA_ARCHITECTURES "")
  if(failed EQUAL 0)
    string(REGEX MATCHALL "[0-9]+[.][0-9]+" FUSEDOPS_NATIVE_CUDA_ARCHITECTURES "${capabilities}")
    list(REMOVE_DUPLICATES FUSEDOPS_NATIVE_CUDA_ARCHITECTURES)
    list(TRANSFORM FUSEDOPS_NATIVE_CUDA_ARCHITECTURES REPLACE "[.]" "")
    list(TRANSFORM FUSEDOPS_NATIVE_CUDA_ARCHITECTURES APPEND -real)
  endif()
endif()
