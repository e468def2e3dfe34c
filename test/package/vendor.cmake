# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<checkout> -DHERE=<scratch> -DGENERATOR=... -DCOMPILER=... -P vendor.cmake
#
# Passes when `./run vendor` collects at most 60 MiB, a configure finds the packages there and nowhere
# else, and headers of each lead to none that was left behind.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${HERE})
execute_process(COMMAND ${SOURCE}/run vendor ${HERE}/headers RESULT_VARIABLE result OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "./run vendor ended with ${result}:\n${output}")
endif()

file(GLOB_RECURSE files ${HERE}/headers/*)
set(bytes 0)
foreach(file IN LISTS files)
  file(SIZE ${file} size)
  math(EXPR bytes "${bytes} + ${size}")
endforeach()
if(bytes GREATER 62914560)
  message(FATAL_ERROR "${bytes} bytes were collected, more than 60 MiB")
endif()

set(packages Catch2 Boost range-v3 Eigen3 CLI11 nlohmann_json)
string(JOIN "\n" text "cmake_minimum_required(VERSION 3.25)" "project(vendored LANGUAGES CXX)"
  "foreach(package IN ITEMS ${packages})" "  find_package(\${package} REQUIRED CONFIG)"
  "  if(NOT \${package}_DIR MATCHES \"^${HERE}/headers/\")"
  "    message(FATAL_ERROR \"\${package} was found in \${\${package}_DIR}\")" "  endif()" "endforeach()" "")
file(WRITE ${HERE}/project/CMakeLists.txt "${text}")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${HERE}/project -B ${HERE}/build -G ${GENERATOR}
                        -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${HERE}/headers
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)

set(include ${HERE}/headers/include)
set(text "")
foreach(header IN ITEMS catch2/catch.hpp boost/asio.hpp range/v3/all.hpp Eigen/Dense CLI/CLI.hpp nlohmann/json.hpp
                        benchmark/benchmark.h)
  string(APPEND text "#include <${header}>\n")
endforeach()
file(WRITE ${HERE}/uses.cpp "${text}")
execute_process(COMMAND ${COMPILER} -std=c++20 -M -I${include} -I${include}/eigen3 ${HERE}/uses.cpp
                OUTPUT_VARIABLE read COMMAND_ERROR_IS_FATAL ANY)
if(read MATCHES "/usr/include/(catch2|boost|range|concepts|meta|std|eigen3|CLI|nlohmann|benchmark)/[^ ]*")
  message(FATAL_ERROR "${CMAKE_MATCH_0} was read, which was not collected")
endif()
