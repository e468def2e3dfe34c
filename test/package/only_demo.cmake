# SPDX-License-Identifier: Apache-2.0
# A dependency provider that lets nothing be found but what packages_demo in ./run installs.

macro(only_demo method package)
  if(NOT "${package}" MATCHES "^(Threads|Eigen3|CLI11|nlohmann_json)$")
    set(${package}_FOUND TRUE)  # FALSE would make CMake look by itself; without targets it is of no use
  endif()
endmacro()
cmake_language(SET_DEPENDENCY_PROVIDER only_demo SUPPORTED_METHODS FIND_PACKAGE)
