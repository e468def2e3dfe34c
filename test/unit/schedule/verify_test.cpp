// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/verify.hpp>

#include <random>
#include <string>

#include <stagger/schedule/proof/lower.hpp>
#include <stagger/schedule/proof/reductions.hpp>

#include "catch.hpp"
#include "oracle.hpp"
#include "zoo.hpp"

namespace verify_test {

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
  auto const is = [](Fault const& f, FaultKind kind, int rank, int index, char const* action) {
    CAPTURE(message(f));
    CHECK(f.kind == kind);
    CHECK(f.rank == rank);
    CHECK(f.index == index);
    CHECK(to_string(f.action) == action);
    CHECK_THAT(message(f), Catch::Contains(action));
  };
  is(fault_of("0F0,0F1,0B0,0B1 / 1F0,1B0,1F1"), FaultKind::missing, 1, 3, "1B1");
  is(fault_of("0F0,0I0 / 1F0,1B0"), FaultKind::missing, 0, 2, "0W0");
  is(fault_of("0F0,0B0,0F0 / 1F0,1B0"), FaultKind::duplicate, 0, 2, "0F0");
  is(fault_of("0F0,0I0,0B0 / 1F0,1B0"), FaultKind::duplicate, 0, 2, "0B0");
  is(fault_of("0F0,0B0,0W0 / 1F0,1B0"), FaultKind::duplicate, 0, 2, "0W0");
  is(fault_of("0F0,0B0,0I0 / 1F0,1B0"), FaultKind::duplicate, 0, 2, "0I0");
  CHECK_FALSE(fault_of("0F0s0,0F0s1,0B0s1,0B0s0"));
  is(fault_of("0F0s0,0F0s1,0B0s0,0B0s1"), FaultKind::order, 0, 2, "0B0");
  is(fault_of("0F0,0SEND_F0,0RECV_B0 / 1RECV_F0,1F0,1SEND_B0"), FaultKind::unmatched_message, 0, 2,
     "0RECV_B0");  // a gradient where there are none
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
  is(fault_of("0F0,0REDUCE_GRAD / 1F0"), FaultKind::missing, 0, 2, "0B0");  // what is added up?
  is(fault_of("0F0,0REDUCE_GRAD,0B0 / 1F0,1B0"), FaultKind::order, 0, 1, "0REDUCE_GRAD");
  is(fault_of("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD / 1F0,1B0"), FaultKind::duplicate, 0, 3,
     "0REDUCE_GRAD");
  is(fault_of("0F0,0B0,1REDUCE_GRAD / 1F0,1B0"), FaultKind::placement, 0, 2, "1REDUCE_GRAD");
  is(fault_of("0F0,1F1,0B0,1B1,0REDUCE_GRAD / 1F0,0F1,1B0,0B1"), FaultKind::missing, -1, -1,
     "0REDUCE_GRAD");
  is(fault_of("0F0,1F1,0B0,1B1,0REDUCE_GRAD,1REDUCE_GRAD / "
              "1F0,0F1,1B0,0B1,1REDUCE_GRAD,0REDUCE_GRAD"),
     FaultKind::deadlock, 0, 4, "0REDUCE_GRAD");
  Fault const empty = fault_of("0F0,0B0 / \n1F0,1B0");
  CHECK(empty.no_actions());
  CHECK(empty.rank == 1);
  CHECK(message(empty) == "rank 1 has no actions; give it some, or remove its row");
  CHECK(message(fault_of("0F0,0B0,0F0")) ==
        "0F0 (rank 0, action 2) is in the table twice; remove one of the two");
  for (auto const& [table, words] :
       {std::pair{"0F0,0B0,0W0", "0W0 (rank 0, action 2) stands beside 0B0, but B is a whole"},
        {"0F0,0I0,0B0", "0B0 (rank 0, action 2) stands beside 0I0, but B is a whole"},
        {"0F0,0I0,0W0,0W0", "0W0 (rank 0, action 3) is in the table twice"},
        {"0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD", "0REDUCE_GRAD (rank 0, action 3) is in the table"}})
    CHECK_THAT(message(fault_of(table)), Catch::StartsWith(words));
  CHECK_THAT(message(fault_of("0F0,0F1,1F1,1F0,1B0,0B0,1B1,0B1")),
             Catch::StartsWith("1F0 (rank 0, action 3) takes its microbatch out of turn") &&
                 Catch::Contains("on the same rank too"));
  Table bad{.stages = 1, .microbatches = 1};
  bad.begin_row();
  bad.add({.kind = Kind::forward, .stage = 0, .microbatch = 7});
  is(verify(bad), FaultKind::out_of_range, 0, 0, "0F7");
  CHECK_THAT(message(verify(bad)), Catch::Contains("that the table does not have"));
  bad.actions[0] = {.kind = Kind::forward, .stage = -1};
  is(verify(bad), FaultKind::out_of_range, 0, 0, "-1F0");
  bad.stages = 0;
  bad.actions[0] = {.kind = Kind::forward};
  is(verify(bad), FaultKind::out_of_range, 0, 0, "0F0");
  Table swapped = oracle::table("0F0,0B0,0F1,0B1");  // a pair holds both until it ends
  swapped.actions[1].overlaps_next = true;
  CHECK_FALSE(verify(swapped, {.in_flight = 2}));
  is(verify(swapped, {.in_flight = 1}), FaultKind::memory, 0, 2, "0F1");
  Table pair = oracle::table("0F0,0F1,0B0,0B1");
  pair.actions[0].overlaps_next = true;
  is(verify(pair), FaultKind::parse, 0, 0, "0F0");
}

namespace {

/// Why the cycle that a deadlock names is none; empty where each of its waits is true: the action
/// cannot start before what it needs, and that not before the next wait's action.
std::string doubt(Table const& t, Fault const& f, Channels channels) {
  using Position = std::pair<int, int>;
  auto const find = [&](Action a) {
    for (int r = 0; r < t.ranks(); ++r) {
      for (int i = 0; i < static_cast<int>(t.row(r).size()); ++i) {
        Action b = t.row(r)[static_cast<std::size_t>(i)];
        b.overlaps_next = a.overlaps_next = false;
        if (b == a) return Position{r, i};
      }
    }
    return Position{-1, -1};
  };
  auto const sends = [](Kind k) { return k == Kind::send_forward || k == Kind::send_backward; };
  if (f.waits < 1 || f.held() < 1) return "no cycle";
  if (f.rank != f.cycle[0].rank || f.index != f.cycle[0].index || f.action != f.cycle[0].action)
    return "the fault is not at the first wait";
  std::size_t const held = static_cast<std::size_t>(f.held());
  for (std::size_t i = 0; i < held; ++i) {
    auto const& [rank, index, a, n] = f.cycle[i];
    if (!(t.row(rank)[static_cast<std::size_t>(index)] == a)) return "not at its index";
    bool const same = a.microbatch == n.microbatch && a.slice == n.slice;
    bool direct = false;
    if (a.kind == Kind::reduce_gradient) {
      direct = n.kind == a.kind && n.stage == a.stage;
    } else if (is_message(a.kind)) {
      Action const send = sends(a.kind) ? a : partner(a);
      bool const up = send.kind == Kind::send_forward;
      bool const makes =
          n.stage == send.stage && (up ? n.kind == Kind::forward : gives_input_gradient(n.kind));
      Action const other = partner(a);
      direct = same && (makes || (n.kind == other.kind && n.stage == other.stage));
    } else {
      bool const up = a.kind == Kind::forward;
      int const from = a.stage + (up ? -1 : 1);
      bool const makes = up ? n.kind == Kind::forward : gives_input_gradient(n.kind);
      bool const brings = n.kind == (up ? Kind::recv_forward : Kind::recv_backward);
      bool const gives = n.kind == (up ? Kind::send_forward : Kind::send_backward);
      if (a.kind != Kind::backward_weight)
        direct = ((makes || gives) && n.stage == from) || (brings && n.stage == a.stage);
      if (!up) direct = direct || (n.kind == Kind::forward && n.stage == a.stage);
      if (a.kind == Kind::backward_weight)
        direct = n.kind == Kind::backward_input && n.stage == a.stage;
      direct = direct && same;
    }
    if (!direct) return text(to_string(a), " does not need ", to_string(n));
    if (i + 1 == held && f.waits > f.held()) break;
    Wait const& next = f.cycle[(i + 1) % held];
    auto const [at_rank, at] =
        n.kind == Kind::reduce_gradient ? Position{next.rank, find(n).second} : find(n);
    if (at_rank != next.rank) return text(to_string(n), " is not on the next rank");
    if (is_message(n.kind) != is_message(next.action.kind)) return "not in one queue";
    if (is_message(n.kind) && channels == Channels::independent) return "messages wait for others";
    if (is_message(n.kind) && channels == Channels::per_peer &&
        find(partner(n)).first != find(partner(next.action)).first)
      return "another channel";
    bool const one_pair = at >= 0 && next.index == at + 1 &&
                          t.row(at_rank)[static_cast<std::size_t>(at)].overlaps_next;
    if (n.kind != Kind::reduce_gradient && next.index > at && !one_pair)
      return text(to_string(next.action), " does not stand before ", to_string(n));
  }
  return {};
}

}  // namespace

TEST_CASE("schedule/verify: the waits that a deadlock names are true and come round",
          "[schedule]") {
  CHECK(message(fault_of("0F0,0B0,0F1,0B1 / 1F0,1F1,1B0,1B1")) ==
        "0B0 (rank 0, action 1) waits for ever: rank 0 waits at 0B0 for 1B0 of rank 1, which "
        "waits at 1F1 for 0F1 of rank 0; move up an action that is waited for");
  std::mt19937 random(1789);
  std::vector<Table> tables;
  for (auto const& [P, M] : {std::pair{2, 4}, {4, 8}}) {
    for (auto const& [name, table] : zoo::all(P, M)) {
      tables.push_back(table);
      tables.push_back(add_reductions(table));
      tables.push_back(lower(table));
    }
  }
  int deadlocks = 0, reductions = 0, messages = 0, pairs = 0, unpaired = 0;
  for (int i = 0; i < 60000; ++i) {
    Table t = tables[static_cast<std::size_t>(i) % tables.size()];
    for (auto k = random() % 3 + 1; k > 0; --k) {
      // Moves an action within its row: what is wrong then is the order, or nothing.
      int const r = static_cast<int>(random() % static_cast<unsigned>(t.ranks()));
      auto const n = t.row(r).size();
      std::size_t const begin = t.row_begin[static_cast<std::size_t>(r)];
      std::size_t from = random() % n, to = random() % n;
      if (from > to) std::swap(from, to);
      auto const first = t.actions.begin() + static_cast<std::ptrdiff_t>(begin);
      std::rotate(first + static_cast<std::ptrdiff_t>(from),
                  first + static_cast<std::ptrdiff_t>(from) + 1,
                  first + static_cast<std::ptrdiff_t>(to) + 1);
    }
    auto const channels = static_cast<Channels>(random() % 3);
    Fault const f = verify(t, {.channels = channels});
    if (f.kind != FaultKind::deadlock) {
      CHECK(f.waits == 0);
      continue;
    }
    if (f.pair >= 0) {  // without it, there is another deadlock or none
      auto const& wait = f.cycle[static_cast<std::size_t>(f.pair)];
      Table alone = t;
      alone
          .actions[t.row_begin[static_cast<std::size_t>(wait.rank)] +
                   static_cast<std::size_t>(wait.index) - 1]
          .overlaps_next = false;
      Fault const other = verify(alone, {.channels = channels});
      CHECK((other.cycle != f.cycle || other.waits != f.waits));
      ++unpaired;
    }
    std::string const why = doubt(t, f, channels);
    if (!why.empty()) {
      CAPTURE(write_csv(t), message(f), why, static_cast<int>(channels));
      FAIL("no cycle");
    }
    ++deadlocks;
    for (std::size_t k = 0; k < static_cast<std::size_t>(f.held()); ++k) {
      Action const& a = f.cycle[k].action;
      reductions += a.kind == Kind::reduce_gradient ? 1 : 0;
      messages += is_message(a.kind) ? 1 : 0;
      pairs += a.overlaps_next ? 1 : 0;
    }
  }
  CAPTURE(deadlocks, reductions, messages, pairs);
  CHECK((deadlocks > 500 && reductions > 20 && messages > 100 && pairs > 10 && unpaired > 10));
  // A pair is named if only it keeps its first action from what its second one needs.
  Fault const own = verify(read_csv("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n"));
  CHECK(message(own) ==
        "0B1 (rank 0, action 2) waits for ever: rank 0 waits at 0B1 for 0F1; 0F1 and 0B1 are one "
        "overlapped pair, whose actions start together: unpair them");
  Table const across =
      read_csv("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2F1,2I0,2W0,2I1,2W1\n");
  CHECK_THAT(
      message(verify(across)),
      Catch::Contains("waits at 1B0 for 2I0 of rank 2, which waits at 2F1 for 1F1 of rank 1; "
                      "1F1 and 1B0 are one overlapped pair, whose actions start together"));
  Table const sent = read_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1RECV_B0,(1F1;1B0)OVERLAP_F_B,1SEND_F1,1SEND_B0,1RECV_B1,1B1,"
      "1SEND_B1\n"
      "2RECV_F0,2F0,2RECV_F1,2F1,2I0,2SEND_B0,2W0,2I1,2SEND_B1,2W1\n");
  CHECK_THAT(message(verify(sent, {.channels = Channels::independent})),
             Catch::Contains("1F1 and 1B0 are one overlapped pair, whose actions start together"));
  // A pair in a cycle that does not need it is not blamed.
  Fault const other = verify(read_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F1,1F0,1B0,1B1\n"));
  CHECK(other.kind == FaultKind::message_order);
  CHECK(message(verify(read_csv("(0F0;0B1)OVERLAP_F_B,0F1,0B0\n1F0,1F1,1B0,1B1\n")))
            .find("overlapped") == std::string::npos);
  // Round all ranks: stage P of rank 0 wants microbatch 1 of rank P - 1, which wants microbatch 0
  // of the rank before it, and so on; rank 1 wants one that rank 0 has behind its wait.
  for (int const P : {3, 6, 9}) {
    Table ring{.stages = 2 * P, .microbatches = 3};
    for (int r = 0; r < P; ++r) {
      ring.begin_row();
      auto const add = [&](bool second, int m) {
        ring.add({.kind = Kind::forward, .stage = r + (second ? P : 0), .microbatch = m});
      };
      add(false, 0);
      if (r >= 2) add(true, 0);
      add(false, 1);
      if (r == 0) add(true, 0);
      if (r == 0) add(true, 1);
      add(false, 2);
      if (r == 1) add(true, 0);
      if (r != 0) add(true, 1);
      add(true, 2);
    }
    Fault const f = verify(ring);
    CAPTURE(P, message(f));
    CHECK(f.kind == FaultKind::deadlock);
    CHECK(f.waits == P);
    CHECK(doubt(ring, f, Channels::per_peer).empty());
    if (P == 9) {
      CHECK_THAT(message(f), Catch::Contains("13F0 for 12F0, and so on through 3 more waits, the "
                                             "last for rank 0; move up"));
    }
  }
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
  CHECK(message(verify(Table{})) == "the table has no rows; give it one for each rank");
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

}  // namespace verify_test
