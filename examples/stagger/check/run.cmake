# SPDX-License-Identifier: Apache-2.0
# Functions that the checks share. Each check is called with
#   -DSTAGGER=<program> -DROOT=<checkout> -DFOLDER=<its own folder>

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})

# Runs the program. Sets result, output (standard output) and errors (standard error) for the caller.
macro(stagger)
  execute_process(COMMAND ${STAGGER} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors
                  WORKING_DIRECTORY ${FOLDER} INPUT_FILE ${input} TIMEOUT 120)
  list(JOIN ARGN " " called)
endmacro()
set(input /dev/null)

function(fail sentence)
  message(FATAL_ERROR "stagger ${called}\n${sentence}\nresult: ${result}\noutput:\n${output}\nerrors:\n${errors}")
endfunction()

# prints(<exact standard output> ARGS...): exit code 0 and exactly this output.
function(prints wanted)
  stagger(${ARGN})
  if(NOT "${result}|${output}|${errors}" STREQUAL "0|${wanted}|")
    fail("should print\n${wanted}")
  endif()
endfunction()

# matches(<result> <pattern> ARGS...): standard output matches the pattern.
function(matches wanted pattern)
  stagger(${ARGN})
  if(NOT "${result}" STREQUAL "${wanted}" OR NOT "${output}" MATCHES "${pattern}")
    fail("should end with ${wanted} and print '${pattern}'")
  endif()
endfunction()

# refused(<pattern> ARGS...): one line on standard error, nothing on standard output, exit code 2.
function(refused pattern)
  stagger(${ARGN})
  if(NOT "${result}|${output}" STREQUAL "2|" OR NOT "${errors}" MATCHES "^stagger: [^\n]*${pattern}[^\n]*\n$")
    fail("should be refused by one line with '${pattern}'")
  endif()
endfunction()

# value(<exact JSON value> <path of keys, separated by dots> ARGS...)
function(value wanted path)
  stagger(${ARGN})
  string(REPLACE "." ";" keys "${path}")
  string(JSON found ERROR_VARIABLE error GET "${output}" ${keys})
  if(NOT "${found}" STREQUAL "${wanted}")
    fail("should have ${path} = ${wanted}, not '${found}' (${error})")
  endif()
endfunction()
