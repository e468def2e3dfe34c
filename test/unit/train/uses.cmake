# SPDX-License-Identifier: Apache-2.0
set(test_links stagger_oracles)
set(test_includes ${PROJECT_SOURCE_DIR}/examples/stagger ${PROJECT_SOURCE_DIR}/examples/hetero)  # hetpipe_models.hpp, teacher.hpp
