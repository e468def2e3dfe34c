# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<checkout> -P floors.cmake
#
# The rules of the house that a compiler does not check:
#   1. An include never goes up a floor; folders of one floor never include each other in a circle.
#   2. Two policy folders never include each other; schedule lies below the other four.
#   3. A third-party header is included only by the component that is looked up with it.
#   4. No header of stagger::stagger includes a header that costs every user compile time.
#   5. Each source file has an SPDX line; no header is longer than 500 lines.
#   6. Each header includes core/requirements.hpp, by itself or through another; one that includes <coroutine>, which
#      is an error without -std=c++20, does so first.
#   7. No test's name contains a semicolon, at which Catch2's own CMake script would cut it in two.

cmake_minimum_required(VERSION 3.25)

set(floor_0 core)
set(floor_1 model cluster schedule)
set(floor_2 staleness partition placement collective)
set(floor_3 plan)
set(floor_4 engine)
set(floor_5 sim host cuda nccl mpi ranges report adapt json)
set(policies schedule staleness partition placement collective)
set(dear iostream functional ranges format regex)
set(system "^(unistd|fcntl|dirent|signal|pthread|sched)\\.h$|^sys/|^linux/")  # of the C library; no package brings them

include(${ROOT}/cmake/stagger-components.cmake)
set(faults "")
macro(fault text)
  string(APPEND faults "  ${text}\n")
endmacro()

set(folders "")
foreach(floor RANGE 0 5)
  foreach(folder IN LISTS floor_${floor})
    set(floor_of_${folder} ${floor})
    list(APPEND folders ${folder})
  endforeach()
endforeach()

file(GLOB_RECURSE headers RELATIVE ${ROOT}/include/stagger ${ROOT}/include/stagger/*.hpp)
set(edges "")
foreach(header IN LISTS headers)
  set(path ${ROOT}/include/stagger/${header})
  set(component stagger)
  foreach(name IN LISTS stagger_components)
    foreach(pattern IN LISTS stagger_${name}_HEADERS)
      string(REPLACE "*" "[^/]*" pattern "${pattern}")
      if(header MATCHES "^${pattern}$")
        set(component ${name})
      endif()
    endforeach()
  endforeach()
  string(REGEX MATCH "^[^/]+/" folder ${header})
  string(REPLACE "/" "" folder "${folder}")
  if(folder STREQUAL "")
    set(floor 6)  # umbrellas, above everything
    if(header STREQUAL "version.hpp")
      set(floor -1)
    endif()
  elseif(NOT folder IN_LIST folders)
    fault("${header}: the folder ${folder} stands on no floor; give it one in test/floors.cmake")
    continue()
  else()
    set(floor ${floor_of_${folder}})
  endif()

  file(STRINGS ${path} lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "#[ \t]*include[ \t]*<([^>]+)>")
      fault("${header}: '${line}': write #include <stagger/...>")
      continue()
    endif()
    set(included ${CMAKE_MATCH_1})
    if(included MATCHES "^stagger/([^/]+)/")
      set(other ${CMAKE_MATCH_1})
      if(NOT other IN_LIST folders OR other STREQUAL folder)
        continue()  # an unknown folder is reported for its own headers
      endif()
      if(floor_of_${other} GREATER floor)
        fault("${header} includes <${included}>: ${other} lies above ${folder}")
      elseif(folder IN_LIST policies AND other IN_LIST policies AND NOT other STREQUAL "schedule")
        fault("${header} includes <${included}>: policy folders do not include each other")
      elseif(floor_of_${other} EQUAL floor)
        list(APPEND edges ${folder}:${other})
        if("${other}:${folder}" IN_LIST edges)
          fault("${header} includes <${included}>: ${folder} and ${other} include each other")
        endif()
      endif()
    elseif(included MATCHES "^stagger/")
      if(NOT floor EQUAL 6 AND NOT included STREQUAL "stagger/version.hpp")
        fault("${header} includes <${included}>: an umbrella lies above everything")
      endif()
    elseif(included IN_LIST dear)
      if(component STREQUAL "stagger")
        fault("${header} includes <${included}>, which costs every user compile time")
      endif()
    elseif(included MATCHES "[./]" AND NOT included MATCHES "${system}")
      set(allowed FALSE)
      foreach(pattern IN LISTS stagger_${component}_INCLUDES)
        if(included MATCHES "${pattern}")
          set(allowed TRUE)
        endif()
      endforeach()
      if(NOT allowed)
        fault("${header} includes <${included}>: stagger::${component} does not bring it")
      endif()
    endif()
  endforeach()

  if(NOT lines MATCHES "<stagger/" AND NOT header MATCHES "^(version|core/requirements)\\.hpp$")
    fault("${header} includes nothing of ours: include <stagger/core/requirements.hpp> first")
  elseif(lines MATCHES "<coroutine>" AND NOT lines MATCHES "^#include <stagger/core/requirements\\.hpp>")
    fault("${header} includes <coroutine>: include <stagger/core/requirements.hpp> before it, as the first of all")
  endif()

  file(STRINGS ${path} lines)
  list(LENGTH lines length)
  if(length GREATER 500)
    fault("${header} has ${length} lines; a header has at most 500")
  endif()
endforeach()

file(GLOB_RECURSE sources
  ${ROOT}/include/*.hpp ${ROOT}/test/*.hpp ${ROOT}/test/*.cpp ${ROOT}/test/*.cu ${ROOT}/test/*.cmake
  ${ROOT}/examples/*.hpp ${ROOT}/examples/*.cpp ${ROOT}/examples/*.cu ${ROOT}/benchmark/*.hpp ${ROOT}/benchmark/*.cpp
  ${ROOT}/benchmark/*.cu ${ROOT}/test_package/*.cpp ${ROOT}/test_package/*.py ${ROOT}/cmake/*
  ${ROOT}/test/CMakeLists.txt ${ROOT}/examples/CMakeLists.txt ${ROOT}/benchmark/CMakeLists.txt
  ${ROOT}/test_package/CMakeLists.txt)
foreach(path IN LISTS sources ITEMS ${ROOT}/CMakeLists.txt ${ROOT}/conanfile.py ${ROOT}/run ${ROOT}/.ci/run)
  file(STRINGS ${path} lines LIMIT_COUNT 3)
  if(NOT lines MATCHES "SPDX-License-Identifier: Apache-2.0")
    file(RELATIVE_PATH path ${ROOT} ${path})
    fault("${path} does not say 'SPDX-License-Identifier: Apache-2.0' in its first lines")
  endif()
endforeach()

file(GLOB_RECURSE tests RELATIVE ${ROOT} ${ROOT}/test/unit/*_test.cpp)
foreach(path IN LISTS tests)
  file(STRINGS ${ROOT}/${path} lines REGEX "TEST_CASE[A-Z_]*\\(\"[^\"]*;")
  if(lines)
    fault("${path} has a test whose name contains a semicolon: ${lines}")
  endif()
endforeach()

if(faults)
  message(FATAL_ERROR "rules of the house (CONTRIBUTING.md) are broken:\n${faults}")
endif()
list(LENGTH headers count)
message(STATUS "${count} headers keep the rules of the house")
