# SPDX-License-Identifier: Apache-2.0
set(test_includes ${PROJECT_SOURCE_DIR}/examples/stagger)  # networks.hpp
