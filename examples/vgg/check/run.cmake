# SPDX-License-Identifier: Apache-2.0
# Functions that the checks share. Each check is called with -DVGG=<program> -DFOLDER=<its own folder>

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})

# Runs the program. Sets result, output (standard output) and errors (standard error) for the caller.
macro(vgg)
  execute_process(COMMAND ${VGG} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors
                  WORKING_DIRECTORY ${FOLDER} TIMEOUT 120)
  list(JOIN ARGN " " called)
endmacro()

function(fail sentence)
  message(FATAL_ERROR "vgg ${called}\n${sentence}\nresult: ${result}\noutput:\n${output}\nerrors:\n${errors}")
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
