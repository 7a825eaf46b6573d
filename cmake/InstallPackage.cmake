# Installs the libraries, build_info.json and the files for find_package(fusedops) into <prefix>/lib,
# and the header of the C interface into <prefix>/include.
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fusedops)
set(libraries fusedops_kernels fusedops fusedops_c)
if(FUSEDOPS_CUDA_BUILT)
  list(APPEND libraries fusedops_kernels_cuda fusedops_cuda fusedops_c_cuda)
endif()
install(TARGETS ${libraries} EXPORT fusedopsTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET op_call)
  install(TARGETS op_call LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES csrc/include/fusedops/c_api.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fusedops)
install(FILES ${PROJECT_BINARY_DIR}/build_info.json DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT fusedopsTargets NAMESPACE fusedops:: DESTINATION ${config_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/fusedopsConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES
  cmake/fusedopsConfig.cmake ${PROJECT_BINARY_DIR}/fusedopsConfigVersion.cmake
  DESTINATION ${config_dir})
