# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<checkout> [-DCOMPILER=<C++ compiler>] [-DFOLDER=<for the program>] [-DUPDATE=ON] -P combinations.cmake
#
# Passes when docs/combinations.md is what combinations.cpp prints of the rules in core/combination_rules.hpp; UPDATE writes it.

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

include(${CMAKE_CURRENT_LIST_DIR}/made_part.cmake)
made_part(${ROOT}/docs/combinations.md combinations "${UPDATE}" "${printed}"
          "cmake -DROOT=. -DUPDATE=ON -P test/combinations.cmake")
