// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/transfers.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/schedule/named.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "catch.hpp"

namespace transfers_test {

namespace {

namespace schedule = stagger::schedule;
using schedule::Kind;

using Key = std::tuple<Kind, int, int, int>;  // kind, stage, microbatch, slice
struct Place {
  std::size_t rank;
  double start_s, end_s;
};

std::map<Key, Place> places(schedule::Timeline const& timeline) {
  std::map<Key, Place> all;
  for (std::size_t r = 0; r < timeline.row_begin.size(); ++r) {
    for (auto const& span : timeline.row(r)) {
      auto const& a = span.action;
      bool const first =
          all.insert({{a.kind, a.stage, a.microbatch, a.slice}, {r, span.start_s, span.end_s}})
              .second;
      CHECK(first);
    }
  }
  return all;
}

}  // namespace

TEST_CASE(
    "schedule/add_transfers: a value is on its way from its maker's end, wherever it changes ranks",
    "[schedule]") {
  schedule::Costs const costs = schedule::Costs::uniform(1, 1, 1, 0.5);
  for (char const* policy : {"1f1b", "interleaved", "zb-v", "dualpipe", "seq-1f1b"}) {
    INFO(policy);
    int const chunks =
        std::string(policy) == "interleaved" || std::string(policy) == "zb-v" ? 2 : 1;
    auto const table = schedule::Named{policy}.table({4, 8, chunks});
    auto const before = schedule::evaluate(table, costs).timeline;
    auto timeline = before;
    schedule::add_transfers(timeline, table, costs);
    auto const all = places(timeline);
    double const link_s = 0.5 / table.slices;
    std::size_t messages = 0;
    for (auto const& [key, maker] : places(before)) {
      auto const [kind, stage, microbatch, slice] = key;
      bool const forward = kind == Kind::forward;
      if (kind == Kind::backward_weight) continue;
      int const next = stage + (forward ? 1 : -1);
      if (next < 0 || next >= table.stages) continue;
      // The action that uses the value: F, B or I.
      auto user = all.find({forward ? Kind::forward : Kind::backward, next, microbatch, slice});
      if (user == all.end()) user = all.find({Kind::backward_input, next, microbatch, slice});
      REQUIRE(user != all.end());
      auto const send =
          all.find({forward ? Kind::send_forward : Kind::send_backward, stage, microbatch, slice});
      auto const receive =
          all.find({forward ? Kind::recv_forward : Kind::recv_backward, next, microbatch, slice});
      bool const crosses = user->second.rank != maker.rank;
      REQUIRE((send != all.end()) == crosses);
      REQUIRE((receive != all.end()) == crosses);
      if (!crosses) continue;
      messages += 2;
      CHECK(send->second.rank == maker.rank);
      CHECK(receive->second.rank == user->second.rank);
      for (auto const* one : {&send->second, &receive->second}) {
        CHECK(one->start_s == maker.end_s);
        CHECK(one->end_s == Approx(maker.end_s + link_s));
        CHECK(one->end_s <= user->second.start_s + 1e-9);
      }
    }
    CHECK(messages > 0);
    CHECK(all.size() == table.actions.size() + messages);
    for (int r = 0; r < timeline.ranks(); ++r)
      for (std::size_t i = 1; i < timeline.row(r).size(); ++i)
        CHECK(timeline.row(r)[i - 1].start_s <= timeline.row(r)[i].start_s);
  }
}

TEST_CASE("schedule/add_transfers: what takes no time is left out", "[schedule]") {
  auto const table = schedule::Named{"1f1b"}.table({4, 8, 1});
  auto timeline = schedule::evaluate(table).timeline;
  schedule::add_transfers(timeline, table, {});
  for (int r = 0; r < timeline.ranks(); ++r) CHECK(timeline.row(r).size() == 16);
}

TEST_CASE("schedule/require_counts: the nearest legal value is the largest legal one",
          "[schedule]") {
  CHECK_NOTHROW(schedule::require_counts("p", {100000, 5368, 1}, 1));
  CHECK_THROWS_WITH(
      schedule::require_counts("p", {100000, 5369, 1}, 1),
      "schedule p cannot have 5369 microbatches: a table has less than 2^29 pairs of a stage and "
      "a microbatch; the nearest legal value is 5368");
  CHECK_THROWS_WITH(schedule::require_counts("p", {1 << 29, 1, 1}, 1),
                    Catch::Contains("nearest legal value is 536870911"));
  CHECK_NOTHROW(schedule::require_counts("p", {536870911, 1, 1}, 1));
}

}  // namespace transfers_test
