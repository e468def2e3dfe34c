// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/verify.hpp>

#include <random>
#include <string>

#include <stagger/schedule/lower.hpp>

#include "catch.hpp"
#include "oracle.hpp"
#include "zoo.hpp"

using namespace stagger;
using namespace stagger::schedule;

namespace {

Fault fault_of(char const* text, VerifyOptions options = {}) {
  return verify(oracle::table(text), options);
}

/// Swaps, drops, doubles or moves one action.
Table mutate(Table const& table, std::mt19937& random) {
  std::vector<std::vector<Action>> rows;
  for (int r = 0; r < table.ranks(); ++r)
    rows.emplace_back(table.row(r).begin(), table.row(r).end());
  auto const pick = [&]() -> std::pair<std::size_t, std::size_t> {
    for (;;) {
      std::size_t const r = random() % rows.size();
      if (!rows[r].empty()) return {r, random() % rows[r].size()};
    }
  };
  auto const [r, i] = pick();
  auto const at = static_cast<std::ptrdiff_t>(i);
  switch (random() % 5) {
    case 0: {
      auto const [q, k] = pick();
      std::swap(rows[r][i], rows[q][k]);
      break;
    }
    case 1:
      if (i + 1 < rows[r].size()) std::swap(rows[r][i], rows[r][i + 1]);
      break;
    case 2:
      rows[r].erase(rows[r].begin() + at);
      break;
    case 3: {
      auto const [q, k] = pick();
      Action const copy = rows[r][i];
      rows[q].insert(rows[q].begin() + static_cast<std::ptrdiff_t>(k), copy);
      break;
    }
    default: {
      Action const taken = rows[r][i];
      rows[r].erase(rows[r].begin() + at);
      std::size_t const q = random() % 3 != 0 ? r : random() % rows.size();
      rows[q].insert(rows[q].begin() + static_cast<std::ptrdiff_t>(random() % (rows[q].size() + 1)),
                     taken);
      break;
    }
  }
  Table out{.stages = table.stages, .microbatches = table.microbatches, .slices = table.slices};
  for (auto const& row : rows) {
    out.begin_row();
    for (Action const& a : row) out.add(a);
  }
  return out;
}

}  // namespace

TEST_CASE("schedule/verify: each kind of fault is found where it is", "[schedule]") {
  CHECK_FALSE(fault_of("0F0,0F1,0B0,0B1 / 1F0,1B0,1F1,1B1"));
  CHECK_FALSE(fault_of("0F0,0F1 / 1F0,1F1"));  // forward-only
  auto const is = [](Fault const& f, FaultKind kind, int rank, int position, char const* action) {
    CAPTURE(message(f));
    CHECK(f.kind == kind);
    CHECK(f.rank == rank);
    CHECK(f.position == position);
    CHECK(to_string(f.action) == action);
    CHECK_THAT(message(f), Catch::Contains(action));
  };
  is(fault_of("0F0,0F1,0B0,0B1 / 1F0,1B0,1F1"), FaultKind::missing, 1, 3, "1B1");
  is(fault_of("0F0,0I0 / 1F0,1B0"), FaultKind::missing, 0, 2, "0W0");
  is(fault_of("0F0,0B0 / \n1F0,1B0"), FaultKind::missing, 1, 0, "1F0");
  is(fault_of("0F0,0B0,0F0 / 1F0,1B0"), FaultKind::duplicate, 0, 2, "0F0");
  is(fault_of("0F0,0I0,0B0 / 1F0,1B0"), FaultKind::duplicate, 0, 2, "0B0");
  is(fault_of("0F0,0B0,1B0 / 1F0"), FaultKind::placement, 1, 0, "1F0");
  is(fault_of("0F0,0B0 / 1B0,1F0"), FaultKind::order, 1, 0, "1B0");
  is(fault_of("0F0,0W0,0I0 / 1F0,1B0"), FaultKind::order, 0, 1, "0W0");
  is(fault_of("2F0,0F0,2B0,0B0 / 1F0,1B0"), FaultKind::order, 0, 1, "0F0");
  is(fault_of("0F0,0F1,0B0,0B1 / 1F1,1B1,1F0,1B0"), FaultKind::message_order, 0, 3, "0B1");
  is(fault_of("0F0,0B0,0F1,0B1 / 1F0,1F1,1B0,1B1"), FaultKind::deadlock, 0, 1, "0B0");
  is(fault_of("0F0,0F1,0B0,0B1 / 1F0,1B0,1F1,1B1", {.in_flight = 1}), FaultKind::memory, 0, 1,
     "0F1");
  is(fault_of("0F0,0SEND_F0,0RECV_B0,0B0 / 1RECV_F0,1F0,1B0"), FaultKind::unmatched_message, 0, 2,
     "0RECV_B0");
  is(fault_of("0F0,0SEND_F0,0B0 / 1RECV_F0,1F0,1B0,1SEND_B0"), FaultKind::unmatched_message, 0, 2,
     "0RECV_B0");
  is(fault_of("0SEND_F0,0F0,0RECV_B0,0B0 / 1RECV_F0,1F0,1B0,1SEND_B0"), FaultKind::order, 0, 0,
     "0SEND_F0");
  is(fault_of("0F0,0SEND_F0,0B0,0RECV_B0 / 1RECV_F0,1F0,1B0,1SEND_B0"), FaultKind::order, 0, 3,
     "0RECV_B0");
  CHECK_FALSE(fault_of("0F0,0B0,0REDUCE_GRAD / 1F0,1B0"));
  is(fault_of("0F0,0REDUCE_GRAD,0B0 / 1F0,1B0"), FaultKind::order, 0, 1, "0REDUCE_GRAD");
  is(fault_of("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD / 1F0,1B0"), FaultKind::duplicate, 0, 3,
     "0REDUCE_GRAD");
  is(fault_of("0F0,0B0,1REDUCE_GRAD / 1F0,1B0"), FaultKind::placement, 0, 2, "1REDUCE_GRAD");
  is(fault_of("0F0,1F1,0B0,1B1,0REDUCE_GRAD / 1F0,0F1,1B0,0B1"), FaultKind::missing, -1, -1,
     "0REDUCE_GRAD");
  is(fault_of("0F0,1F1,0B0,1B1,0REDUCE_GRAD,1REDUCE_GRAD / "
              "1F0,0F1,1B0,0B1,1REDUCE_GRAD,0REDUCE_GRAD"),
     FaultKind::deadlock, 0, 4, "0REDUCE_GRAD");
  Table bad{.stages = 1, .microbatches = 1};
  bad.begin_row();
  bad.add({.kind = Kind::forward, .stage = 0, .microbatch = 7});
  is(verify(bad), FaultKind::parse, 0, 0, "0F7");
}

TEST_CASE("schedule/verify: separate sends and receives of 1F1B deadlock on one channel per peer",
          "[schedule]") {
  Table const t = oracle::table(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2 / "
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2");
  Fault const f = verify(t);
  CHECK(f.kind == FaultKind::deadlock);
  CHECK(f.rank == 0);
  CHECK(to_string(f.action) == "0SEND_F1");
  CHECK(verify(t, {.channels = Channels::per_rank}).kind == FaultKind::deadlock);
  CHECK_FALSE(verify(t, {.channels = Channels::independent}));
}

TEST_CASE(
    "schedule/verify: indices far beyond the number of actions are a fault, not an allocation",
    "[schedule]") {
  Fault const f = verify(oracle::table("0F0,2000000000F2000000000"));
  CHECK(f.kind == FaultKind::missing);
  CHECK(to_string(f.action) == "0F1");
  CHECK(verify(Table{}).kind == FaultKind::missing);
}

TEST_CASE("schedule/verify: every schedule is legal, and so is its lowered form on all channels",
          "[schedule]") {
  for (auto const& [P, M] : {std::pair{2, 4}, {4, 8}, {4, 12}, {6, 12}}) {
    for (auto const& [name, table] : zoo::all(P, M)) {
      CAPTURE(name, P, M);
      CHECK_FALSE(verify(table));
      CHECK(oracle::play(table).ok);
      Table const lowered = lower(table);
      for (Channels const channels :
           {Channels::independent, Channels::per_peer, Channels::per_rank}) {
        CAPTURE(message(verify(lowered, {.channels = channels})));
        CHECK_FALSE(verify(lowered, {.channels = channels}));
        CHECK(oracle::play_messages(lowered, static_cast<int>(channels)).ok);
      }
    }
  }
}

TEST_CASE("schedule/verify: agrees with the slow simulator on mutated tables", "[schedule]") {
  std::mt19937 random(20240229);
  int legal = 0, refused = 0;
  auto const tables = zoo::all(2, 4);
  for (int i = 0; i < 100000; ++i) {
    auto const& [name, table] = tables[static_cast<std::size_t>(i) % tables.size()];
    Table const t = mutate(table, random);
    Fault const fault = verify(t);
    auto const truth = oracle::play(t);
    if (static_cast<bool>(fault) == truth.ok) {
      CAPTURE(name, write_csv(t), message(fault), truth.why);
      FAIL("they differ");
    }
    ++(truth.ok ? legal : refused);
  }
  CHECK(legal > 5000);
  CHECK(refused > 50000);
}

TEST_CASE("schedule/verify: agrees with the slow simulator on mutated tables with messages",
          "[schedule]") {
  std::mt19937 random(4711);
  int legal = 0, deadlocks = 0;
  std::vector<std::pair<std::string, Table>> tables;
  for (auto const& [name, table] : zoo::all(2, 4)) {
    if (table.slices == 1 && table.stages <= 4) tables.emplace_back(name, lower(table));
  }
  for (int i = 0; i < 15000; ++i) {
    auto const& [name, table] = tables[static_cast<std::size_t>(i) % tables.size()];
    Table const t = mutate(table, random);
    auto const channels = static_cast<Channels>(random() % 3);
    Fault const fault = verify(t, {.channels = channels});
    auto const truth = oracle::play_messages(t, static_cast<int>(channels));
    if (static_cast<bool>(fault) == truth.ok) {
      CAPTURE(name, write_csv(t), message(fault), truth.why, static_cast<int>(channels));
      FAIL("they differ");
    }
    legal += truth.ok ? 1 : 0;
    deadlocks += fault.kind == FaultKind::deadlock ? 1 : 0;
  }
  CHECK(legal > 1000);
  CHECK(deadlocks > 200);
}
