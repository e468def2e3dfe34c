# SPDX-License-Identifier: Apache-2.0
# Finds libtorch for the host in PyPI's wheel of torch or in PyTorch's archive: LibTorch::cpu (libtorch_cpu and libc10),
# LibTorch_INCLUDE_DIR, LibTorch_VERSION. PyTorch's own package would link the libraries of CUDA, too.
# Hints: LibTorch_ROOT, the folder that contains include/ and lib/; and what torch.utils.cmake_prefix_path says, in
# CMAKE_PREFIX_PATH.

set(LibTorch_hints "")
string(REPLACE ":" ";" LibTorch_prefixes "$ENV{CMAKE_PREFIX_PATH}")
list(PREPEND LibTorch_prefixes ${CMAKE_PREFIX_PATH})
foreach(folder IN LISTS LibTorch_prefixes)  # <root>/share/cmake
  cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
  cmake_path(APPEND folder ../.. OUTPUT_VARIABLE folder)
  list(APPEND LibTorch_hints ${folder})
endforeach()
find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/nn/module.h HINTS ${LibTorch_hints} PATH_SUFFIXES include)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${LibTorch_hints} PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${LibTorch_hints} PATH_SUFFIXES lib)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)

set(LibTorch_version_file ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
if(NOT EXISTS ${LibTorch_version_file})
  set(LibTorch_version_file ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h)
endif()
if(LibTorch_INCLUDE_DIR AND EXISTS ${LibTorch_version_file})
  file(STRINGS ${LibTorch_version_file} LibTorch_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  list(TRANSFORM LibTorch_lines REPLACE ".*(MAJOR|MINOR|PATCH) ([0-9]+).*" "\\2")
  list(JOIN LibTorch_lines "." LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
                                  VERSION_VAR LibTorch_VERSION)
if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 UNKNOWN IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY})
  add_library(LibTorch::cpu UNKNOWN IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
endif()
