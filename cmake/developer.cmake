# SPDX-License-Identifier: Apache-2.0
# Settings for the project's own tests, examples and benchmarks. Projects that use stagger do not read this file.
#
#   stagger_developer             INTERFACE target: warnings, sanitizer, no contraction of floating point
#   stagger_find(<package> <target> <debian package> [arguments of find_package])
#                                 find_package, or an error that names the package to install
#   stagger_can_link(<out> <targets>...)
#                                 <out> is empty, or the first target that cannot be linked here
#   stagger_optimized(<target>)   compiles with -O1 under a sanitizer, where everything else is not optimised
#   stagger_quickly_compiled(<target>)   compiles with -Og, or -O1 with clang, where everything else is optimised fully, in
#                                 half the time: for what computes little itself
#   stagger_compiled_together(<target> <number>)   compiles up to <number> of its files as one, in half the time, since
#                                 they use the same templates, unless CMAKE_UNITY_BUILD is OFF
#   stagger_test_environment      ENVIRONMENT entry that tests need under the chosen sanitizer
#   stagger_test_time_factor      factor for the time limits of tests under the chosen sanitizer

get_property(stagger_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT stagger_multi_config)
  set(CMAKE_BUILD_TYPE Release)
endif()
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")  # CMake's default; targets that need -O3 ask for it
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these settings ccache does not cache files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()

add_library(stagger_developer INTERFACE)
target_link_libraries(stagger_developer INTERFACE stagger::same_bits)
target_compile_options(stagger_developer INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  # g++ also warns of constants whose conversion is safe, so it has this only in header checks and packaging tests.
  $<$<CXX_COMPILER_ID:Clang>:-Wsign-conversion>)
# Warnings are errors only for the compilers that CI uses, since newer ones may have new warnings.
string(REGEX MATCH "^[0-9]+" stagger_major ${CMAKE_CXX_COMPILER_VERSION})
# With sanitizers g++ has false warnings about the code that they insert.
if("${CMAKE_CXX_COMPILER_ID} ${stagger_major} ${STAGGER_SANITIZE}" MATCHES "^(GNU 12 |Clang 14 .*|Clang 19 .*)$")
  target_compile_options(stagger_developer INTERFACE -Werror)
endif()

# clang's sanitizers need a symbolizer for line numbers and suppressions; those of g++ do not.
set(symbolizer "")
if(STAGGER_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  find_program(LLVM_SYMBOLIZER llvm-symbolizer HINTS /usr/lib/llvm-${stagger_major}/bin)
  mark_as_advanced(LLVM_SYMBOLIZER)
  if(LLVM_SYMBOLIZER)
    file(REAL_PATH ${LLVM_SYMBOLIZER} symbolizer)  # they do not accept a symbolic link
    string(PREPEND symbolizer ":external_symbolizer_path=")
  endif()
endif()

set(stagger_test_environment "")
set(stagger_test_time_factor 1)
if(STAGGER_SANITIZE STREQUAL "address+undefined")
  # This saves a third of the compile time: the address sanitizer finds null pointers too, object-size and vptr
  # find little, and g++ can make checks function calls.
  set(stagger_sanitize -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND stagger_sanitize "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND stagger_sanitize -fno-sanitize=function)  # clang 14 cannot emit it for coroutines
  endif()
  set(stagger_test_environment "UBSAN_OPTIONS=print_stacktrace=1${symbolizer}")
  set(stagger_test_time_factor 5)
elseif(STAGGER_SANITIZE STREQUAL "thread")
  set(stagger_sanitize -fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND stagger_sanitize -Wno-tsan)  # TSan does not model fences, and g++ warns at each one
  endif()
  set(stagger_test_environment
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp${symbolizer}")
  set(stagger_test_time_factor 10)
endif()
if(STAGGER_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND stagger_sanitize -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  # Debian's clang comes without sanitizer runtimes, and would only report a missing file.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=${STAGGER_SANITIZE})
  string(REPLACE "+" "," CMAKE_REQUIRED_FLAGS "${CMAKE_REQUIRED_FLAGS}")
  set(CMAKE_REQUIRED_QUIET TRUE)
  unset(stagger_sanitizer_links CACHE)  # checked again, since it may have been installed
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

function(stagger_quickly_compiled target)
  if(NOT STAGGER_SANITIZE AND CMAKE_CXX_FLAGS_RELEASE MATCHES "-O2")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:$<IF:$<CXX_COMPILER_ID:GNU>,-Og,-O1>>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # which then sees such uses in the standard library's own headers
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
    endif()
  endif()
endfunction()

function(stagger_compiled_together target number)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${number})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # which takes the files for headers, which other sources might include too
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
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
