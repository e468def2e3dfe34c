// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/detail/slots.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include <stagger/engine/replicas.hpp>
#include <stagger/schedule/one_f_one_b.hpp>

#include "engine/random_table.hpp"

namespace slots_test {

using namespace stagger;
using detail::add_slot;
using detail::assign_slots;
using detail::connect;
using detail::Dataflow;
using detail::Messages;
using detail::most_alive;
using detail::nowhere;
using detail::read_table;
using detail::RowIndices;
using detail::SlotCounts;
using random_table::Random;

namespace {

/// Whether no two values of one row share a slot while both are alive.
bool apart(Messages const& messages, RowIndices const& from, RowIndices const& to) {
  for (std::size_t a = 0; a < from.size(); ++a) {
    if (from[a] != nowhere && messages.slot[a] >= messages.slots) return false;
    for (std::size_t b = 0; b < a; ++b)
      if (from[a] != nowhere && from[b] != nowhere && messages.slot[a] == messages.slot[b] &&
          std::max(from[a], from[b]) <= std::min(to[a], to[b]))
        return false;
  }
  return true;
}

}  // namespace

TEST_CASE("program/assign_slots: values that are alive together lie in different slots",
          "[program]") {
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    auto const table = random_table::any(random);
    bool const recompute = i % 2 == 0;
    std::uint32_t const spare = static_cast<std::uint32_t>(i) % 3;
    auto flow = read_table(table, nullptr);
    connect(flow);
    auto const plan = assign_slots(flow, {flow.cells.size(), spare}, recompute);
    for (auto const* gathered : {&plan.y, &plan.dx})
      for (auto const& messages : *gathered) CHECK(messages.slots == 0);
    for (std::size_t c = 0; c < flow.cells.size(); ++c) {
      auto const& use = flow.uses[c];
      REQUIRE(apart(plan.kept[c], recompute ? use.gradient : use.forward, use.end));
      REQUIRE(apart(plan.inner[c], use.gradient, use.end));
      REQUIRE(apart(plan.dy[c], use.gradient, use.end));
      int const before = flow.cells[c].before;
      if (before == Cell::none) continue;
      REQUIRE(apart(plan.x[c], use.forward, use.end));
      if (flow.cells[before].rank == flow.cells[c].rank) continue;
      auto const wanted = most_alive(use.forward, use.end, flow.length_at(c)) + spare;
      REQUIRE(plan.x[c].slots >= std::min<std::size_t>(wanted, flow.units));
    }
  }
}

TEST_CASE("program/assign_slots: a rank keeps what its own stages hand to each other until its use",
          "[program]") {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    random_table::Plan all;
    all.owner = {0, 0, 0};
    all.microbatches = 1 + random_table::below(random, 5);
    auto flow = read_table(random_table::make(random, all), nullptr);
    connect(flow);
    auto const plan = assign_slots(flow, {flow.cells.size(), 5}, false);
    for (std::size_t c = 1; c < 3; ++c) {
      REQUIRE(apart(plan.x[c], flow.uses[c - 1].forward, flow.uses[c].end));
      REQUIRE(apart(plan.dy[c - 1], flow.uses[c].gradient, flow.uses[c - 1].end));
      // Nothing spare within a rank.
      REQUIRE(plan.x[c].slots ==
              most_alive(flow.uses[c - 1].forward, flow.uses[c].end, flow.length_at(c)));
    }
  }
}

TEST_CASE("program/add_slot: more slots for what the signal says is free, up to one for each value",
          "[program]") {
  auto flow = read_table(schedule::OneFOneB{}.table({2, 3}), nullptr);
  connect(flow);
  SlotCounts counts(2, 0U);
  CHECK_FALSE(add_slot(flow, counts, signal_of(0, EdgeSignal::forward_full)));
  CHECK_FALSE(add_slot(flow, counts, signal_of(0, EdgeSignal::backward_full)));
  CHECK_FALSE(add_slot(flow, counts, signal_of(2, EdgeSignal::forward_free)));  // of no edge
  CHECK(counts.spare == List<std::uint32_t>{0, 0, 0, 0});
  CHECK(add_slot(flow, counts, signal_of(0, EdgeSignal::forward_free)));
  CHECK(counts.spare == List<std::uint32_t>{0, 0, 1, 0});  // inputs of the second stage
  CHECK(add_slot(flow, counts, signal_of(0, EdgeSignal::backward_free)));
  CHECK(counts.spare == List<std::uint32_t>{0, 1, 1, 0});  // gradients of the first one's output
  CHECK(add_slot(flow, counts, signal_of(0, EdgeSignal::forward_free)));
  CHECK(add_slot(flow, counts, signal_of(0, EdgeSignal::forward_free)));
  CHECK_FALSE(add_slot(flow, counts, signal_of(0, EdgeSignal::forward_free)));

  Replicas const replicas{1, 2};
  auto split = read_table(schedule::OneFOneB{}.table({2, 3}), &replicas);
  connect(split);
  REQUIRE(split.row_edges.size() == 2);
  SlotCounts by_rows(3, 0U);
  // Replicas have one count: the second row edge leads to the second replica.
  CHECK(add_slot(split, by_rows, signal_of(3 + 1, EdgeSignal::forward_free)));
  CHECK(add_slot(split, by_rows, signal_of(3 + 1, EdgeSignal::backward_free)));
  CHECK(by_rows.spare == List<std::uint32_t>{0, 1, 1, 0, 0, 0});
  auto const plan = assign_slots(split, by_rows, false);
  CHECK(plan.y[0].slots == 2);
  CHECK(plan.dx[1].slots == 2);
  CHECK(plan.dx[2].slots == 2);
}

}  // namespace slots_test
