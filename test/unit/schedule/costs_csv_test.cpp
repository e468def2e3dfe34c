// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/csv.hpp>

#include "catch.hpp"

namespace costs_csv_test {

using namespace stagger;
using namespace stagger::schedule;

namespace {
std::string const header = "stage,forward_s,backward_input_s,backward_weight_s,transfer_s\n";
}

TEST_CASE("schedule/costs_csv: a line for each stage", "[schedule]") {
  Costs const costs = read_costs_csv(
      "stage, forward_s,backward_input_s,backward_weight_s,transfer_s\r\n0,1,2.5,1e-3,0\r\n1, 3 "
      ",0,0,.5");
  REQUIRE(costs.stages.size() == 2);
  CHECK(costs.of(0).backward_input_s == 2.5);
  CHECK(costs.of(0).backward_weight_s == 1e-3);
  CHECK(costs.of(1).forward_s == 3);
  CHECK(costs.of(1).transfer_s == 0.5);
}

TEST_CASE("schedule/costs_csv: a byte order mark and blank lines at the end are skipped",
          "[schedule]") {
  Costs const costs = read_costs_csv("\xEF\xBB\xBF" + header + "0,1,2,3,4\r\n \n\n");
  REQUIRE(costs.stages.size() == 1);
  CHECK(costs.of(0).transfer_s == 4);
}

TEST_CASE("schedule/costs_csv: what is malformed is named with line, column and value",
          "[schedule]") {
  auto const says = [](std::string const& text, char const* words) {
    CHECK_THROWS_WITH(read_costs_csv(text, "c.csv"), Catch::Contains(words));
  };
  says("", "holds no stage");
  says(header, "holds no stage");
  says("stage,forward\n", "c.csv, line 1, column 7: 'forward' is field 2 of a line");
  says("stage,forward_s,backward_s,backward_weight_s,transfer_s\n",
       "line 1, column 17: 'backward_s' is not the header");
  says(header + "0,1,1,1\n", "line 2, column 7: '1' is field 4 of a line that must have 5");
  says(header + "0,1,1,1,1,1\n", "line 2, column 9: '1' is field 5");
  says(header + "0,1,-2,1,1\n", "line 2, column 5: '-2' is not a finite number");
  says(header + "0,1,nan,1,1\n", "'nan' is not a finite");
  says(header + "0,1,inf,1,1\n", "'inf' is not a finite");
  says(header + "0,1,1x,1,1\n", "'1x' is not a finite");
  says(header + "0,1,,1,1\n", "column 5: '' is not a finite");
  says(header + "1,1,1,1,1\n", "line 2, column 1: '1' is not the next stage, 0");
  says(header + "0,1,1,1,1\n\n1,1,1,1,1\n", "line 3, column 1: ''");
}

}  // namespace costs_csv_test
