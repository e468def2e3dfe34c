// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/detail/search/fill.hpp>

#include <limits>
#include <string>

#include <stagger/schedule/csv.hpp>

#include "catch.hpp"

namespace fill_test {

using namespace stagger;
using namespace stagger::schedule;

namespace {

/// The table of one rule for one stage of F = 1, I = 1 and W = 1 on each rank.
std::string filled(Shape shape, Limits const& limits, schedule::detail::FillRule const& rule,
                   double& best_s, int slices = 1) {
  schedule::detail::Times const times(shape.ranks, {.forward = 1, .input = 1, .weight = 1});
  Grid<int> owner(shape.ranks);
  for (int s = 0; s < shape.ranks; ++s) owner[s] = s;
  return write_csv(schedule::detail::Fill(shape, owner, times, limits, rule, slices).table(best_s));
}

TEST_CASE("schedule/Fill: a limit of one in flight runs a microbatch to its end", "[schedule]") {
  double best_s = std::numeric_limits<double>::infinity();
  CHECK(filled({1, 2}, {.in_flight = 1}, {}, best_s) == "0F0,0I0,0W0,0F1,0I1,0W1\n");
  CHECK(best_s == 6);
}

TEST_CASE("schedule/chunk_rules: more memory than can be counted opens windows wide",
          "[schedule]") {
  for (double const memory : {1e6, 1e300})
    CHECK(schedule::detail::chunk_rules(4, 2, {.memory = memory})[1].window >= 750000);
}

TEST_CASE("schedule/Fill: weight gradients wait for room or a gap", "[schedule]") {
  double best_s = std::numeric_limits<double>::infinity();
  CHECK(filled({2, 2}, {}, {.alternate = true}, best_s) ==
        "0F0,0F1,0I0,0W0,0I1,0W1\n"
        "1F0,1I0,1F1,1I1,1W0,1W1\n");
  CHECK(best_s == 7);
}

TEST_CASE("schedule/Fill: gradients of slices come in blocks", "[schedule]") {
  double best_s = std::numeric_limits<double>::infinity();
  CHECK(filled({1, 4}, {}, {.warm_up = 1}, best_s, 2) ==
        "0F0,0F1,0I0,0I1,0F2,0F3,0I2,0I3,0W0,0W1,0W2,0W3\n");
}

TEST_CASE("schedule/Fill: what is no shorter is left, and best_s as it was", "[schedule]") {
  double best_s = 7;
  CHECK(filled({2, 2}, {}, {.alternate = true}, best_s).empty());
  CHECK(best_s == 7);
}

}  // namespace

}  // namespace fill_test
