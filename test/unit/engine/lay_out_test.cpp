// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/lay_out.hpp>

#include "catch.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/verify.hpp>

#include "../schedule/zoo.hpp"
#include "random_table.hpp"
#include "small_model.hpp"

using namespace stagger;
using random_table::Random;
using schedule::Kind;
using schedule::Table;

namespace {

// --- a program's meaning, from program.hpp's words alone
// ---------------------------------------------------------------

enum class Space { x, kept, dy, inner };

struct Access {
  Space space;
  std::size_t cell;
  std::size_t slot;
  bool writes;
  std::string value;  // what must be read, or is written
};

std::string named(char const* what, std::size_t stage, std::uint32_t microbatch) {
  return what + std::to_string(stage) + "," + std::to_string(microbatch);
}

std::vector<Access> accesses(Program const& program, Instruction const& in) {
  std::vector<Access> list;
  if (!computes(in.op)) return list;
  std::size_t const s = in.stage;
  std::size_t const c = in.cell;
  auto const& cell = program.cells[c];
  auto const before = static_cast<std::size_t>(cell.before);
  auto const after = static_cast<std::size_t>(cell.after);
  bool const first = s == 0;
  bool const last = s + 1 == static_cast<std::size_t>(program.stages);
  auto const m = in.microbatch;
  auto const output = [&](std::size_t stage) { return named("y", stage, m); };
  auto const gradient = [&](std::size_t stage) { return named("dy", stage, m); };
  auto const kept = named("kept", s, m);
  auto const inner = named("inner", s, m);
  if (!first) list.push_back({Space::x, c, in.x, false, output(s - 1)});
  switch (in.op) {
    case Op::forward:
      list.push_back({Space::kept, c, in.kept, true, kept});
      if (!last) list.push_back({Space::x, after, in.y, true, output(s)});
      break;
    case Op::recompute:
      list.push_back({Space::kept, c, in.kept, true, kept});
      break;
    case Op::backward:
    case Op::backward_input:
      list.push_back({Space::kept, c, in.kept, false, kept});
      list.push_back({Space::kept, c, in.kept, true, kept});  // a backward may change what it saved
      list.push_back({Space::dy, c, in.dy, last, gradient(s)});  // the last stage's loss writes it
      list.push_back({Space::inner, c, in.inner, true, inner});
      if (!first) list.push_back({Space::dy, before, in.dx, true, gradient(s - 1)});
      break;
    case Op::backward_weight:
      list.push_back({Space::kept, c, in.kept, false, kept});
      list.push_back({Space::kept, c, in.kept, true, kept});
      list.push_back({Space::dy, c, in.dy, false, gradient(s)});
      list.push_back({Space::inner, c, in.inner, false, inner});
      break;
    default:
      break;
  }
  return list;
}

std::size_t slots_of(Program const& program, Access const& a) {
  auto const& slots = program.cells[a.cell];
  switch (a.space) {
    case Space::x:
      return slots.x_slots;
    case Space::kept:
      return slots.kept_slots;
    case Space::dy:
      return slots.dy_slots;
    default:
      return slots.inner_slots;
  }
}

/// Runs the ranks in a random order that their waits allow and holds every access against every
/// other one. Two accesses of one slot, one of them writing, must be ordered by program order,
/// gives and waits alone; then all interleavings read what this one reads. @return the first thing
/// wrong, or ""
std::string refute(Program const& program, Random& random) {
  using Clock = std::vector<std::size_t>;  // [ranks] instructions known to be done
  struct Touch {
    std::size_t rank;
    std::size_t instruction;
    bool writes;
  };
  struct Slot {
    std::string value;
    std::vector<Touch> touches;
  };
  auto const ranks = program.ranks.size();
  std::vector<Clock> clock(ranks, Clock(ranks));
  std::vector<std::vector<Clock>> gives(program.signals.size());  // clock of each give of a signal
  std::vector<std::size_t> at(ranks), wait(ranks);
  std::map<std::tuple<Space, std::size_t, std::size_t>, Slot> memory;
  std::size_t finished = 0;
  for (;;) {
    std::vector<std::size_t> able;
    for (std::size_t r = 0; r < ranks; ++r) {
      auto const& rank = program.ranks[r];
      if (at[r] == rank.code.size()) continue;
      bool ready = true;
      for (std::size_t w = wait[r]; w < wait[r] + rank.code[at[r]].waits; ++w)
        ready = ready && gives[rank.waits[w].signal].size() >= rank.waits[w].count;
      if (ready) able.push_back(r);
    }
    if (able.empty()) break;
    auto const r = able[random() % able.size()];
    auto const& rank = program.ranks[r];
    auto const& in = rank.code[at[r]];
    for (std::size_t w = wait[r]; w < wait[r] + in.waits; ++w) {
      auto const& which = rank.waits[w];
      auto const ends = program.signals[which.signal];
      if (ends.taker != SignalEnds::everyone && ends.taker != static_cast<int>(r))
        return "a rank waits for another's signal";
      if (which.count == 0) return "a wait that always holds";
      auto const& known = gives[which.signal][which.count - 1];
      for (std::size_t o = 0; o < ranks; ++o) clock[r][o] = std::max(clock[r][o], known[o]);
    }
    wait[r] += in.waits;
    for (auto const& a : accesses(program, in)) {
      if (a.slot >= slots_of(program, a)) return "a slot beyond the last one";
      auto& slot = memory[{a.space, a.cell, a.slot}];
      for (auto const& t : slot.touches)
        if (t.rank != r && (t.writes || a.writes) && clock[r][t.rank] <= t.instruction)
          return "a race for " + a.value + " between rank " + std::to_string(r) + " instruction " +
                 std::to_string(at[r]) + " and rank " + std::to_string(t.rank) + " instruction " +
                 std::to_string(t.instruction);
      slot.touches.push_back({r, at[r], a.writes});
      if (a.writes)
        slot.value = a.value;
      else if (slot.value != a.value)
        return "read " + slot.value + " instead of " + a.value;
    }
    if (in.op == Op::finish) ++finished;
    if (in.op == Op::update) {
      if (finished != ranks) return "an update before all gradients are complete";
      for (std::size_t o = 0; o < ranks; ++o)
        if (o != r && clock[r][o] + 1 < program.ranks[o].code.size())
          return "an update that need not see every gradient";
    }
    ++at[r];
    clock[r][r] = at[r];
    for (std::size_t g = 0; g < in.gives; ++g) {
      if (program.signals[in.give[g]].giver != static_cast<int>(r))
        return "a rank gives another's signal";
      gives[in.give[g]].push_back(clock[r]);
    }
  }
  for (std::size_t r = 0; r < ranks; ++r)
    if (at[r] != program.ranks[r].code.size()) return "a deadlock at rank " + std::to_string(r);
  std::vector<std::size_t> awaited(program.signals.size());
  for (auto const& rank : program.ranks)
    for (auto const& w : rank.waits)
      awaited[w.signal] = std::max<std::size_t>(awaited[w.signal], w.count);
  for (std::size_t s = 0; s < awaited.size(); ++s)
    if (gives[s].size() != awaited[s])
      return "a signal is given " + std::to_string(gives[s].size()) + " times and awaited " +
             std::to_string(awaited[s]) + " times";
  return "";
}

/// Whether the program's compute instructions are the table's rows.
bool same_actions(Program const& program, Table const& table, bool recompute) {
  for (int r = 0; r < table.ranks(); ++r) {
    std::vector<schedule::Action> ran;
    Instruction const* again = nullptr;
    for (auto const& in : program.ranks[static_cast<std::size_t>(r)].code) {
      if (in.op == Op::recompute) {
        again = &in;
        continue;
      }
      if (!computes(in.op)) continue;
      bool const gradient = in.op == Op::backward || in.op == Op::backward_input;
      if (gradient != (again != nullptr) && recompute) return false;
      if (again != nullptr && (again->stage != in.stage || again->microbatch != in.microbatch ||
                               again->kept != in.kept))
        return false;
      again = nullptr;
      ran.push_back(action_of(in));
    }
    auto const row = table.row(r);
    if (!std::equal(ran.begin(), ran.end(), row.begin(), row.end())) return false;
  }
  return true;
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
    "engine/lay_out: no interleaving of a random table overwrites a slot, reads early or blocks",
    "[engine]") {
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
    REQUIRE(same_actions(program, table, recompute));
    REQUIRE(program.peak_in_flight == schedule::peak_in_flight(table));
  }
}

TEST_CASE("engine/lay_out: forward-only tables are safe too, and reuse what they keep",
          "[engine]") {
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

TEST_CASE("engine/lay_out: the check of all interleavings notices a wait that is missing",
          "[engine]") {
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
    "engine/lay_out: a stage keeps as many microbatches as are in flight, messages have room to "
    "spare",
    "[engine]") {
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

TEST_CASE("engine/lay_out: every schedule of the library is safe in every interleaving",
          "[engine]") {
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
    "engine/lay_out: slots do not depend on the number of microbatches where the schedule bounds "
    "what is in flight",
    "[engine]") {
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

TEST_CASE("engine/lay_out: a wait for what is known already is left out", "[engine]") {
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

TEST_CASE("engine/lay_out: what the engine cannot run is refused in one sentence", "[engine]") {
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

  CHECK_THROWS_WITH(lay_out(schedule::GPipe{}.table({1, 65536, 1})),
                    Catch::Contains("65536") && Catch::Contains("65535"));
}

TEST_CASE("engine/lay_out: the largest number of microbatches keeps its slots apart", "[engine]") {
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
