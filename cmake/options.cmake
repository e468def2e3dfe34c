# SPDX-License-Identifier: Apache-2.0
# All options with their defaults, and an error for any other STAGGER_* variable.

option(STAGGER_BUILD_TESTS "Build the tests (needs Catch2)" ${PROJECT_IS_TOP_LEVEL})
option(STAGGER_BUILD_EXAMPLES "Build the examples (needs Eigen and CLI11)" ${PROJECT_IS_TOP_LEVEL})
option(STAGGER_BUILD_BENCHMARKS "Build the benchmarks (needs Google Benchmark)" OFF)
option(STAGGER_INSTALL "Generate install rules" ${PROJECT_IS_TOP_LEVEL})
set(stagger_default "")
if(PROJECT_IS_TOP_LEVEL)
  set(stagger_default AUTO)
endif()
set(STAGGER_COMPONENTS "${stagger_default}" CACHE STRING
    "Components whose dependencies are looked up here, for use as a subproject; AUTO: those that are found")
set(STAGGER_SANITIZE "" CACHE STRING "Sanitizer of tests and examples: address+undefined, thread, or empty")
set_property(CACHE STAGGER_SANITIZE PROPERTY STRINGS "" address+undefined thread)
set(STAGGER_HEADER_COMPILERS AUTO CACHE STRING
    "Further compilers that must accept every header; AUTO: those of g++, clang++-19 and clang++-14 that are found")

set(stagger_options STAGGER_BUILD_TESTS STAGGER_BUILD_EXAMPLES STAGGER_BUILD_BENCHMARKS STAGGER_INSTALL
                    STAGGER_COMPONENTS STAGGER_SANITIZE STAGGER_HEADER_COMPILERS)

if(PROJECT_IS_TOP_LEVEL)
  get_cmake_property(stagger_cache CACHE_VARIABLES)
  list(FILTER stagger_cache INCLUDE REGEX "^STAGGER_")
  list(REMOVE_ITEM stagger_cache ${stagger_options})
  foreach(name IN LISTS stagger_cache)
    unset(${name} CACHE)  # otherwise the next run would stop here again
  endforeach()
  if(stagger_cache)
    list(JOIN stagger_options ", " stagger_options)
    message(FATAL_ERROR "stagger: there is no option ${stagger_cache}; there are ${stagger_options}.")
  endif()
endif()
if(NOT STAGGER_SANITIZE MATCHES "^(address\\+undefined|thread|)$")
  message(FATAL_ERROR "stagger: STAGGER_SANITIZE is '${STAGGER_SANITIZE}'; use address+undefined, thread, or leave it empty.")
endif()
