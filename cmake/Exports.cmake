# What the linkers of Linux and macOS name differently. A library is looked for where the one is that
# needs it, and the linker of macOS refuses undefined symbols anyway.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
if(APPLE)
  set(CMAKE_INSTALL_RPATH "@loader_path")
  set(CMAKE_SHARED_LIBRARY_SUFFIX .so)  # as Python finds them
else()
  set(CMAKE_INSTALL_RPATH "$ORIGIN")
  set(FUSEDOPS_NO_UNDEFINED -Wl,--no-undefined)
endif()

# fusedops_export(TARGET): the library exports what csrc/exports.map lists, and nothing else. On macOS
# it exports what is not hidden: symbols are looked for in the library that they were linked from.
function(fusedops_export target)
  if(APPLE)
    return()
  endif()
  set(exports ${PROJECT_SOURCE_DIR}/csrc/exports.map)
  target_link_options(${target} PRIVATE LINKER:--version-script=${exports})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
endfunction()
