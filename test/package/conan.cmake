# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=... -DHERE=... -DGENERATOR=... -P conan.cmake
#
# `conan create` with a cache of its own, which builds and runs test_package/ too. With the default
# options nothing is asked of a remote, so there is none.

cmake_minimum_required(VERSION 3.25)

find_program(CONAN conan)
if(NOT CONAN)
  message("conan was not found: pip install conan")
  return()
endif()
file(REMOVE_RECURSE ${HERE})
file(MAKE_DIRECTORY ${HERE})
# A copy: Conan writes beside the recipe and beside test_package, and a checkout may be read-only.
file(COPY ${SOURCE}/conanfile.py ${SOURCE}/CMakeLists.txt ${SOURCE}/LICENSE ${SOURCE}/README.md
          ${SOURCE}/CHANGELOG.md ${SOURCE}/cmake ${SOURCE}/include
          ${SOURCE}/test_package DESTINATION ${HERE}/checkout)
set(ENV{CONAN_HOME} ${HERE}/home)
execute_process(COMMAND ${CONAN} profile detect COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CONAN} create ${HERE}/checkout --no-remote -s build_type=Debug
                        -c tools.cmake.cmaketoolchain:generator=${GENERATOR} COMMAND_ERROR_IS_FATAL ANY)

# The other value of an option asks the remote for the dependency; there is none here, so it is named.
foreach(pair IN ITEMS host:boost ranges:range-v3 json:nlohmann_json)
  string(REGEX MATCH "(.*):(.*)" pair ${pair})
  execute_process(COMMAND ${CONAN} install --no-remote --requires=stagger/[*] -o stagger/*:with_${CMAKE_MATCH_1}=conan
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0 OR NOT output MATCHES "Package '${CMAKE_MATCH_2}/[^']*' not resolved")
    message(FATAL_ERROR "with_${CMAKE_MATCH_1}=conan does not ask for ${CMAKE_MATCH_2}:\n${output}")
  endif()
endforeach()
