// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/error.hpp>

#include "catch.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace error_test {

TEST_CASE("core/Error: carries its code and its sentence, and is a std::runtime_error", "[core]") {
  try {
    throw stagger::Error(stagger::Errc::deadline, stagger::text("rank ", 3, " waited ", 0.25,
                                                                " s of ", std::string("many")));
  } catch (std::runtime_error const& error) {
    CHECK(std::string(error.what()) == "rank 3 waited 0.25 s of many");
    CHECK(dynamic_cast<stagger::Error const&>(error).code() == stagger::Errc::deadline);
  }
}

TEST_CASE("core/text: numbers read as they are", "[core]") {
  CHECK(stagger::text(-1, " ", std::size_t{7}, " ", 1e-9, " ", 60.0, " ", -0.5) ==
        "-1 7 1e-09 60 -0.5");
}

// More pieces of each kind than processors pass in registers.
TEST_CASE("core/text: has each piece once and in order, whatever the kinds", "[core]") {
  std::string const six = "six";
  std::string_view const seven = std::string_view("seventy").substr(0, 5);
  CHECK(stagger::text(1, 2.5, "3", std::uint8_t{4}, 5.5F, six, seven, 8LL, 9.5, 10U, 11.5, 12.5,
                      13.5, 14.5, 15.5, 16.5, 17.5, 18, std::int16_t{-19},
                      std::numeric_limits<std::int64_t>::min(), true) ==
        "12.5345.5sixseven89.51011.512.513.514.515.516.517.518-19-92233720368547758081");
  try {
    stagger::raise(stagger::Errc::io, "a", 1, six, 2.5, seven, -3, "b", 4, "c", 5);
  } catch (stagger::Error const& error) {
    CHECK(std::string(error.what()) == "a1six2.5seven-3b4c5");
    CHECK(error.code() == stagger::Errc::io);
  }
}

TEST_CASE("core/utf8_length: is 1 to 4 for a character, 0 for what is none", "[core]") {
  CHECK(stagger::utf8_length("") == 0);
  CHECK(stagger::utf8_length("ab") == 1);
  CHECK(stagger::utf8_length("\xC3\xA4x") == 2);
  CHECK(stagger::utf8_length("\xE2\x82\xAC") == 3);
  CHECK(stagger::utf8_length("\xF0\x9F\x98\x80") == 4);
  CHECK(stagger::utf8_length("\xC3") == 0);              // cut off
  CHECK(stagger::utf8_length("\xA4") == 0);              // no first byte
  CHECK(stagger::utf8_length("\xC0\xAF") == 0);          // longer than need be
  CHECK(stagger::utf8_length("\xED\xA0\x80") == 0);      // a surrogate
  CHECK(stagger::utf8_length("\xF4\x90\x80\x80") == 0);  // beyond U+10FFFF
}

TEST_CASE("core/printable: characters stay, what a terminal or a file would trip over is escaped",
          "[core]") {
  using stagger::printable;
  CHECK(printable("") == "");
  CHECK(printable("a \\ \"z\" ~") == "a \\ \"z\" ~");
  CHECK(printable("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80") ==
        "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\x1B[31m\t\r\x7F") == "\\x1b[31m\\x09\\x0d\\x7f");
  CHECK(printable("one\ntwo") == "one two");
  CHECK(printable("\xFFx\xC3") == "\\xffx\\xc3");
  CHECK(printable("\xC2\x9B"
                  "\xC2\xA0") == "\\xc2\\x9b\xC2\xA0");  // a control character; a blank
  CHECK(printable(printable(std::string_view("\0\xFF", 2))) == "\\x00\\xff");
}

TEST_CASE("core/raise: what a sentence quotes is neither cut nor printed raw", "[core]") {
  std::string const from_file("@\0{\x1B", 4);
  auto const said = [&](auto const& quoted) {
    try {
      stagger::raise(stagger::Errc::bad_data, "f, line 1: '", quoted, "' is no number");
    } catch (stagger::Error const& error) {
      return std::string(error.what());
    }
  };
  CHECK(said(from_file) == "f, line 1: '@\\x00{\\x1b' is no number");
  CHECK(said(std::string_view(from_file)) == "f, line 1: '@\\x00{\\x1b' is no number");
  CHECK(stagger::text("a", from_file, "b") == "a" + from_file + "b");  // files may hold anything
}

TEST_CASE("core/sized: bytes, and mebibytes where there are any", "[core]") {
  CHECK(stagger::sized(0) == "0 bytes");
  CHECK(stagger::sized(1) == "1 byte");
  CHECK(stagger::sized(67.6) == "68 bytes");
  CHECK(stagger::sized(1048575) == "1048575 bytes");
  CHECK(stagger::sized(1048576) == "1.0 MiB");
  CHECK(stagger::sized(376e6) == "358.6 MiB");
  CHECK(stagger::sized(1.8e19) == "17166137695312.5 MiB");
  CHECK(stagger::sized(67.1, true) == "68 bytes");
  CHECK(stagger::sized(67, true) == "67 bytes");
  CHECK(stagger::sized(1048577, true) == "1.1 MiB");
  CHECK(stagger::sized(1e30) == "9.53674316e+23 MiB");
}

TEST_CASE("core/counted: a noun that ends in a hiss takes es", "[core]") {
  CHECK(stagger::counted(1, "rank") == "1 rank");
  CHECK(stagger::counted(2, "rank") == "2 ranks");
  CHECK(stagger::counted(0, std::string("microbatch")) == "0 microbatches");
  CHECK(stagger::counted(3, std::string_view("pass")) == "3 passes");
}

}  // namespace error_test
