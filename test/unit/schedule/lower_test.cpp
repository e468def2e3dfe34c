// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/lower.hpp>

#include <algorithm>
#include <set>
#include <string>

#include <stagger/schedule/proof/evaluate.hpp>

#include "catch.hpp"
#include "oracle.hpp"
#include "zoo.hpp"

namespace lower_test {

using namespace stagger;
using namespace stagger::schedule;

namespace {

/// Runs a table with messages as ranks that do one thing at a time and stop at each message until
/// its other end is there: harder than any channel model.
bool runs_in_lockstep(Table const& t) {
  std::vector<std::size_t> at(static_cast<std::size_t>(t.ranks()), 0);
  std::set<std::string> made;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < at.size(); ++r) {
      auto const row = t.row(static_cast<int>(r));
      if (at[r] == row.size()) continue;
      Action const& a = row[at[r]];
      if (is_compute(a.kind)) {
        ++at[r];
        moved = true;
        continue;
      }
      for (std::size_t q = 0; q < at.size(); ++q) {
        auto const other = t.row(static_cast<int>(q));
        if (q != r && at[q] < other.size() && other[at[q]] == partner(a)) {
          ++at[r];
          ++at[q];
          moved = true;
          break;
        }
      }
    }
  }
  for (std::size_t r = 0; r < at.size(); ++r) {
    if (at[r] != t.row(static_cast<int>(r)).size()) return false;
  }
  return true;
}

}  // namespace

TEST_CASE(
    "schedule/lower: adds one send and one receive for each value that changes rank, and changes "
    "nothing else",
    "[schedule]") {
  for (auto const& [name, table] : zoo::all(4, 8)) {
    CAPTURE(name);
    Table const lowered = lower(table);
    std::size_t crossing = 0;
    for (int r = 0; r < table.ranks(); ++r) {
      std::vector<Action> computes;
      for (Action const& a : lowered.row(r)) {
        if (is_compute(a.kind)) computes.push_back(a);
        if (a.kind == Kind::recv_forward || a.kind == Kind::recv_backward) ++crossing;
      }
      CHECK(std::equal(computes.begin(), computes.end(), table.row(r).begin(), table.row(r).end()));
    }
    CHECK(lowered.actions.size() == table.actions.size() + 2 * crossing);
    CHECK(read_csv(write_csv(lowered)) == lowered);
    CHECK(read_csv(write_csv(table)) == table);
  }
}

TEST_CASE("schedule/lower: ranks that stop at every message still come to the end", "[schedule]") {
  for (auto const& [P, M] : {std::pair{2, 4}, {4, 8}, {6, 24}}) {
    for (auto const& [name, table] : zoo::all(P, M)) {
      CAPTURE(name, P, M);
      CHECK(runs_in_lockstep(lower(table)));
      CHECK(runs_in_lockstep(lower(table, Costs::uniform(1, 3, 0, 2))));
      CHECK(runs_in_lockstep(lower(table, Costs::uniform(0, 0, 0, 0))));
    }
  }
}

TEST_CASE("schedule/lower: messages hide behind compute as far as pure delay would let them",
          "[schedule]") {
  Costs const costs = Costs::uniform(1, 1, 1, 0.1);
  for (auto const& [name, table] : zoo::all(4, 16)) {
    CAPTURE(name);
    double const delay = evaluate(table, costs).makespan_s;
    Table const lowered = lower(table);
    CHECK(evaluate(lowered, costs, Channels::independent).makespan_s == Approx(delay));
    CHECK(evaluate(lowered, costs, Channels::per_peer).makespan_s >= delay - 1e-9);
    CHECK(evaluate(lowered, costs, Channels::per_peer).makespan_s <= 1.025 * delay);
    CHECK(evaluate(lowered, Costs{}, Channels::per_rank).makespan_s == evaluate(table).makespan_s);
  }
}

TEST_CASE("schedule/lower: refuses what holds messages already, and what never ends",
          "[schedule]") {
  CHECK_THROWS_WITH(lower(lower(OneFOneB{}.table({2, 2}))), Catch::Contains("messages already"));
  CHECK_THROWS_WITH(lower(oracle::table("0F0,0B0,0F1,0B1 / 1F0,1F1,1B0,1B1")),
                    Catch::Contains("waits for ever"));
  CHECK_THROWS_AS(lower(oracle::table("0F0,2000000000F2000000000")), Error);
  CHECK_THROWS_AS(lower(OneFOneB{}.table({2, 2}), Costs::uniform(-1, 1, 1)), Error);
}

}  // namespace lower_test
