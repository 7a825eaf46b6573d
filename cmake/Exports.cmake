# fusedops_export(TARGET): the library exports what csrc/exports.map lists, and nothing else.
function(fusedops_export target)
  set(exports ${PROJECT_SOURCE_DIR}/csrc/exports.map)
  target_link_options(${target} PRIVATE LINKER:--version-script=${exports})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
endfunction()
