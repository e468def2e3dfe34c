# SPDX-License-Identifier: Apache-2.0
# What the checks share. Each is called with -DROOT=<checkout> as well.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

# prints(<exact standard output> ARGS...): exit code 0 and exactly this output.
function(prints wanted)
  run(${ARGN})
  if(NOT "${result}|${output}|${errors}" STREQUAL "0|${wanted}|")
    fail("should print\n${wanted}")
  endif()
endfunction()

# matches(<result> <pattern> ARGS...): standard output matches the pattern.
function(matches wanted pattern)
  run(${ARGN})
  if(NOT "${result}" STREQUAL "${wanted}" OR NOT "${output}" MATCHES "${pattern}")
    fail("should end with ${wanted} and print '${pattern}'")
  endif()
endfunction()

# value(<exact JSON value> <path of keys, separated by dots> ARGS...)
function(value wanted path)
  run(${ARGN})
  string(REPLACE "." ";" keys "${path}")
  string(JSON found ERROR_VARIABLE error GET "${output}" ${keys})
  if(NOT "${found}" STREQUAL "${wanted}")
    fail("should have ${path} = ${wanted}, not '${found}' (${error})")
  endif()
endfunction()
