// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/split_plan.hpp>

#include <string>
#include <vector>

#include "catch.hpp"

TEST_CASE("report/SplitPlan: a table of the layers, with what is exchanged in front of each",
          "[report]") {
  using namespace stagger::partition;
  std::vector<LayerFeatures> const layers{{.parameters = 1728},
                                          {.inputs = 4096, .outputs = 1024, .parameters = 4194304},
                                          {.element_wise = true},
                                          {.inputs = 1024, .outputs = 10, .parameters = 10240}};
  CHECK(stagger::report::table(plan_split(layers, {.group = 4}), layers, 1, 16) ==
        "layer  exchange  sent forward  sent backward      features  split by  operations/element  "
        "parameters\n"
        "-----  --------  ------------  -------------  ------------  --------  ------------------  "
        "----------\n"
        "0                           -              -             -  -                          -  "
        "      1728\n"
        "1      modulo          196608         196608  4096 -> 1024  outputs               2457.6  "
        "   1048576\n"
        "2                           -              -          1024  -                          -  "
        "         -\n"
        "3      collect          49152              -    1024 -> 10  -                       29.7  "
        "     10240\n"
        "loss                        -              -\n");
}
