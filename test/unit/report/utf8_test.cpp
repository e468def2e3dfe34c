// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/utf8.hpp>

#include <string>
#include <string_view>

#include "catch.hpp"

namespace utf8_test {

namespace report = stagger::report;

TEST_CASE("report/for_each_character: gives U+FFFD for each byte that is not UTF-8", "[report]") {
  std::string out;
  report::for_each_character("a\xC3\xA4\xFF\xC3", [&](std::string_view c) { (out += c) += '|'; });
  CHECK(out == "a|\xC3\xA4|\xEF\xBF\xBD|\xEF\xBF\xBD|");
  CHECK(report::characters("a\xC3\xA4\xFF\xC3") == 4);
}

}  // namespace utf8_test
