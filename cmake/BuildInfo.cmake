# build_info.json, installed next to the libraries, records what was built and with which tools.
# `python -m fusedops env` shows it.
function(json_list result)
  list(TRANSFORM ARGN PREPEND "\"" OUTPUT_VARIABLE quoted)
  list(TRANSFORM quoted APPEND "\"")
  list(JOIN quoted ", " joined)
  set(${result} "[${joined}]" PARENT_SCOPE)
endfunction()

json_list(isas_json ${FUSEDOPS_CPU_ISAS})
if(FUSEDOPS_CUDA_BUILT)
  set(cuda_built true)
  set(nvcc_json "\"${CMAKE_CUDA_COMPILER_VERSION}\"")
  json_list(architectures_json ${CMAKE_CUDA_ARCHITECTURES})
else()
  set(cuda_built false)
  set(nvcc_json null)
  set(architectures_json "[]")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/build_info.json CONTENT [[{
  "version": "@PROJECT_VERSION@",
  "build_type": "@CMAKE_BUILD_TYPE@",
  "torch_headers": "@FUSEDOPS_TORCH_VERSION@",
  "torch_target": "@FUSEDOPS_TORCH_TARGET@",
  "compiler": "@CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@",
  "cmake": "@CMAKE_VERSION@",
  "cpu_isas": @isas_json@,
  "cuda": {
    "built": @cuda_built@,
    "nvcc": @nvcc_json@,
    "architectures": @architectures_json@,
    "reason": "@FUSEDOPS_CUDA_REASON@"
  }
}
]] @ONLY)
