# SPDX-License-Identifier: Apache-2.0
# stagger_add_separate(<target> [mpi] [cuda] [nccl]): adds a static library with the engine and the devices of these
# components. Targets that link it include the same headers as without it, and compile in less than half the time.

function(stagger_add_separate target)
  set(content "#include <stagger/separate.hpp>\n")
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  add_library(${target} STATIC ${source})
  target_link_libraries(${target} PUBLIC stagger::stagger)
  target_compile_definitions(${target} PUBLIC STAGGER_SEPARATE_COMPILATION)
  foreach(component IN LISTS ARGN)
    if(NOT component MATCHES "^(mpi|cuda|nccl)$")
      message(FATAL_ERROR "stagger_add_separate: ${component} is no component with a device; there are mpi, cuda and nccl.")
    endif()
    string(APPEND content "#include <stagger/${component}/separate.hpp>\n")
    target_link_libraries(${target} PUBLIC stagger::${component})
    string(TOUPPER ${component} upper)
    target_compile_definitions(${target} PUBLIC STAGGER_SEPARATE_COMPILATION_${upper})
  endforeach()
  file(CONFIGURE OUTPUT ${source} CONTENT "${content}")
endfunction()
