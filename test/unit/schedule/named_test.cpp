// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/named.hpp>

#include <set>
#include <string>
#include <utility>

#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "catch.hpp"

namespace named_test {

using namespace stagger;
using namespace stagger::schedule;

namespace {

Named named(CatalogEntry const& entry) { return {.name = std::string(entry.name)}; }

}  // namespace

TEST_CASE("schedule/Named: every name makes the table of its policy", "[schedule]") {
  std::size_t compared = 0;
  catalog_lines.for_each([&]<class P>(CatalogLine<P> const&) {
    CAPTURE(catalog_name<P>);
    P const policy{};
    Named const same{.name = std::string(catalog_name<P>)};
    REQUIRE(same.chunks() == policy.chunks());
    Shape const shape{4, 8, policy.chunks()};
    Table const table = same.table(shape);
    CHECK(table == policy.table(shape));
    CHECK_FALSE(verify(table));
    CHECK(weight_versions(same, shape) == weight_versions(policy, shape));
    ++compared;
  });
  CHECK(compared == catalog.size());
}

TEST_CASE("schedule/Named: options go to the policy that has them", "[schedule]") {
  CHECK(Named{.name = "1f1b", .warmup = Warmup::deep}.table({4, 8}) ==
        OneFOneB{.warmup = Warmup::deep}.table({4, 8}));
  CHECK(Named{.name = "interleaved", .chunks_per_rank = 3, .group = 8}.table({4, 8, 3}) ==
        Interleaved{.chunks_per_rank = 3, .group = 8}.table({4, 8, 3}));
  CHECK(Named{.name = "hanayo", .chunks_per_rank = 4}.table({4, 8, 4}) ==
        Hanayo{.waves = 2}.table({4, 8, 4}));
  CHECK(Named{.name = "seq-1f1b", .slices = 3}.table({4, 8}) == Seq1F1B{3}.table({4, 8}));
  CHECK(Named{.name = "forward-only", .mapping = Mapping::zigzag}.table({4, 8, 2}) ==
        ForwardOnly{2, Mapping::zigzag}.table({4, 8, 2}));
  Costs const expensive = Costs::uniform(1, 2, 3, 0.5);
  CHECK(Named{.name = "fifo", .costs = expensive, .limits = {.in_flight = 3}}.table({4, 8}) ==
        Fifo{.in_flight = 3, .costs = expensive}.table({4, 8}));
  Limits const memory{.memory = 3};
  CHECK(Named{.name = "auto", .costs = expensive, .limits = memory}.table({4, 8}) ==
        Auto{expensive, memory}.table({4, 8}));
  CHECK(Named{.name = "looped-bfs"}.table({4, 8, 3}) == LoopedBfs{3}.table({4, 8, 3}));
  CHECK(Named{"seq-1f1b"}.facts().slices == 2);
  CHECK(Named{.name = "seq-1f1b", .slices = 5}.facts().slices == 5);
}

TEST_CASE("schedule/Named: an option that a schedule does not have is refused", "[schedule]") {
  CHECK_THROWS_WITH((Named{.name = "gpipe", .warmup = Warmup::deep}.table({4, 8})),
                    Catch::Contains("schedule gpipe has no option 'warmup'; leave it out"));
  CHECK_THROWS_WITH((Named{.name = "1f1b", .group = 4}.table({4, 8})), Catch::Contains("'group'"));
  CHECK_THROWS_WITH((Named{.name = "1f1b", .slices = 2}.table({4, 8})),
                    Catch::Contains("'slices'"));
  CHECK_THROWS_WITH((Named{.name = "1f1b", .mapping = Mapping::zigzag}.table({4, 8})),
                    Catch::Contains("'mapping'"));
  CHECK_THROWS_WITH((Named{.name = "1f1b", .limits = {.memory = 2}}.table({4, 8})),
                    Catch::Contains("'limits.memory'"));
  CHECK_THROWS_WITH((Named{.name = "gpipe", .chunks_per_rank = 2}.table({4, 8, 2})),
                    Catch::Contains("2 chunks"));
  CHECK_THROWS_WITH((Named{.name = "looped-bfs", .chunks_per_rank = 2}.table({4, 8, 3})),
                    Catch::Contains("3 chunks"));
  CHECK_THROWS_WITH((Named{"hanayo"}.table({4, 8, 3})), Catch::Contains("3 chunks"));
}

TEST_CASE("schedule/Named: names are told apart, of unknown ones the nearest is named",
          "[schedule]") {
  std::set<std::string_view> names;
  for (auto const& entry : catalog) CHECK(names.insert(entry.name).second);
  CHECK_THROWS_WITH(Named{"zbv"}.table({4, 8, 2}),
                    "there is no schedule 'zbv'; the nearest is 'zb-v'");
  CHECK_THROWS_WITH(Named{"2f2b"}.chunks(), "there is no schedule '2f2b'; the nearest is '1f1b'");
  CHECK_THROWS_AS(Named{""}.facts(), Error);
}

TEST_CASE("schedule/catalog: its facts are those of the tables", "[schedule]") {
  for (auto const& entry : catalog) {
    CAPTURE(entry.name);
    int const P = 4;
    Table const table = named(entry).table({P, 8, entry.chunks});
    std::set<std::pair<int, int>> seen;
    bool backward = false;
    for (int r = 0; r < P; ++r) {
      for (Action const& a : table.row(r)) {
        seen.insert({a.stage, r});
        backward = backward || a.kind != Kind::forward;
      }
    }
    std::set<std::pair<int, int>> expected;
    for (int s = 0; s < P * entry.chunks; ++s) {
      bool const up = entry.mapping == Mapping::zigzag && s / P % 2 == 1;
      expected.insert({s, up ? P - 1 - s % P : s % P});
      if (entry.owners == 2) expected.insert({s, P - 1 - s});
    }
    CHECK(seen == expected);
    CHECK(backward == entry.trains);
    CHECK(table.slices == entry.slices);
    CHECK((entry.owners == 2) == (entry.mapping == Mapping::bidirectional));
  }
}

TEST_CASE("schedule/Named: an in-flight limit shortens, bounds or refuses, as the schedule can",
          "[schedule]") {
  for (char const* name : {"1f1b", "fifo", "pipedream", "auto"}) {
    Limits const two{.in_flight = 2};
    CHECK_FALSE(verify(Named{.name = name, .limits = two}.table({4, 8}), {.in_flight = 2}));
  }
  CHECK_NOTHROW(Named{.name = "zb-h1", .limits = {.in_flight = 4}}.table({4, 8}));
  CHECK_THROWS_WITH((Named{.name = "gpipe", .limits = {.in_flight = 7}}.table({4, 8})),
                    Catch::Contains("nearest legal value is 8"));
  for (char const* name : {"gpipe", "1f1b", "forward-only"})
    CHECK_THROWS_WITH((Named{.name = name, .limits = {.in_flight = -1}}.table({4, 8})),
                      Catch::Contains("cannot have -1 microbatches in flight"));
}

}  // namespace named_test
