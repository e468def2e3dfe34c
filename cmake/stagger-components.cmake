# SPDX-License-Identifier: Apache-2.0
# The components of stagger and their dependencies. This project's build reads this file, and so does every
# find_package(stagger), from the install tree. To add a component, add one call below.
#
#   HEADERS   globs below include/stagger; headers of no other component belong to stagger::stagger
#   LINKS     targets to link; with stagger::<other>, requesting the component also requests <other>
#   FIND      arguments for find_package
#   REMEDY    what to do if the dependency is missing, as the end of an error message
#   OPTIONS   compiler flags of g++ and clang for targets that link it
#   INCLUDES  regular expressions of includes that only these headers may have (for the test `floors`)

set(stagger_components "")
macro(stagger_component name)
  list(APPEND stagger_components ${name})
  cmake_parse_arguments(stagger_${name} "" "REMEDY" "HEADERS;LINKS;FIND;OPTIONS;INCLUDES" ${ARGN})
endmacro()

stagger_component(stagger LINKS Threads::Threads FIND Threads
  REMEDY "enable the language C or CXX and install a thread library")

# If the compiler may fuse multiplications and additions, two copies of a function may give different bits.
stagger_component(same_bits OPTIONS -ffp-contract=off)

stagger_component(host HEADERS host/asio*.hpp host/detail/asio*.hpp LINKS stagger::stagger Boost::headers
  INCLUDES "^boost/" "^netinet/tcp[.]h$"
  FIND Boost 1.81 CONFIG COMPONENTS headers
  REMEDY "install Boost 1.81 or newer (libboost1.81-dev on Debian 12) or set Boost_ROOT")

stagger_component(ranges HEADERS ranges.hpp LINKS stagger::stagger range-v3::range-v3 INCLUDES "^range/v3/"
  FIND range-v3 CONFIG  # its version file accepts only equal versions
  REMEDY "install range-v3 0.12 or newer (librange-v3-dev on Debian 12) or set range-v3_ROOT")

stagger_component(json HEADERS json/*.hpp json/detail/*.hpp LINKS stagger::stagger nlohmann_json::nlohmann_json
  INCLUDES "^nlohmann/" FIND nlohmann_json CONFIG
  REMEDY "install nlohmann-json 3.11 or newer (nlohmann-json3-dev on Debian 12) or set nlohmann_json_ROOT")

stagger_component(mpi HEADERS mpi/*.hpp mpi/detail/*.hpp LINKS stagger::stagger MPI::MPI_CXX INCLUDES "^mpi[.]h$"
  FIND MPI COMPONENTS CXX
  REMEDY "install an MPI 3 (libopenmpi-dev and openmpi-bin on Debian 12) or set MPI_HOME")

stagger_component(cuda HEADERS cuda/*.hpp cuda/*.cuh cuda/detail/*.hpp LINKS stagger::stagger CUDA::cudart
  INCLUDES "^cuda_runtime_api[.]h$" "^nvtx3/"
  FIND CUDAToolkit 12
  REMEDY "install NVIDIA's CUDA toolkit 12 or newer or set CUDAToolkit_ROOT; no GPU is needed to build")

stagger_component(nccl HEADERS nccl/*.hpp nccl/detail/*.hpp LINKS stagger::cuda NCCL::NCCL
  INCLUDES "^nccl[.]h$" "^netdb[.]h$" "^netinet/in[.]h$" "^poll[.]h$"
  FIND NCCL 2.27
  REMEDY "install NCCL 2.27 or newer or set NCCL_ROOT")

stagger_component(torch HEADERS torch/*.hpp torch/detail/*.hpp LINKS stagger::stagger LibTorch::cpu
  INCLUDES "^torch/" "^ATen/" "^c10/"
  FIND LibTorch 2.6
  REMEDY "install torch 2.6 or newer from PyPI and add what its torch.utils.cmake_prefix_path says to CMAKE_PREFIX_PATH, or set LibTorch_ROOT to its folder")

# Sets <out> to the components in <requested> and their dependencies, each after those that it needs.
function(stagger_closure out requested)
  set(result "")
  foreach(name IN LISTS requested)
    foreach(link IN LISTS stagger_${name}_LINKS)
      if(link MATCHES "^stagger::(.+)")
        stagger_closure(below ${CMAKE_MATCH_1})
        list(APPEND result ${below})
      endif()
    endforeach()
    list(APPEND result ${name})
  endforeach()
  list(REMOVE_DUPLICATES result)
  set(${out} "${result}" PARENT_SCOPE)
endfunction()

# Looks up the dependency of a component. Sets <out> to an empty string, or to an error message if it is missing.
# This is a function so that users get the targets but not the variables that find_package sets.
function(stagger_look_up out name)
  set(${out} "" PARENT_SCOPE)
  if(NOT stagger_${name}_FIND)
    return()
  endif()
  list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  list(GET stagger_${name}_FIND 0 package)
  set(MPI_CXX_SKIP_MPICXX TRUE)  # the C interface is enough; the C++ one was removed from MPI in 2012
  find_package(${stagger_${name}_FIND} QUIET)
  foreach(target IN LISTS stagger_${name}_LINKS)
    if(NOT target MATCHES "^stagger::" AND NOT (${package}_FOUND AND TARGET ${target}))
      set(${out} "component ${name} needs ${target}, which was not found: ${stagger_${name}_REMEDY}."
          PARENT_SCOPE)
    endif()
  endforeach()
endfunction()
