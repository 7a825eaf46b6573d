# find_package(fusedops), after find_package(Torch): a program that links fusedops::fusedops has the
# ops in torch's dispatcher, those for CUDA too where fusedops and torch were built for it.
# Without Torch, fusedops::fusedops_c and fusedops::fusedops_c_cuda are the C interface.
include(${CMAKE_CURRENT_LIST_DIR}/fusedopsTargets.cmake)
# A program references no symbol of a library that only registers ops. With --as-needed, which torch's
# own link line has, the linker would drop it; that of macOS does not.
foreach(library fusedops fusedops_cuda)
  if(TARGET fusedops::${library} AND NOT APPLE)
    target_link_libraries(fusedops::${library} INTERFACE
      "-Wl,--push-state,--no-as-needed,$<TARGET_FILE:fusedops::${library}>,--pop-state")
  endif()
endforeach()
if(TARGET fusedops::fusedops_cuda AND TARGET torch_cuda)
  target_link_libraries(fusedops::fusedops INTERFACE fusedops::fusedops_cuda)
endif()
