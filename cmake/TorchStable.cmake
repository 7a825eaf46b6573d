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

# A cross build links a stand-in with the stable functions that this machine's libtorch_cpu.so has.
file(GLOB torch_cpu ${FUSEDOPS_TORCH_DIR}/lib/libtorch_cpu.*)
if(CMAKE_CROSSCOMPILING)
  execute_process(COMMAND nm -D --defined-only ${torch_cpu}
    OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " T (aoti_)?torch_[A-Za-z0-9_]+\n" symbols "${symbols}")
  list(TRANSFORM symbols REPLACE " T (.+)\n" "extern \"C\" void \\1() {}\n" OUTPUT_VARIABLE stub)
  string(CONCAT stub ${stub})
  file(CONFIGURE OUTPUT torch_cpu_stub.cpp CONTENT "${stub}")
  add_library(torch_cpu_stub SHARED ${CMAKE_CURRENT_BINARY_DIR}/torch_cpu_stub.cpp)
  set_target_properties(torch_cpu_stub PROPERTIES
    OUTPUT_NAME torch_cpu LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/stub
    CXX_VISIBILITY_PRESET default)
  set(torch_cpu $<TARGET_FILE:torch_cpu_stub>)
endif()

set(FUSEDOPS_TORCH_TARGET 0x020a000000000000)
add_library(torch_stable INTERFACE)
target_include_directories(torch_stable SYSTEM INTERFACE ${FUSEDOPS_TORCH_DIR}/include)
target_compile_definitions(torch_stable INTERFACE
  TORCH_TARGET_VERSION=${FUSEDOPS_TORCH_TARGET}ULL TORCH_STABLE_ONLY)
if(APPLE)
  target_link_libraries(torch_stable INTERFACE ${torch_cpu})
else()
  target_link_libraries(torch_stable INTERFACE
    stdc++ -Wl,--no-as-needed ${torch_cpu} -Wl,--as-needed)
endif()
