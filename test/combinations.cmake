# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<checkout> [-DCOMPILER=<C++ compiler>] [-DFOLDER=<for the program>] [-DUPDATE=ON] -P combinations.cmake
#
# Passes when docs/combinations.md is what combinations.cpp prints of the rules in core/combinations.hpp; UPDATE writes it.

cmake_minimum_required(VERSION 3.25)

cmake_path(ABSOLUTE_PATH ROOT)
if(NOT COMPILER)
  set(COMPILER c++)
endif()
if(NOT FOLDER)
  set(FOLDER ${ROOT}/build)
endif()
file(MAKE_DIRECTORY ${FOLDER})
set(program ${FOLDER}/combinations)
execute_process(COMMAND ${COMPILER} -std=c++20 -I${ROOT}/include ${ROOT}/test/combinations.cpp -o ${program}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${program} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)

set(document ${ROOT}/docs/combinations.md)
set(marker "<!-- made by test/combinations.cmake, up to the end -->\n")
file(READ ${document} text)
string(FIND "${text}" "${marker}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${document} has no line ${marker}")
endif()
string(SUBSTRING "${text}" 0 ${at} head)
set(made "${head}${marker}${printed}")
if(UPDATE)
  file(WRITE ${document} "${made}")
elseif(NOT text STREQUAL made)
  message(FATAL_ERROR "docs/combinations.md is not what core/combinations.hpp says; write it with: "
    "cmake -DROOT=. -DUPDATE=ON -P test/combinations.cmake")
endif()
