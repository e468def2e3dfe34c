# SPDX-License-Identifier: Apache-2.0
# Functions for the checks of a program. Each check is called with
#   -DPROGRAM=<program> -DFOLDER=<its own folder>

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
get_filename_component(name ${PROGRAM} NAME)
set(input /dev/null)

# Runs the program. Sets result, output (standard output) and errors (standard error) for the caller.
macro(run)
  execute_process(COMMAND ${PROGRAM} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors
                  WORKING_DIRECTORY ${FOLDER} INPUT_FILE ${input} TIMEOUT 400)
  string(JOIN " " called ${ARGN})
endmacro()

function(fail sentence)
  message(FATAL_ERROR "${name} ${called}\n${sentence}\nresult: ${result}\noutput:\n${output}\nerrors:\n${errors}")
endfunction()

function(expect_result wanted)
  if(NOT "${result}" STREQUAL "${wanted}")
    fail("should have ended with ${wanted}")
  endif()
endfunction()

function(expect text pattern)
  if(NOT "${${text}}" MATCHES "${pattern}")
    fail("${text} should match '${pattern}'")
  endif()
endfunction()

function(expect_same a b)
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${a} ${b} RESULT_VARIABLE differ)
  if(differ)
    fail("${a} and ${b} should be equal")
  endif()
endfunction()

# refused(<pattern> ARGS...): one line on standard error, nothing on standard output, exit code 2.
function(refused pattern)
  run(${ARGN})
  if(NOT "${result}|${output}" STREQUAL "2|" OR NOT "${errors}" MATCHES "^${name}: [^\n]*${pattern}[^\n]*\n$")
    fail("should be refused by one line with '${pattern}'")
  endif()
endfunction()
