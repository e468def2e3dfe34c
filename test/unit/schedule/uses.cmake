# SPDX-License-Identifier: Apache-2.0
set(test_sources ${CMAKE_CURRENT_LIST_DIR}/grid.cpp)
set(test_libcxx "/(costs_csv|csv)_test\\.cpp$")
set(test_one_thread TRUE)
set(test_optimized TRUE)
