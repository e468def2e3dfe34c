# SPDX-License-Identifier: Apache-2.0
# cmake -DSAID=<file> -DEXPECT=<regular expression> -DRANKS=<ranks that report> -P faults.cmake
#
# Each of RANKS must have reported in the file a fault with the words of EXPECT, all at the same step. The code of mpirun
# is not looked at: it is not 0 when a process was killed, whatever the others did.

cmake_minimum_required(VERSION 3.25)

file(READ ${SAID} said)
file(READ ${SAID}.too errors)
foreach(rank IN LISTS RANKS)
  if(NOT said MATCHES "FAULT rank ${rank} after [0-9.]+ s, no partial update( at step [0-9]+)?: [^\n]*${EXPECT}")
    message(SEND_ERROR "rank ${rank} did not report '${EXPECT}'. Output:\n${said}\n${errors}")
  endif()
  list(APPEND steps "${CMAKE_MATCH_1}")
endforeach()
list(REMOVE_DUPLICATES steps)
list(LENGTH steps different)
if(different GREATER 1)
  message(SEND_ERROR "ranks ended at different steps. Output:\n${said}\n${errors}")
endif()
