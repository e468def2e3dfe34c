# SPDX-License-Identifier: Apache-2.0
# find_package(stagger [COMPONENTS host ...]): defines stagger::stagger, stagger::same_bits and the requested components,
# and looks up the dependencies of these only.

cmake_policy(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/stagger-components.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/stagger-separate.cmake")

set(stagger_FOUND TRUE)
stagger_closure(stagger_requested "stagger;same_bits;${stagger_FIND_COMPONENTS}")
foreach(stagger_name IN LISTS stagger_requested)
  set(stagger_missing "")
  if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/stagger-${stagger_name}-targets.cmake")
    stagger_look_up(stagger_missing ${stagger_name})
  else()
    list(JOIN stagger_components ", " stagger_there)
    set(stagger_missing "there is no component ${stagger_name}; there are ${stagger_there}.")
  endif()
  if(stagger_missing)
    set(stagger_${stagger_name}_FOUND FALSE)
    if(stagger_name STREQUAL "stagger" OR stagger_FIND_REQUIRED_${stagger_name})
      set(stagger_FOUND FALSE)
    endif()
    string(APPEND stagger_NOT_FOUND_MESSAGE "${stagger_missing} ")
  else()
    set(stagger_${stagger_name}_FOUND TRUE)
    include("${CMAKE_CURRENT_LIST_DIR}/stagger-${stagger_name}-targets.cmake")
  endif()
endforeach()
