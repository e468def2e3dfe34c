# SPDX-License-Identifier: Apache-2.0
set(test_links stagger_oracles)
set(test_includes ${PROJECT_SOURCE_DIR}/examples/stagger)  # networks.hpp
set(test_timeout_s 180)  # threads hand over to each other, which takes long where others compute
