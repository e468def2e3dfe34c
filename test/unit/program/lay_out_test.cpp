// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/lay_out.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/program/check_program.hpp>
#include <stagger/program/version_passes.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe_v.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/lower.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/schedule/seq_1f1b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "../schedule/zoo.hpp"
#include "engine/random_table.hpp"
#include "engine/small_model.hpp"
#include "slow_player.hpp"

namespace lay_out_test {

using namespace stagger;
using random_table::Random;
using schedule::Kind;
using schedule::Table;

namespace {

std::string refute(Program const& program, Random& random) {
  LayOutOptions const none;
  return slow_player::Player(program, none).refute(random);
}

bool same_actions(Program const& program, Table const& table) {
  LayOutOptions const none;
  slow_player::Player const player(program, none);
  return player.same_actions(table) && player.runs_again_in_time();
}

/// Most microbatches of a stage between two of its actions, one row at a time.
int most_alive(Table const& table, int stage, bool from_gradient) {
  int alive = 0;
  int most = 0;
  for (int r = 0; r < table.ranks(); ++r)
    for (auto const& a : table.row(r)) {
      if (a.stage != stage) continue;
      if (from_gradient ? schedule::gives_input_gradient(a.kind) : a.kind == Kind::forward)
        most = std::max(most, ++alive);
      if (schedule::ends_flight(a.kind)) --alive;
    }
  return most;
}

LayOutOptions options(bool recompute, std::optional<unsigned> spare) {
  LayOutOptions result;
  result.recompute = recompute;
  result.spare_slots = spare;
  return result;
}

}  // namespace

TEST_CASE(
    "program/lay_out: no interleaving of a random table overwrites a slot, reads early or blocks",
    "[program]") {
  Random random(1);
  for (int i = 0; i < 4000; ++i) {
    Table const table = random_table::any(random);
    REQUIRE_FALSE(schedule::verify(table));
    bool const recompute = i % 2 == 0;
    unsigned const spare = static_cast<unsigned>(i) % 5 == 3 ? 6 : static_cast<unsigned>(i) % 5;
    CAPTURE(i, table.ranks(), table.stages, table.microbatches, recompute, spare);
    Program const program =
        lay_out(table, options(recompute, spare == 4 ? std::nullopt : std::optional(spare)));
    REQUIRE(play(program).empty());
    REQUIRE(refute(program, random) == "");
    REQUIRE(same_actions(program, table));
    REQUIRE(program.peak_in_flight == schedule::peak_in_flight(table));
  }
}

TEST_CASE("program/lay_out: forward-only tables are safe too, and reuse what they keep",
          "[program]") {
  Random random(2);
  for (int i = 0; i < 500; ++i) {
    random_table::Plan plan;
    int const ranks = 1 + random_table::below(random, 4);
    plan.owner = random_table::owners(random, ranks, ranks + random_table::below(random, 5));
    plan.microbatches = 1 + random_table::below(random, 6);
    plan.backward = false;
    Table const table = random_table::make(random, plan);
    REQUIRE_FALSE(schedule::verify(table));
    Program const program = lay_out(table, options(i % 2 == 0, static_cast<unsigned>(i) % 3));
    REQUIRE_FALSE(program.training);
    REQUIRE(refute(program, random) == "");
    for (auto const& cell : program.cells) REQUIRE(cell.kept_slots == 1);
  }
}

TEST_CASE("program/lay_out: the check of all interleavings notices a wait that is missing",
          "[program]") {
  // Without this, a checker that sees nothing would prove nothing. Every wait for room is needed.
  // So is every wait for a message, but where the rank knows from another signal that its sender
  // has gone on: there it stands for the time that the message travels.
  Random random(3);
  for (auto const& table :
       {schedule::GPipe{}.table({3, 4, 1}), schedule::OneFOneB{}.table({3, 5, 1}),
        schedule::OneFOneB{.warmup = schedule::Warmup::deep}.table({4, 6, 1})}) {
    Program const whole = lay_out(table);
    int removed = 0;
    int noticed = 0;
    int room_unnoticed = 0;
    for (std::size_t r = 0; r < whole.ranks.size(); ++r) {
      std::size_t wait = 0;
      for (std::size_t i = 0; i < whole.ranks[r].code.size(); ++i) {
        if (whole.ranks[r].code[i].op == Op::update) continue;
        for (unsigned w = 0; w < whole.ranks[r].code[i].waits; ++w, ++wait) {
          Program less = whole;
          auto& waits = less.ranks[r].waits;
          std::rotate(waits.begin() + wait, waits.begin() + wait + 1, waits.end());
          waits.pop_back();
          --less.ranks[r].code[i].waits;
          ++removed;
          bool seen = false;
          for (int attempt = 0; attempt < 5 && !seen; ++attempt) {
            auto const fault = refute(less, random);
            seen = fault.find("race") != std::string::npos ||
                   fault.find("instead") != std::string::npos;
          }
          noticed += seen ? 1 : 0;
          bool const message = whole.signals[whole.ranks[r].waits[wait].signal].edge >= 0;
          room_unnoticed += !seen && !message ? 1 : 0;
        }
      }
    }
    CHECK(removed > 10);
    CHECK(room_unnoticed == 0);
    CHECK(noticed >= removed * 3 / 4);
    if (table.ranks() == 3) CHECK(noticed == removed);
  }
}

TEST_CASE(
    "program/lay_out: a stage keeps as many microbatches as are in flight, messages have room to "
    "spare",
    "[program]") {
  using namespace schedule;
  for (int P : {1, 2, 3, 4, 8}) {
    for (int M : {1, 2, 7, 16}) {
      for (auto const& table : {GPipe{}.table({P, M, 1}), OneFOneB{}.table({P, M, 1}),
                                OneFOneB{.warmup = Warmup::deep}.table({P, M, 1})}) {
        for (unsigned spare : {0U, 1U, 3U}) {
          Program const plain = lay_out(table, options(false, spare));
          Program const again = lay_out(table, options(true, spare));
          for (int s = 0; s < P; ++s) {
            CAPTURE(P, M, spare, s);
            auto const i = static_cast<std::size_t>(s);
            int const peak = most_alive(table, s, false);
            REQUIRE(static_cast<int>(plain.cells[i].kept_slots) == peak);
            REQUIRE(static_cast<int>(plain.cells[i].inner_slots) == most_alive(table, s, true));
            REQUIRE(static_cast<int>(again.cells[i].kept_slots) == most_alive(table, s, true) + 1);
            for (auto const* program : {&plain, &again}) {
              if (s > 0) {
                REQUIRE(static_cast<int>(program->cells[i].x_slots) >=
                        std::min<int>(M, peak + static_cast<int>(spare)));
                if (spare > 0)
                  REQUIRE(static_cast<int>(program->cells[i].x_slots) ==
                          std::min<int>(M, peak + static_cast<int>(spare)));
              }
              if (s + 1 == P) REQUIRE(program->cells[i].dy_slots == 1);
              if (s + 1 < P && spare > 0)
                REQUIRE(static_cast<int>(program->cells[i].dy_slots) ==
                        std::min<int>(M, 1 + static_cast<int>(spare)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("program/lay_out: every schedule of the library is safe in every interleaving",
          "[program]") {
  Random random(7);
  for (int const P : {2, 4}) {
    for (auto const& [name, table] : zoo::all(P, 4 * P)) {
      CAPTURE(P, name);
      for (bool const recompute : {false, true}) {
        for (std::optional<unsigned> const spare :
             {std::optional<unsigned>(), std::optional(0U), std::optional(1U), std::optional(3U)}) {
          Program const program = lay_out(table, options(recompute, spare));
          for (int i = 0; i < (sanitized ? 1 : 4); ++i) REQUIRE(refute(program, random) == "");
        }
      }
    }
  }
}

TEST_CASE(
    "program/lay_out: slots do not depend on the number of microbatches where the schedule bounds "
    "what is in flight",
    "[program]") {
  using namespace schedule;
  auto const total = [](auto const& policy, int P, int M, std::optional<unsigned> spare) {
    unsigned sum = 0;
    for (auto const& c :
         lay_out(policy.table({P, M, policy.chunks()}), options(false, spare)).cells)
      sum += c.x_slots + c.kept_slots + c.dy_slots + c.inner_slots;
    return sum;
  };
  for (int const P : {2, 4, 8}) {
    auto const bounded = [&](char const* name, auto const& policy) {
      CAPTURE(P, name);
      CHECK(total(policy, P, 4 * P, {}) == total(policy, P, 40 * P, {}));
    };
    bounded("1f1b", OneFOneB{});
    bounded("1f1b deep", OneFOneB{.warmup = Warmup::deep});
    bounded("interleaved", Interleaved{2});
    bounded("zb-h1", ZeroBubbleH1{});
    bounded("zb-h2", ZeroBubbleH2{});
    bounded("zb-v", ZeroBubbleV{});
    bounded("v-half", VHalf{});
    bounded("v-min", VMin{});
    bounded("v-1f1b", V1F1B{});
    bounded("dualpipe", DualPipe{});
    bounded("dualpipe-v", DualPipeV{});
    bounded("forward-only", ForwardOnly{});
    // For 1F1B no more than with one spare slot.
    CHECK(total(OneFOneB{}, P, 4 * P, {}) == total(OneFOneB{}, P, 4 * P, 1));
    // Breadth first, the right slots are no more than those that merely rule out a deadlock.
    CHECK(total(LoopedBfs{2}, P, 4 * P, {}) <= total(LoopedBfs{2}, P, 4 * P, 1));
  }
}

TEST_CASE("program/lay_out: a wait for what is known already is left out", "[program]") {
  // In the steady state of 1F1B a rank in the middle needs two waits for each microbatch: its input
  // and its gradient. Room follows from them.
  auto const program = lay_out(schedule::OneFOneB{}.table({4, 100, 1}));
  for (std::size_t r = 0; r < 4; ++r) {
    std::size_t const needed = (r == 0 || r == 3 ? 1U : 2U) * 100U;
    CAPTURE(r, program.ranks[r].waits.size());
    CHECK(program.ranks[r].waits.size() >= needed + 3);
    CHECK(program.ranks[r].waits.size() <= needed + 3 + 8);
  }
}

TEST_CASE("program/lay_out: what the engine cannot run is refused in one sentence", "[program]") {
  Table forked;  // stage 0 passes microbatch 0 on to rank 1, microbatch 1 to rank 2
  forked.stages = 2;
  forked.microbatches = 2;
  forked.begin_row();
  for (Kind const kind : {Kind::forward, Kind::backward})
    for (int m = 0; m < 2; ++m) forked.add({.kind = kind, .stage = 0, .microbatch = m});
  for (int r = 0; r < 2; ++r) {
    forked.begin_row();
    forked.add({.kind = Kind::forward, .stage = 1, .microbatch = r});
    forked.add({.kind = Kind::backward, .stage = 1, .microbatch = r});
  }
  CHECK_THROWS_WITH(lay_out(forked),
                    Catch::Contains("stage 0 on rank 0") && Catch::Contains("more than one owner"));

  LayOutOptions stale;  // an owner of two does not see all microbatches of a minibatch
  stale.staleness.microbatches = 1;
  stale.staleness.version = [](void const*, int, int available) { return available; };
  stale.staleness.fix = &detail::fix_versions;
  stale.staleness.passes = detail::version_passes<StalenessModel>();
  CHECK_THROWS_WITH(lay_out(schedule::DualPipe{}.table({2, 4}), stale),
                    Catch::Contains("stage 0 has several owners"));

  LayOutOptions shared;  // a worker of a parameter server
  shared.staleness.push_minibatches = 1;
  shared.staleness.passes = detail::version_passes<StalenessModel>();
  CHECK_THROWS_WITH(lay_out(schedule::DualPipe{}.table({2, 4}), shared),
                    Catch::Contains("each worker makes one push of it"));

  CHECK_THROWS_WITH(lay_out(schedule::GPipe{}.table({1, 65536, 1})),
                    Catch::Contains("65536") && Catch::Contains("65535"));
}

namespace {

/// A legal table of another schedule each time, some with slices, some with messages.
Table drawn(Random& random) {
  using random_table::below;
  int const P = 1 + below(random, 4);
  int const M = 2 * P + 2 * below(random, 3);
  Table table = schedule::OneFOneB{}.table({P, M});
  switch (below(random, 6)) {
    case 0:
      table = schedule::Seq1F1B{.slices = 1 + below(random, 3)}.table({P, M});
      break;
    case 1:
      table = schedule::DualPipeV{}.table({P, M, 2});
      break;
    case 2:
      table = schedule::Chimera{}.table({2 * P, M});
      break;
    case 3:
      table = schedule::ZeroBubbleH1{}.table({P, M});
      break;
    case 4:
      table = random_table::any(random);
      break;
    default:
      break;
  }
  return below(random, 3) == 0 ? schedule::lower(table) : table;
}

/// One to three changes of the table: of an action, of a row, or of the table's counts.
Table mutated(Random& random, Table const& table) {
  using random_table::below;
  std::vector<std::vector<schedule::Action>> rows;
  for (int r = 0; r < table.ranks(); ++r)
    rows.emplace_back(table.row(r).begin(), table.row(r).end());
  auto const row = [&]() -> auto& {
    return rows[static_cast<unsigned>(below(random, table.ranks()))];
  };
  auto const index = [&](auto const& in, int more = 0) {
    return below(random, static_cast<int>(in.size()) + more);
  };
  Table made = table.like(0);
  for (int change = 1 + below(random, 3); change > 0; --change) {
    auto& from = row();
    if (from.empty()) continue;
    int const at = index(from);
    schedule::Action& a = from[static_cast<unsigned>(at)];
    schedule::Action const was = a;
    switch (below(random, 10)) {
      case 0:
        std::swap(a, from[static_cast<unsigned>(index(from))]);
        break;
      case 1:
        a.overlaps_next = !a.overlaps_next;
        break;
      case 2:
        a.kind = static_cast<Kind>(below(random, 11));
        break;
      case 3:
        a.microbatch = below(random, table.microbatches + 2) - 1;
        break;
      case 4:
        a.slice = static_cast<std::int16_t>(below(random, 5) - 1);
        break;
      case 5:
        a.stage = below(random, table.stages + 2) - 1;
        break;
      case 6:
      case 7: {  // to another place, and perhaps it stays where it was
        if (below(random, 2) == 0) from.erase(from.begin() + at);
        auto& to = row();
        to.insert(to.begin() + index(to, 1), was);
        break;
      }
      case 8:
        for (auto& each : rows)
          std::erase_if(each, [&](auto const& b) {
            return b.stage == was.stage && b.microbatch == was.microbatch;
          });
        break;
      default:
        for (int* const count : {&made.stages, &made.microbatches, &made.slices})
          if (below(random, 4) == 0) *count += below(random, 4) - 2;
    }
  }
  for (auto const& each : rows) made.add_row(each);
  return made;
}

/// Whether every part of every unit is there exactly once, on one rank, and nothing else is.
bool complete(Table const& table) {
  if (table.stages < 1 || table.microbatches < 1 || table.slices < 1) return false;
  struct Parts {
    int forwards = 0, gradients = 0, ends = 0;
    int rank = -1;
    bool spread = false;
  };
  std::map<std::tuple<int, int, int>, Parts> units;
  bool trains = false;
  for (int r = 0; r < table.ranks(); ++r)
    for (auto const& a : table.row(r)) {
      if (a.stage < 0 || a.stage >= table.stages || a.microbatch < 0 ||
          a.microbatch >= table.microbatches || a.slice < 0 || a.slice >= table.slices)
        return false;
      bool const whole = a.kind == Kind::backward;
      bool const gradient = whole || a.kind == Kind::backward_input;
      bool const end = whole || a.kind == Kind::backward_weight;
      if (a.kind != Kind::forward && !gradient && !end) continue;
      trains = trains || gradient || end;
      Parts& parts = units[{a.stage, a.microbatch, a.slice}];
      parts.spread = parts.spread || (parts.rank >= 0 && parts.rank != r);
      parts.rank = r;
      parts.forwards += a.kind == Kind::forward ? 1 : 0;
      parts.gradients += gradient ? 1 : 0;
      parts.ends += end ? 1 : 0;
    }
  if (static_cast<int>(units.size()) != table.stages * table.microbatches * table.slices)
    return false;
  int const backwards = trains ? 1 : 0;
  return std::all_of(units.begin(), units.end(), [&](auto const& unit) {
    Parts const& parts = unit.second;
    return parts.forwards == 1 && parts.gradients == backwards && parts.ends == backwards &&
           !parts.spread;
  });
}

}  // namespace

TEST_CASE("program/lay_out: a table that lacks or repeats something is refused before it is used",
          "[program]") {
  Random random(5);
  int refused = 0;
  int ran = 0;
  for (int i = 0; i < 6000; ++i) {
    Table const table = mutated(random, drawn(random));
    CAPTURE(i, table.ranks(), table.stages, table.microbatches, table.slices);
    LayOutOptions const given = options(
        i % 2 == 0, i % 3 == 0 ? std::nullopt : std::optional(static_cast<unsigned>(i) % 3));
    std::string why;
    try {
      Program const program = lay_out(table, given);
      require_sound(program, table, given);
      REQUIRE(complete(table));
      if (i % 8 == 0) REQUIRE(refute(program, random) == "");
      ++ran;
    } catch (Error const& error) {
      REQUIRE(error.code() == Errc::bad_schedule);
      why = error.what();
      REQUIRE(why.find('\n') == std::string::npos);
      if (complete(table)) REQUIRE(schedule::verify(table));
      ++refused;
    }
  }
  CHECK(refused > 3000);
  CHECK(ran > 500);
}

TEST_CASE("program/lay_out: what the engine's own checks say of a table", "[program]") {
  auto const said = [](Table const& table) {
    try {
      static_cast<void>(lay_out(table));
    } catch (Error const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Table table = schedule::OneFOneB{}.table({2, 2});
  auto const at = [&](int rank, int index) -> schedule::Action& {
    return table
        .actions[table.row_begin[static_cast<unsigned>(rank)] + static_cast<unsigned>(index)];
  };
  SECTION("twice") {
    at(1, 2).microbatch = 0;  // 1F1
    CHECK(said(table) ==
          "the table repeats an action of stage 1, microbatch 0; schedule::verify says which");
  }
  SECTION("not at all") {
    at(1, 2).kind = Kind::backward_weight;
    CHECK_THAT(said(table), Catch::Contains("an action of stage 1, microbatch 1"));
    Table less = table.like(0);
    for (int r = 0; r < 2; ++r) {
      less.begin_row();
      for (auto const& a : table.row(r))
        if (a.stage == 0 || a.microbatch == 0) less.add(a);
    }
    CHECK(said(less) ==
          "the table lacks an action of stage 1, microbatch 1; schedule::verify says which");
  }
  SECTION("beyond its counts") {
    at(0, 0).slice = -1;
    CHECK_THAT(
        said(table),
        Catch::Contains("has an action of stage 0, microbatch 0, slice -1 beyond its 2 stages"));
    table.slices = -1;
    table.microbatches = -2;
    CHECK_THAT(said(table), Catch::Contains("-2 microbatches and -1 slices cannot be run"));
  }
  SECTION("much too few") {
    table.stages = 10000;
    table.microbatches = 65535;
    CHECK_THAT(said(table), Catch::Contains("has 8 actions, too few for 10000 stages"));
  }
}

TEST_CASE("program/lay_out: the largest number of microbatches keeps its slots apart",
          "[program]") {
  // Every W at the end: as many kept microbatches as there are, one more slot for F when it is run
  // again.
  int const M = 65535;
  Table table;
  table.stages = 1;
  table.microbatches = M;
  table.begin_row();
  for (Kind const kind : {Kind::forward, Kind::backward_input, Kind::backward_weight})
    for (int m = 0; m < M; ++m) table.add({.kind = kind, .stage = 0, .microbatch = m});
  Program const program = lay_out(table, options(true, 1));
  CHECK(program.cells[0].kept_slots == M + 1);
  for (auto const& in : program.ranks[0].code)
    if (in.op == Op::backward_weight && in.kept != in.microbatch + 1)
      FAIL("slot " << in.kept << " for " << in.microbatch);
}

}  // namespace lay_out_test
