# find_package(fusedops): the targets fusedops::fusedops and, where CUDA was built,
# fusedops::fusedops_cuda. Linked to either, a program has the ops in torch's dispatcher.
include(${CMAKE_CURRENT_LIST_DIR}/fusedopsTargets.cmake)
# A program names no symbol of a library that only registers ops, and linkers told --as-needed, as
# torch's own link line tells them, drop what nothing names.
foreach(library fusedops fusedops_cuda)
  if(TARGET fusedops::${library})
    target_link_libraries(fusedops::${library} INTERFACE
      "-Wl,--push-state,--no-as-needed,$<TARGET_FILE:fusedops::${library}>,--pop-state")
  endif()
endforeach()
