// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/error.hpp>

#include "catch.hpp"

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
