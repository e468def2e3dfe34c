# SPDX-License-Identifier: Apache-2.0
set(test_includes ${PROJECT_SOURCE_DIR}/examples/stagger)  # hetpipe_models.hpp
set(test_one_thread TRUE)
set(test_optimized TRUE)
