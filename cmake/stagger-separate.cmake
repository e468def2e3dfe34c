# SPDX-License-Identifier: Apache-2.0
# stagger_add_separate(<target>): a static library of yours with the engine in it. What links it includes
# the same headers as before, and compiles them in less than half the time.

function(stagger_add_separate target)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include <stagger/separate.hpp>\n")
  add_library(${target} STATIC ${source})
  target_link_libraries(${target} PUBLIC stagger::stagger)
  target_compile_definitions(${target} PUBLIC STAGGER_SEPARATE_COMPILATION)
endfunction()
