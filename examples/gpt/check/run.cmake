# SPDX-License-Identifier: Apache-2.0
# Functions that the checks share. Each check is called with
#   -DGPT=<program> -DTEXT=<a text of a few KiB> -DFOLDER=<its own folder>

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})

# A model that takes about a millisecond per step.
set(tiny --text ${TEXT} --layers 3 --width 16 --heads 2 --context 12 --batch 7 --microbatches 5 --sample 0 --output none)

# Runs the program. Sets result, output (standard output) and errors (standard error) for the caller.
macro(gpt)
  execute_process(COMMAND ${GPT} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors
                  WORKING_DIRECTORY ${FOLDER} TIMEOUT 120)
  list(JOIN ARGN " " called)
endmacro()

function(fail sentence)
  message(FATAL_ERROR "gpt ${called}\n${sentence}\nresult: ${result}\noutput:\n${output}\nerrors:\n${errors}")
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
