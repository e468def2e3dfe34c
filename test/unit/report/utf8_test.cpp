// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/utf8.hpp>

#include <string>
#include <string_view>

#include "catch.hpp"

namespace utf8_test {

namespace report = stagger::report;

TEST_CASE("report/utf8_length: is 1 to 4 for a character, 0 for what is none", "[report]") {
  CHECK(report::utf8_length("") == 0);
  CHECK(report::utf8_length("ab") == 1);
  CHECK(report::utf8_length("\xC3\xA4x") == 2);
  CHECK(report::utf8_length("\xE2\x82\xAC") == 3);
  CHECK(report::utf8_length("\xF0\x9F\x98\x80") == 4);
  CHECK(report::utf8_length("\xC3") == 0);              // cut off
  CHECK(report::utf8_length("\xA4") == 0);              // no first byte
  CHECK(report::utf8_length("\xC0\xAF") == 0);          // longer than need be
  CHECK(report::utf8_length("\xED\xA0\x80") == 0);      // a surrogate
  CHECK(report::utf8_length("\xF4\x90\x80\x80") == 0);  // beyond U+10FFFF
}

TEST_CASE("report/for_each_character: gives U+FFFD for each byte that is not UTF-8", "[report]") {
  std::string out;
  report::for_each_character("a\xC3\xA4\xFF\xC3", [&](std::string_view c) { (out += c) += '|'; });
  CHECK(out == "a|\xC3\xA4|\xEF\xBF\xBD|\xEF\xBF\xBD|");
  CHECK(report::characters("a\xC3\xA4\xFF\xC3") == 4);
}

}  // namespace utf8_test
