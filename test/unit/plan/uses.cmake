# SPDX-License-Identifier: Apache-2.0
set(test_includes ${PROJECT_SOURCE_DIR}/examples/stagger)  # dapple_models.hpp
set(test_timeout_s 120)
set(test_one_thread TRUE)
set(test_optimized TRUE)
