# SPDX-License-Identifier: Apache-2.0
# The transformer's layers for a GPU on the stand-in: its kernels' bodies on the host, with products of our own.
set(test_links gpt_model gpus_once)
set(test_sources ${CMAKE_CURRENT_LIST_DIR}/on_host.cpp)
set(test_timeout_s 120)
if(TARGET gpt_model AND TARGET gpus_once)
  find_package(CUDAToolkit QUIET)
  find_file(gpt_cublas_header cublas_v2.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  if(NOT gpt_cublas_header)
    list(APPEND test_links cuBLAS)
  endif()
endif()
set(test_own_flags TRUE)
