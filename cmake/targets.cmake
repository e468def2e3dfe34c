# SPDX-License-Identifier: Apache-2.0
# One INTERFACE target for each component, and the look-up of dependencies.

include(${CMAKE_CURRENT_LIST_DIR}/stagger-components.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/stagger-separate.cmake)

set(stagger_glob_depends "")
if(PROJECT_IS_TOP_LEVEL)
  set(stagger_glob_depends CONFIGURE_DEPENDS)  # as a subproject, the folders are not watched
endif()
set(stagger_include ${PROJECT_SOURCE_DIR}/include/stagger)
file(GLOB_RECURSE stagger_rest ${stagger_glob_depends} ${stagger_include}/*.hpp)
foreach(name IN LISTS stagger_components)
  set(stagger_${name}_files "")
  foreach(pattern IN LISTS stagger_${name}_HEADERS)
    file(GLOB files ${stagger_glob_depends} ${stagger_include}/${pattern})
    list(APPEND stagger_${name}_files ${files})
  endforeach()
  list(REMOVE_ITEM stagger_rest ${stagger_${name}_files} "")
endforeach()
set(stagger_stagger_files ${stagger_rest})

set(stagger_present "")  # components with headers or flags
foreach(name IN LISTS stagger_components)
  if(stagger_${name}_files OR stagger_${name}_OPTIONS)
    list(APPEND stagger_present ${name})
    add_library(stagger_${name} INTERFACE)
    add_library(stagger::${name} ALIAS stagger_${name})
    if(stagger_${name}_files)
      # INTERFACE: with PUBLIC, projects that use stagger would have a target that builds nothing.
      target_sources(stagger_${name} INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include
                     FILES ${stagger_${name}_files})
      target_compile_features(stagger_${name} INTERFACE cxx_std_20)  # not cuda_std_20: unknown to CMake 3.25.1
    endif()
    foreach(option IN LISTS stagger_${name}_OPTIONS)
      target_compile_options(stagger_${name} INTERFACE
        $<$<OR:$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>,$<COMPILE_LANG_AND_ID:C,GNU,Clang,AppleClang>>:${option}>)
    endforeach()
    target_link_libraries(stagger_${name} INTERFACE ${stagger_${name}_LINKS})
    set_target_properties(stagger_${name} PROPERTIES EXPORT_NAME ${name})
  endif()
endforeach()

# stagger_available: the components that can be linked here. Dependencies are looked up in this scope,
# because the targets above resolve the names they link in the scope that made them.
set(stagger_available "")
set(stagger_wanted stagger same_bits ${STAGGER_COMPONENTS})
if(STAGGER_COMPONENTS STREQUAL "AUTO")
  set(stagger_wanted ${stagger_present})
endif()
foreach(name IN LISTS stagger_wanted)
  if(NOT name IN_LIST stagger_present)
    list(JOIN stagger_present ", " stagger_present)
    message(FATAL_ERROR "stagger: there is no component ${name}; there are ${stagger_present}.")
  endif()
endforeach()
stagger_closure(stagger_wanted "${stagger_wanted}")
foreach(name IN LISTS stagger_wanted)
  stagger_look_up(stagger_missing ${name})
  if(NOT stagger_missing)
    list(APPEND stagger_available ${name})
  elseif(STAGGER_COMPONENTS STREQUAL "AUTO" AND NOT name STREQUAL "stagger")
    message(STATUS "stagger: ${stagger_missing}")
  else()
    message(FATAL_ERROR "stagger: ${stagger_missing}")
  endif()
endforeach()
