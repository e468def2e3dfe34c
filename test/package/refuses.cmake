# SPDX-License-Identifier: Apache-2.0
# cmake -DFOLDER=... -DWORDS=... -P refuses.cmake -- <arguments of cmake>
#
# Passes when `cmake -B FOLDER <arguments>` fails and prints WORDS, a regular expression.

cmake_minimum_required(VERSION 3.25)

set(arguments "")
set(own TRUE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(NOT own)
    list(APPEND arguments ${CMAKE_ARGV${i}})
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(own FALSE)
  endif()
endforeach()
file(REMOVE_RECURSE ${FOLDER})
execute_process(COMMAND ${CMAKE_COMMAND} -B ${FOLDER} ${arguments} RESULT_VARIABLE result
                OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "configuring succeeds, but must not:\n${output}")
endif()
string(REGEX REPLACE "[ \n]+" " " flat "${output}")  # CMake breaks lines where it likes
if(NOT flat MATCHES "${WORDS}")
  message(FATAL_ERROR "configuring fails, but does not say '${WORDS}':\n${output}")
endif()
