# SPDX-License-Identifier: Apache-2.0
# What our own tests, examples and benchmarks are built with. A consumer never reads this file.
#
#   stagger_developer             INTERFACE target: warnings, sanitizer, no contraction of floating point
#   stagger_find(<package> <target> <debian package> [arguments of find_package])
#                                 find_package, or one sentence that names what to install
#   stagger_can_link(<out> <targets>...)
#                                 <out> is empty, or the first target that cannot be linked here
#   stagger_optimized(<target>)   -O1 also under a sanitizer, where all else is compiled as fast as can be
#   stagger_test_environment      ENVIRONMENT entry that tests need under the chosen sanitizer
#   stagger_test_patience         factor on the time limit of a test under the chosen sanitizer

get_property(stagger_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT stagger_multi_config)
  set(CMAKE_BUILD_TYPE Release)
endif()
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")  # CMake's default; who needs -O3 says so per target
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these it keeps nothing of what uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()

add_library(stagger_developer INTERFACE)
target_link_libraries(stagger_developer INTERFACE stagger::same_bits)
target_compile_options(stagger_developer INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  # g++ also warns of signed constants that fit; the header checks and the packages' consumers ask it to, tests do not.
  $<$<CXX_COMPILER_ID:Clang>:-Wsign-conversion>)
# An error for the compilers that are gates; a newer one may warn of what nobody has seen yet.
string(REGEX MATCH "^[0-9]+" stagger_major ${CMAKE_CXX_COMPILER_VERSION})
# g++ warns of what is not there once a sanitizer has added its code.
if("${CMAKE_CXX_COMPILER_ID} ${stagger_major} ${STAGGER_SANITIZE}" MATCHES "^(GNU 12 |Clang 14 .*|Clang 19 .*)$")
  target_compile_options(stagger_developer INTERFACE -Werror)
endif()

# What clang's sanitizers tell lines by, and suppressions by name; g++'s need nothing.
set(symbolizer "")
if(STAGGER_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  find_program(LLVM_SYMBOLIZER llvm-symbolizer HINTS /usr/lib/llvm-${stagger_major}/bin)
  mark_as_advanced(LLVM_SYMBOLIZER)
  if(LLVM_SYMBOLIZER)
    file(REAL_PATH ${LLVM_SYMBOLIZER} symbolizer)  # they refuse a link
    string(PREPEND symbolizer ":external_symbolizer_path=")
  endif()
endif()

set(stagger_test_environment "")
set(stagger_test_patience 1)
if(STAGGER_SANITIZE STREQUAL "address+undefined")
  # A third less to compile: a null pointer is caught by the address sanitizer, the other two find little;
  # and checks are calls, where g++ can be told so.
  set(stagger_sanitize -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND stagger_sanitize "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND stagger_sanitize -fno-sanitize=function)  # clang 14 cannot emit it for coroutines
  endif()
  set(stagger_test_environment "UBSAN_OPTIONS=print_stacktrace=1${symbolizer}")
  set(stagger_test_patience 5)
elseif(STAGGER_SANITIZE STREQUAL "thread")
  set(stagger_sanitize -fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND stagger_sanitize -Wno-tsan)  # TSan does not model fences; g++ says so at each one
  endif()
  set(stagger_test_environment
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp${symbolizer}")
  set(stagger_test_patience 10)
endif()
if(STAGGER_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND stagger_sanitize -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  # clang comes without the runtimes of its sanitizers, and says no more than that a file is missing.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=${STAGGER_SANITIZE})
  string(REPLACE "+" "," CMAKE_REQUIRED_FLAGS "${CMAKE_REQUIRED_FLAGS}")
  set(CMAKE_REQUIRED_QUIET TRUE)
  unset(stagger_sanitizer_links CACHE)  # asked again after an installation
  check_cxx_source_compiles("int main() {}" stagger_sanitizer_links)
  if(NOT stagger_sanitizer_links)
    set(runtime "the runtime of its sanitizers")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      string(APPEND runtime " (libclang-rt-${stagger_major}-dev on Debian and Ubuntu)")
    endif()
    message(FATAL_ERROR "stagger: ${CMAKE_CXX_COMPILER} cannot link a program with ${CMAKE_REQUIRED_FLAGS}: install "
      "${runtime}, or leave STAGGER_SANITIZE empty.")
  endif()
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_QUIET)
  target_compile_options(stagger_developer INTERFACE ${stagger_sanitize} -g1 -fno-omit-frame-pointer)
  target_link_options(stagger_developer INTERFACE ${stagger_sanitize})
endif()

macro(stagger_find package target debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "stagger: ${package} (${target}) was not found: install it (${debian} on Debian and "
      "Ubuntu), or switch off what needs it with -DSTAGGER_BUILD_TESTS=OFF, -DSTAGGER_BUILD_EXAMPLES=OFF or "
      "-DSTAGGER_BUILD_BENCHMARKS=OFF.")
  endif()
endmacro()

function(stagger_optimized target)
  if(STAGGER_SANITIZE)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

function(stagger_can_link out)
  set(${out} "" PARENT_SCOPE)
  foreach(target IN LISTS ARGN)
    string(REGEX REPLACE "^stagger::" "" component ${target})
    if(NOT TARGET ${target} OR (target MATCHES "^stagger::" AND NOT component IN_LIST stagger_available))
      set(${out} ${target} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
