// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/dataflow.hpp>

#include "catch.hpp"

#include <cstdint>
#include <vector>

#include <stagger/engine/replicas.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/seq_1f1b.hpp>

#include "engine/random_table.hpp"

namespace dataflow_test {

using namespace stagger;
using detail::connect;
using detail::Dataflow;
using detail::nowhere;
using detail::read_table;
using random_table::Random;
using schedule::Kind;
using schedule::Table;

namespace {

/// Whether each cell is at the index where its rank's row has it.
bool uses_fit(Dataflow const& flow, Table const& table) {
  std::size_t noted = 0;
  std::size_t actions = 0;
  for (int r = 0; r < flow.ranks(); ++r) {
    auto const row = table.row(flow.parts[r].position);
    for (std::size_t at = 0; at < row.size(); ++at) {
      auto const& use = flow.uses[flow.cell_at(row[at].stage, r)];
      std::size_t const u = flow.unit(row[at]);
      if (row[at].kind == Kind::forward && use.forward[u] != at) return false;
      if (schedule::gives_input_gradient(row[at].kind) && use.gradient[u] != at) return false;
      if (schedule::ends_flight(row[at].kind) && use.end[u] != at) return false;
    }
    actions += row.size();
  }
  for (auto const& use : flow.uses)
    for (std::size_t u = 0; u < flow.units; ++u)
      noted += use.forward[u] == nowhere ? 0U : use.gradient[u] == use.end[u] ? 2U : 3U;
  return noted == actions;
}

int count_edges(List<detail::DirectedEdge> const& list, std::size_t sender, std::size_t receiver,
                bool forward, bool by_rows) {
  int count = 0;
  for (auto const& e : list)
    count += e.sender == sender && e.receiver == receiver && e.forward == forward &&
             e.by_rows == by_rows;
  return count;
}

/// The rows that a replica has of a microbatch with so many that all shares are whole.
std::vector<bool> rows_of(Replicas::Part const& part, std::uint64_t rows) {
  std::vector<bool> own(rows);
  for (std::uint64_t i = 0; i < rows; ++i)
    own[i] = i >= part.before * (rows / part.total) &&
             i < (part.before + part.own) * (rows / part.total);
  return own;
}

}  // namespace

TEST_CASE("program/read_table: cells are by stage, then by rank, and know when they do what",
          "[program]") {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    Table const table = random_table::any(random);
    auto const flow = read_table(table, nullptr);
    REQUIRE(flow.cells.size() == static_cast<std::size_t>(table.stages));
    for (int s = 0; s < table.stages; ++s) REQUIRE(flow.cells[s].stage == s);
    REQUIRE(uses_fit(flow, table));
  }
  auto const sliced = schedule::Seq1F1B{}.table({3, 6, 1});
  CHECK(uses_fit(read_table(sliced, nullptr), sliced));
  auto const both = schedule::DualPipe{}.table({4, 8});
  Replicas const replicas{2, 1, 3, 1};
  auto const flow = read_table(both, &replicas);
  CHECK(uses_fit(flow, both));
  CHECK(flow.cells.size() == 2 * 7U);  // each rank holds two stages
  for (std::size_t c = 1; c < flow.cells.size(); ++c) {
    auto const& a = flow.cells[c - 1];
    auto const& b = flow.cells[c];
    CHECK((a.stage < b.stage || (a.stage == b.stage && a.rank < b.rank)));
  }
}

TEST_CASE("program/connect: a value goes from the owner of its microbatch to the next stage's",
          "[program]") {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    Table const table = i == 0 ? schedule::DualPipe{}.table({4, 8}) : random_table::any(random);
    auto flow = read_table(table, nullptr);
    connect(flow);
    REQUIRE(flow.row_edges.empty());
    for (std::size_t c = 0; c < flow.cells.size(); ++c) {
      for (std::size_t d = 0; d < flow.cells.size(); ++d) {
        if (flow.cells[d].stage != flow.cells[c].stage + 1) continue;
        bool common = false;
        for (std::size_t u = 0; u < flow.units; ++u)
          common =
              common || (flow.uses[c].forward[u] != nowhere && flow.uses[d].forward[u] != nowhere);
        REQUIRE((flow.cells[c].after == static_cast<int>(d)) == common);
        REQUIRE((flow.cells[d].before == static_cast<int>(c)) == common);
      }
      REQUIRE(flow.cells[c].first() == (flow.cells[c].stage == 0));
      REQUIRE(flow.cells[c].last() == (flow.cells[c].stage + 1 == table.stages));
    }
  }
}

TEST_CASE(
    "program/connect: replicas with the same rows are linked, those that share rows get row edges",
    "[program]") {
  constexpr std::uint64_t rows = 2 * 2 * 3 * 5 * 7;
  Random random(3);
  Replicas const all[] = {{1, 2, 2},           {3, 2, 1},      {{3, 1}, {3, 1}, {1, 3}},
                          {{1, 1}, 2, {5, 2}}, {2, {2, 2}, 2}, {4, 1, {1, 1, 3}}};
  for (auto const& replicas : all)
    for (int i = 0; i < 20; ++i) {
      random_table::Plan plan;
      plan.owner = random_table::owners(random, 3, 3 + random_table::below(random, 4));
      auto flow = read_table(random_table::make(random, plan), &replicas);
      connect(flow);
      std::size_t row_edges = 0;
      for (std::size_t c = 0; c < flow.cells.size(); ++c) {
        auto const& own = flow.parts[flow.cells[c].rank];
        for (std::size_t d = 0; d < flow.cells.size(); ++d) {
          if (flow.cells[d].stage != flow.cells[c].stage + 1) continue;
          auto const& other = flow.parts[flow.cells[d].rank];
          bool same = true;  // whether the two positions divide microbatches alike
          for (auto const& x : flow.parts)
            for (auto const& y : flow.parts)
              if (x.position == own.position && y.position == other.position &&
                  (x.replicas != y.replicas ||
                   (x.replica == y.replica && rows_of(x, rows) != rows_of(y, rows))))
                same = false;
          auto const a = rows_of(own, rows);
          auto const b = rows_of(other, rows);
          bool common = false;
          for (std::size_t k = 0; k < rows; ++k) common = common || (a[k] && b[k]);
          bool by_rows = false;
          for (RowEdge const& one : flow.row_edges)
            by_rows = by_rows || (one.from == c && one.to == d);
          row_edges += by_rows ? 1 : 0;
          REQUIRE(by_rows == (common && !same));
          REQUIRE(count_edges(flow.sent[c], c, d, true, by_rows) == (common ? 1 : 0));
          REQUIRE(count_edges(flow.received[d], c, d, true, by_rows) == (common ? 1 : 0));
          REQUIRE(count_edges(flow.sent[d], d, c, false, by_rows) == (common ? 1 : 0));
          REQUIRE(count_edges(flow.received[c], d, c, false, by_rows) == (common ? 1 : 0));
          REQUIRE((flow.cells[c].after == static_cast<int>(d)) == (common && same));
          if (common) REQUIRE(flow.cells[c].gathers_gradient == !same);
          if (common) REQUIRE(flow.cells[d].gathers_input == !same);
        }
        if (flow.cells[c].stage == 0) REQUIRE(flow.cells[c].gathers_input == (own.replicas > 1));
      }
      REQUIRE(row_edges == flow.row_edges.size());
    }
}

}  // namespace dataflow_test
