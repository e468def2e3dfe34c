# SPDX-License-Identifier: Apache-2.0
set(test_links gpt_model)
set(test_sources ${PROJECT_SOURCE_DIR}/examples/gpt/text.cpp)
set(test_own_flags TRUE)
