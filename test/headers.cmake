# SPDX-License-Identifier: Apache-2.0
# Each public header alone and twice in one file (guards), and all of them in one program (a missing
# inline), for the compiler of this build; for every further one, the headers of a folder in one file,
# those in its detail/ too.

set(here ${CMAKE_CURRENT_BINARY_DIR}/headers)
file(WRITE ${here}/main.cpp.new "int main() {}\n")
file(COPY_FILE ${here}/main.cpp.new ${here}/main.cpp ONLY_IF_DIFFERENT)
add_custom_target(headers)

set(further ${STAGGER_HEADER_COMPILERS})
if(STAGGER_HEADER_COMPILERS STREQUAL "AUTO")
  set(further g++ clang++-19 clang++-14)
endif()
set(compilers "")
file(REAL_PATH ${CMAKE_CXX_COMPILER} own)
foreach(compiler IN LISTS further)
  find_program(stagger_compiler_${compiler} ${compiler})
  mark_as_advanced(stagger_compiler_${compiler})
  if(stagger_compiler_${compiler})
    file(REAL_PATH ${stagger_compiler_${compiler}} real)
    if(NOT real STREQUAL own)
      list(APPEND compilers ${compiler})
    endif()
  elseif(NOT STAGGER_HEADER_COMPILERS STREQUAL "AUTO")
    message(FATAL_ERROR "stagger: STAGGER_HEADER_COMPILERS names ${compiler}, which was not found.")
  endif()
endforeach()

foreach(component IN LISTS stagger_available)
  if(NOT stagger_${component}_files)
    continue()
  endif()
  set(sources "")
  foreach(header IN LISTS stagger_${component}_files)
    if(header MATCHES "\\.cuh$")
      continue()  # for nvcc alone
    endif()
    file(RELATIVE_PATH header ${PROJECT_SOURCE_DIR}/include ${header})
    file(CONFIGURE OUTPUT ${here}/${header}.cpp CONTENT "#include <${header}>\n#include <${header}>\n")
    list(APPEND sources ${here}/${header}.cpp)
  endforeach()

  set(alone ${sources})
  list(FILTER alone EXCLUDE REGEX "/detail/")
  list(FILTER alone EXCLUDE REGEX "/separate\\.hpp\\.cpp$")  # all the engine's code; the unit tests' copy is compiled so
  add_executable(headers_${component} ${alone} ${here}/main.cpp)
  target_link_libraries(headers_${component} PRIVATE stagger::${component} stagger_developer)
  target_compile_options(headers_${component} PRIVATE -O0 -Wsign-conversion)
  add_dependencies(headers headers_${component})
  add_test(NAME headers.${component} COMMAND headers_${component})
  set_tests_properties(headers.${component} PROPERTIES TIMEOUT 60 LABELS headers)

  foreach(compiler IN LISTS compilers)
    if(compiler STREQUAL "clang++-14" AND NOT component STREQUAL "stagger")
      continue()  # clang 14 is a gate for the core
    endif()
    # By folder, the last name first: that a header needs no other, the compiler of this build has seen.
    set(folders_of_headers "")
    foreach(source IN LISTS sources)
      file(RELATIVE_PATH header ${here} ${source})
      string(REGEX REPLACE "\\.cpp$" "" header ${header})
      if(compiler STREQUAL "clang++-14" AND NOT header MATCHES "^stagger/(core|model|schedule|engine|host)/")
        continue()
      endif()
      string(REGEX MATCH "^stagger/[a-z_]+/" folder ${header})
      string(REGEX REPLACE "^stagger/|/$" "" folder "${folder}")
      set(folder ${component}_${folder})
      list(APPEND folders_of_headers ${folder})
      list(PREPEND headers_in_${folder} ${header})
    endforeach()
    list(REMOVE_DUPLICATES folders_of_headers)
    # What the component brings that the compiler does not find by itself.
    set(folders "$<FILTER:$<TARGET_PROPERTY:headers_${component},INCLUDE_DIRECTORIES>,EXCLUDE,^/usr/include$|^${PROJECT_SOURCE_DIR}/include$>")
    set(definitions "$<TARGET_PROPERTY:headers_${component},COMPILE_DEFINITIONS>")
    set(objects "")
    foreach(folder IN LISTS folders_of_headers)
      list(TRANSFORM headers_in_${folder} REPLACE "(.+)" "#include <\\1>" OUTPUT_VARIABLE content)
      unset(headers_in_${folder})
      list(JOIN content "\n" content)
      set(source ${here}/${compiler}/${folder}.cpp)
      file(CONFIGURE OUTPUT ${source} CONTENT "${content}\n")
      set(object ${source}.o)
      add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${source} VERBATIM COMMAND_EXPAND_LISTS
        COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${stagger_compiler_${compiler}} -std=c++20 -Wall -Wextra -Wpedantic
                -Wconversion -Wsign-conversion -Wshadow -Werror -I${PROJECT_SOURCE_DIR}/include
                "$<$<BOOL:${folders}>:-isystem$<SEMICOLON>$<JOIN:${folders},$<SEMICOLON>-isystem$<SEMICOLON>>>"
                "$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},$<SEMICOLON>-D>>" -MD -MF ${object}.d -MT ${object}
                -c ${source} -o ${object}
        COMMENT "Checking the headers ${folder} with ${compiler}")
      list(APPEND objects ${object})
    endforeach()
    add_custom_target(headers_${component}_${compiler} ALL DEPENDS ${objects})
    add_dependencies(headers headers_${component}_${compiler})
  endforeach()
endforeach()

# What a .cu file may include, in one file for each component: nvcc's front end refuses some C++ that
# g++ and clang take.
find_package(CUDAToolkit QUIET)
foreach(component IN ITEMS cuda nccl)
  if(NOT component IN_LIST stagger_available OR NOT EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}" OR NOT further)
    continue()
  endif()
  set(includes "")
  foreach(header IN LISTS stagger_${component}_files)
    file(RELATIVE_PATH header ${PROJECT_SOURCE_DIR}/include ${header})
    string(APPEND includes "#include <${header}>\n")
  endforeach()
  set(source ${here}/${component}.cu)
  file(CONFIGURE OUTPUT ${source} CONTENT "${includes}")
  set(folders "$<TARGET_PROPERTY:headers_${component},INCLUDE_DIRECTORIES>")
  add_custom_command(OUTPUT ${source}.o DEPFILE ${source}.d DEPENDS ${source} VERBATIM COMMAND_EXPAND_LISTS
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -arch=sm_90 "-I$<JOIN:${folders},$<SEMICOLON>-I>"
            -MD -MF ${source}.d -MT ${source}.o -c ${source} -o ${source}.o
    COMMENT "Checking the headers of ${component} with nvcc")
  add_custom_target(headers_${component}_nvcc ALL DEPENDS ${source}.o)
  add_dependencies(headers headers_${component}_nvcc)
endforeach()
