// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/format.hpp>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "catch.hpp"

namespace format_test {

namespace report = stagger::report;

TEST_CASE("report/format: seconds take the unit that leaves one to three digits", "[report]") {
  CHECK(report::format_seconds(0.01234) == "12.3 ms");
  CHECK(report::format_seconds(1.5e-9) == "1.50 ns");
  CHECK(report::format_seconds(42e-6) == "42.0 us");
  CHECK(report::format_seconds(1) == "1.00 s");
  CHECK(report::format_seconds(123.4) == "123 s");
  CHECK(report::format_seconds(0) == "0 s");
  CHECK(report::format_seconds(-0.002) == "-2.00 ms");
  CHECK(report::format_seconds(0.0123456, 5) == "12.346 ms");
  CHECK(report::format_seconds(98765) == "98765 s");
  CHECK(report::format_seconds(std::nan("")) == "nan");
  CHECK(report::format_seconds(-std::numeric_limits<double>::infinity()) == "-inf");
}

TEST_CASE("report/format: rounding up changes the unit instead of showing a thousand", "[report]") {
  CHECK(report::format_seconds(999.4e-6) == "999 us");
  CHECK(report::format_seconds(999.6e-6) == "1.00 ms");
  CHECK(report::format_seconds(9.996e-3) == "10.0 ms");
  CHECK(report::format_count(999'600) == "1.00 M");
  CHECK(report::format_bytes(1023.9 * 1024) == "1.00 MiB");
}

TEST_CASE("report/format: any time is shown within half a unit of its last digit", "[report]") {
  for (int i = -80; i < 40; ++i) {
    double const value = 1.2345678 * std::pow(1.37, i);
    std::string const text = report::format_seconds(value);
    double const shown = std::strtod(text.c_str(), nullptr);
    std::string const unit = text.substr(text.find(' ') + 1);
    double const scale = unit == "s" ? 1 : unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : 1e-9;
    double const error = value > 1e-9 ? 0.0051 * value : 0.00051e-9;
    CHECK(std::fabs(shown * scale - value) <= error);
    if (value > 1e-9 && value < 999) CHECK((shown >= 1 && shown < 1000));
  }
}

TEST_CASE("report/format: bytes go in steps of 1024, whole below that", "[report]") {
  CHECK(report::format_bytes(0) == "0 B");
  CHECK(report::format_bytes(512) == "512 B");
  CHECK(report::format_bytes(1023) == "1023 B");
  CHECK(report::format_bytes(1024) == "1.00 KiB");
  CHECK(report::format_bytes(1572864) == "1.50 MiB");
  CHECK(report::format_bytes(25.0 * 1024 * 1024) == "25.0 MiB");
  CHECK(report::format_bytes(80.0 * 1024 * 1024 * 1024) == "80.0 GiB");
  CHECK(report::format_bytes(-2048) == "-2.00 KiB");
}

TEST_CASE("report/format: counts, shares, fixed and shortest numbers", "[report]") {
  CHECK(report::format_count(7) == "7");
  CHECK(report::format_count(999) == "999");
  CHECK(report::format_count(51234) == "51.2 k");
  CHECK(report::format_count(2.5) == "2.50");
  CHECK(report::format_percent(0.1742) == "17.4 %");
  CHECK(report::format_percent(1, 0) == "100 %");
  CHECK(report::format_fixed(2.5, 3) == "2.500");
  CHECK(report::format_fixed(-0.0001, 2) == "0.00");
  CHECK(report::format_fixed(1e300, 0).size() == 301);
  CHECK(report::format_shortest(0.1) == "0.1");
  CHECK(report::format_shortest(1e-9) == "1e-09");
}

TEST_CASE("report/format: a clock for the time left", "[report]") {
  CHECK(report::format_clock(0) == "0:00");
  CHECK(report::format_clock(42.4) == "0:42");
  CHECK(report::format_clock(59.6) == "1:00");
  CHECK(report::format_clock(725) == "12:05");
  CHECK(report::format_clock(3 * 3600 + 7 * 60) == "3:07:00");
  CHECK(report::format_clock(-1) == "-:--");
  CHECK(report::format_clock(std::nan("")) == "-:--");
}

TEST_CASE("report/format: the C locale of the process does not matter", "[report]") {
  std::string const old = std::setlocale(LC_ALL, nullptr);
  for (char const* const name : {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "fr_FR.utf8"}) {
    if (std::setlocale(LC_ALL, name) != nullptr) break;  // where one is installed
  }
  CHECK(report::format_seconds(0.01234) == "12.3 ms");
  CHECK(report::format_bytes(1572864) == "1.50 MiB");
  std::setlocale(LC_ALL, old.c_str());
}

}  // namespace format_test
