# SPDX-License-Identifier: Apache-2.0

# models_of_program(<out>): the names of all staleness models, as the program lists them.
function(models_of_program out)
  run(--sync none)
  if(NOT "${errors}" MATCHES "there are: ([^\n]+)\n$")
    fail("should list the staleness models")
  endif()
  string(REPLACE ", " ";" names "${CMAKE_MATCH_1}")
  set(${out} "${names}" PARENT_SCOPE)
endfunction()
