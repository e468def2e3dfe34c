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

TEST_CASE("core/counted: a noun that ends in a hiss takes es", "[core]") {
  CHECK(stagger::counted(1, "rank") == "1 rank");
  CHECK(stagger::counted(2, "rank") == "2 ranks");
  CHECK(stagger::counted(0, std::string("microbatch")) == "0 microbatches");
  CHECK(stagger::counted(3, std::string_view("pass")) == "3 passes");
}

}  // namespace error_test
