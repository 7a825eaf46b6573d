# torch_stable: the headers of LibTorch's stable ABI, restricted to what torch 2.10 has, and
# libtorch_cpu.so. The needed-entry for libtorch_cpu.so must stay: Python loads torch's libraries
# locally, and without the entry their symbols are not found. libstdc++ comes first, because torch
# exports some of its functions too, without a version, and not every torch the same ones.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
if(NOT FUSEDOPS_TORCH_DIR)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '', end='')"
    OUTPUT_VARIABLE FUSEDOPS_TORCH_DIR COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS ${FUSEDOPS_TORCH_DIR}/include/torch/csrc/stable/library.h)
  message(FATAL_ERROR
    "No torch >= 2.10 for ${Python3_EXECUTABLE} (looked for torch/csrc/stable/library.h in "
    "'${FUSEDOPS_TORCH_DIR}'). Install torch first, then run: pip install --no-build-isolation .")
endif()
file(STRINGS ${FUSEDOPS_TORCH_DIR}/version.py torch_version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" FUSEDOPS_TORCH_VERSION "${torch_version_line}")

set(FUSEDOPS_TORCH_TARGET 0x020a000000000000)
add_library(torch_stable INTERFACE)
target_include_directories(torch_stable SYSTEM INTERFACE ${FUSEDOPS_TORCH_DIR}/include)
target_compile_definitions(torch_stable INTERFACE
  TORCH_TARGET_VERSION=${FUSEDOPS_TORCH_TARGET}ULL TORCH_STABLE_ONLY)
target_link_libraries(torch_stable INTERFACE
  stdc++ -Wl,--no-as-needed ${FUSEDOPS_TORCH_DIR}/lib/libtorch_cpu.so -Wl,--as-needed)
