// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/table.hpp>

#include <string>

#include "catch.hpp"

namespace table_test {

namespace report = stagger::report;

TEST_CASE("report/TextTable: numbers stand to the right, words to the left", "[report]") {
  report::TextTable table({"schedule", "step time", "bubble", ""});
  table.add({"GPipe", "33.0 ms", "27.3 %", "x"}).add({"1F1B, deep warm-up", "9.1 ms", "-", "yy"});
  CHECK(table.str() ==
        "schedule            step time  bubble\n"
        "------------------  ---------  ------  --\n"
        "GPipe                 33.0 ms  27.3 %  x\n"
        "1F1B, deep warm-up     9.1 ms       -  yy\n");
}

TEST_CASE("report/TextTable: width counts characters, not bytes, and no line ends in blanks",
          "[report]") {
  report::TextTable table({"a", "b"});
  table.add({"\xC3\xA4\xC3\xB6\xC3\xBC", "1"}).add({"x"}).add({"abc", "+12 %"});
  CHECK(table.str() ==
        "a        b\n"
        "---  -----\n"
        "\xC3\xA4\xC3\xB6\xC3\xBC      1\n"
        "x\n"
        "abc  +12 %\n");
}

TEST_CASE("report/TextTable: a cell cannot break its line", "[report]") {
  report::TextTable table({"a"});
  table.add({"one\ntwo\x1b[31m"});
  CHECK(table.str() == "a\n------------\none two [31m\n");
}

TEST_CASE("report/TextTable: a row too long and a table without columns are refused", "[report]") {
  CHECK_THROWS_WITH(report::TextTable({}), Catch::Contains("without columns"));
  report::TextTable table({"a"});
  CHECK_THROWS_WITH(table.add({"1", "2"}),
                    Catch::Contains("2 cells") && Catch::Contains("1 columns"));
  CHECK(table.str() == "a\n-\n");
}

}  // namespace table_test
