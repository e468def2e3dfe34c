# SPDX-License-Identifier: Apache-2.0
set(test_links gpt_model)
if(TARGET gpt_model)  # with the examples
  stagger_find(Eigen3 Eigen3::Eigen libeigen3-dev)
endif()
set(test_sources ${PROJECT_SOURCE_DIR}/examples/gpt/text.cpp)
set(test_own_flags TRUE)
