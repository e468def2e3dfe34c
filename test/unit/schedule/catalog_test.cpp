// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/catalog.hpp>

#include "catch.hpp"

using namespace stagger;
using namespace stagger::schedule;

TEST_CASE("schedule/catalog: every name makes a legal table of the shape asked for", "[schedule]") {
  for (CatalogEntry const& entry : catalog) {
    CAPTURE(entry.name);
    Table const table = make_table(entry.name, {4, 8, entry.chunks});
    CHECK_FALSE(verify(table));
    CHECK(table.ranks() == 4);
    CHECK(table.stages == 4 * entry.chunks);
    CHECK(table.microbatches == 8);
  }
}

TEST_CASE("schedule/catalog: names are told apart, unknown ones refused", "[schedule]") {
  for (std::size_t i = 0; i < catalog.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) CHECK(catalog[i].name != catalog[k].name);
  }
  CHECK_THROWS_WITH(make_table("2f2b", {4, 8}), Catch::Contains("'2f2b'"));
}

TEST_CASE("schedule/catalog: an in-flight limit shortens, bounds or refuses, as the schedule can",
          "[schedule]") {
  for (char const* name : {"1f1b", "fifo", "pipedream", "auto"}) {
    CHECK_FALSE(verify(make_table(name, {4, 8}, {.limits = {.in_flight = 2}}), {.in_flight = 2}));
  }
  CHECK_NOTHROW(make_table("zb-h1", {4, 8}, {.limits = {.in_flight = 4}}));
  CHECK_THROWS_WITH(make_table("gpipe", {4, 8}, {.limits = {.in_flight = 7}}),
                    Catch::Contains("nearest legal value is 8"));
  CHECK_THROWS_WITH(make_table("hanayo", {4, 8, 3}), Catch::Contains("3 chunks"));
}
