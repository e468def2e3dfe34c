# SPDX-License-Identifier: Apache-2.0
# Functions that the checks share. Each check is called with -DHETERO=<program> -DFOLDER=<its own folder>

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})

# Runs the program. Sets result, output (standard output) and errors (standard error) for the caller.
macro(hetero)
  execute_process(COMMAND ${HETERO} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors
                  WORKING_DIRECTORY ${FOLDER} TIMEOUT 120)
  list(JOIN ARGN " " called)
endmacro()

function(fail sentence)
  message(FATAL_ERROR "hetero ${called}\n${sentence}\nresult: ${result}\noutput:\n${output}\nerrors:\n${errors}")
endfunction()

# runs(<pattern> ARGS...): exit code 0, and standard output matches the pattern.
macro(runs pattern)
  hetero(${ARGN})
  if(NOT "${result}" STREQUAL "0" OR NOT "${output}" MATCHES "${pattern}")
    fail("should print '${pattern}'")
  endif()
endmacro()

# refused(<pattern> ARGS...): one line on standard error, behind those that show progress, nothing on standard output, exit code 2.
function(refused pattern)
  hetero(${ARGN})
  if(NOT "${result}|${output}" STREQUAL "2|" OR NOT "${errors}" MATCHES "^(step [^\n]*\n)*hetero: [^\n]*${pattern}[^\n]*\n$")
    fail("should be refused by one line with '${pattern}'")
  endif()
endfunction()
