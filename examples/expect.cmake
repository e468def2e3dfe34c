# SPDX-License-Identifier: Apache-2.0
# cmake -DPROGRAM=... -DEXPECT=... -P expect.cmake
#
# Passes when PROGRAM ends with exit code 0 and prints what each line of the file EXPECT, a regular
# expression, asks for. (PASS_REGULAR_EXPRESSION would ignore the exit code.)

cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
message("${output}${errors}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${result}")
endif()
file(STRINGS ${EXPECT} wanted)
foreach(pattern IN LISTS wanted)
  if(NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${PROGRAM} does not print '${pattern}'")
  endif()
endforeach()
