// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/check_program.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/engine/replicas.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/program/sections.hpp>
#include <stagger/program/shared_checks.hpp>
#include <stagger/program/version_passes.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/forward_only.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/pipe_dream_2bw.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/staleness/delayed.hpp>
#include <stagger/staleness/double_buffered.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "../schedule/zoo.hpp"
#include "engine/random_table.hpp"
#include "full.hpp"
#include "sanitized.hpp"
#include "slow_player.hpp"

namespace check_program_test {

using namespace stagger;
using random_table::below;
using random_table::Random;
using schedule::Table;

namespace {

/// A table, how it is laid out, and the program.
struct Made {
  std::string name;
  Table table;
  LayOutOptions options;
  std::shared_ptr<Replicas const> replicas;
  std::shared_ptr<List<GradientGroup> const> groups;
  std::shared_ptr<Sections const> sections;
  Program program;

  void lay() {
    options.replicas = replicas.get();
    options.groups = groups.get();
    options.sections = sections.get();
    options.connect_sections = &detail::connect_sections;
    if (replicas || groups) options.shared = &detail::shared_passes;
    program = lay_out(table, options);
  }
};

using Cases = std::vector<std::shared_ptr<Made>>;

std::shared_ptr<Made> made(std::string name, Table table, LayOutOptions options = {}) {
  auto one = std::make_shared<Made>();
  one->name = std::move(name);
  one->table = std::move(table);
  one->options = options;
  one->lay();
  return one;
}

template <class Model> StalenessModel model_of(Model const& model) {
  static Model const kept = model;
  return detail::staleness_model<false>(kept);
}

/// One that lets the weights be as old as they like.
struct Pairs {
  using policy_tag = StalenessTag;
  [[nodiscard]] constexpr int microbatches() const noexcept { return 2; }
  [[nodiscard]] constexpr int version(int, int available) const noexcept { return available / 2; }
};

/// So many groups of every stage.
std::shared_ptr<List<GradientGroup> const> groups_of_each(int stages, int groups) {
  auto list = std::make_shared<List<GradientGroup>>();
  for (int s = 0; s < stages; ++s)
    for (int g = groups; g-- > 0;)
      list->push_back({s, g, g + 1 == groups ? GradientGroup::all : g});
  return list;
}

/// Workers that train with others through a parameter server.
void add_workers(Cases& cases) {
  static std::vector<std::unique_ptr<staleness::WaveSynchronous>> kept;
  for (int const ranks : {1, 3})
    for (int const in_flight : {1, 2, 4})
      for (int const distance : {0, 1}) {
        kept.push_back(std::make_unique<staleness::WaveSynchronous>(
            staleness::WaveSynchronous{.in_flight = in_flight, .distance = distance}));
        LayOutOptions options;
        options.staleness = detail::staleness_model<true>(*kept.back());
        for (int const minibatches : {1, 4 * in_flight + 1})
          cases.push_back(made(
              "waves of " + std::to_string(in_flight) + ", distance " + std::to_string(distance),
              schedule::Fifo{.in_flight = in_flight}.table({ranks, minibatches}), options));
      }
  static staleness::Synchronous const in_step;
  LayOutOptions options;
  options.staleness = detail::staleness_model<true>(in_step);
  for (int const ranks : {1, 3})
    cases.push_back(made("bulk synchronous", schedule::OneFOneB{}.table({ranks, 4}), options));
  options.grouping.push = true;
  for (int const groups : {1, 3})
    for (int const ranks : {1, 3})
      for (Table const& table :
           {schedule::OneFOneB{}.table({ranks, 4}), schedule::ZeroBubbleH1{}.table({ranks, 4})}) {
        auto one = std::make_shared<Made>();
        one->name = "bulk synchronous in groups";
        one->table = table;
        one->options = options;
        one->groups = groups_of_each(table.stages, groups);
        one->lay();
        cases.push_back(one);
      }
}

void add_replicated(Cases& cases, std::string const& name, Table const& table,
                    std::vector<int> const& counts) {
  for (int const groups : {0, 1, 3})
    for (bool const recompute : {false, true}) {
      auto one = std::make_shared<Made>();
      one->name = name + " replicated, groups " + std::to_string(groups);
      one->table = table;
      one->replicas =
          std::make_shared<Replicas const>(Replicas::even(counts.data(), counts.size()));
      one->options.recompute = recompute;
      one->options.grouping.chain_squares = recompute;
      one->options.spare_slots = static_cast<std::uint32_t>(groups);
      if (groups != 0) one->groups = groups_of_each(table.stages, groups);
      one->lay();
      cases.push_back(one);
    }
}

/// Stages that groups of ranks share, with an exchange of every kind.
void add_grouped(Cases& cases, std::string const& name, Table const& table,
                 std::vector<int> const& counts, int members) {
  using partition::Held;
  for (int const variant : {0, 1, 2}) {
    auto one = std::make_shared<Made>();
    one->name = name + " in groups of " + std::to_string(members);
    one->replicas = std::make_shared<Replicas const>(Replicas::even(counts.data(), counts.size()));
    auto sections = std::make_shared<Sections>();
    sections->members = members;
    auto const add = [&](int stage, Held takes, Held gives, bool partial) {
      bool const grouped = takes != Held::rows;
      bool const opens = sections->chain.empty() || sections->chain.back().table_stage != stage;
      sections->chain.push_back({stage, sections->stages, grouped, opens, takes, gives, partial,
                                 static_cast<std::size_t>(5 * members)});
      sections->stages += grouped ? members : 1;
    };
    for (int s = 0; s < table.stages; ++s) {
      if (s == 0 && variant != 1) add(s, Held::rows, Held::rows, false);
      if (s == 0 || variant != 2) {
        add(s, Held::whole, Held::columns, true);   // modulo, or a shard
        add(s, Held::columns, Held::terms, false);  // nothing
        add(s, Held::whole, Held::columns, true);   // a sum
      }
      if (s == 0) add(s, Held::whole, Held::whole, false);                   // all columns
      if (s == 0 && variant == 0) add(s, Held::whole, Held::columns, true);  // a fan
      if (s + 1 == table.stages) add(s, Held::whole, Held::whole, false);
      if (s + 1 != table.stages && variant == 2) add(s + 1, Held::whole, Held::whole, false);
    }
    one->options.recompute = variant == 1;
    if (variant != 0) one->options.spare_slots = static_cast<std::uint32_t>(variant - 1);
    auto list = std::make_shared<List<GradientGroup>>();
    for (int s = 0; s < sections->stages; ++s) list->push_back({s, 0, GradientGroup::all});
    one->groups = list;
    one->sections = sections;
    one->table = detail::table_of_sections(table, *one->replicas, *sections);
    one->lay();
    cases.push_back(one);
  }
}

Cases cases() {
  using namespace schedule;
  Cases all;
  Random random(11);
  for (int i = 0; i < 60; ++i) {
    LayOutOptions options;
    options.recompute = i % 3 == 0;
    if (i % 4 != 0) options.spare_slots = static_cast<std::uint32_t>(i % 4 - 1);
    all.push_back(made("random " + std::to_string(i), random_table::any(random), options));
  }
  for (auto& [name, table] : zoo::all(2, 4)) all.push_back(made(name, table));
  all.push_back(made("forward", ForwardOnly{}.table({3, 4})));
  for (auto const& model :
       {model_of(staleness::WeightStashing{}), model_of(staleness::Delayed{4}), model_of(Pairs{}),
        model_of(staleness::DoubleBuffered{.microbatches_per_minibatch = 4})}) {
    LayOutOptions options;
    options.staleness = model;
    for (int const ranks : {1, 3, 4})
      all.push_back(made("1f1b without a flush", OneFOneB{}.table({ranks, 8}), options));
  }
  add_workers(all);
  add_replicated(all, "1f1b", OneFOneB{}.table({3, 4}), {1, 2, 2});
  add_replicated(all, "gpipe", GPipe{}.table({2, 3}), {2, 3});
  add_replicated(all, "1f1b", OneFOneB{}.table({3, 3}), {2, 2, 1});
  add_grouped(all, "gpipe", GPipe{}.table({1, 3}), {2}, 2);
  add_grouped(all, "1f1b", OneFOneB{}.table({2, 3}), {4, 2}, 2);
  add_grouped(all, "gpipe", GPipe{}.table({2, 2}), {3, 3}, 3);
  auto evaluated = std::make_shared<Made>();
  evaluated->name = "forward replicated";
  evaluated->table = ForwardOnly{}.table({3, 4});
  evaluated->replicas = std::make_shared<Replicas const>(Replicas{2, {2, 1}, 3});
  evaluated->lay();
  all.push_back(evaluated);
  return all;
}

/// What the check says; "" if it finds nothing.
std::string said(Program const& program, Made const& one) {
  try {
    require_sound(program, one.table, one.options);
    return "";
  } catch (Error const& error) {
    CHECK(error.code() == Errc::bad_schedule);
    return error.what();
  }
}

/// What the slow player finds in `interleavings` orders.
std::string found(Program const& program, Made const& one, Random& random, int interleavings) {
  slow_player::Player player(program, one.options);
  if (!player.same_actions(one.table)) return "other actions than the table's";
  std::string fault;
  for (int i = 0; i < interleavings && fault.empty(); ++i) fault = player.refute(random);
  return fault;
}

std::size_t pick(Random& random, std::size_t n) { return random() % n; }

/// The first wait of an instruction.
std::size_t wait_of(RankProgram const& rank, std::size_t instruction) {
  std::size_t wait = 0;
  for (std::size_t i = 0; i < instruction; ++i) wait += rank.code[i].waits;
  return wait;
}

template <class T> void erase(List<T>& list, std::size_t at, std::size_t count = 1) {
  std::rotate(list.begin() + at, list.begin() + at + count, list.end());
  while (count-- != 0) list.pop_back();
}

constexpr std::array faults{"a wait is dropped",
                            "two gives change places",
                            "another slot",
                            "a message is sent twice",
                            "another version",
                            "a give is dropped",
                            "a wait counts otherwise",
                            "two instructions change places",
                            "an instruction is gone",
                            "another microbatch",
                            "another part or group",
                            "a wait for another signal",
                            "a pass or a sum is late",
                            "an instruction runs twice",
                            "a round counts otherwise",
                            "waves of a snapshot count otherwise",
                            "a snapshot in another slot",
                            "a push or a pull is gone",
                            "a push is early",
                            "a push is late",
                            "a wait for the server is dropped",
                            "a wait for the server counts otherwise",
                            "a wait for the server is early",
                            "a snapshot lasts, or no longer"};

/// An instruction of a rank that `is` says, at random; behind the last, if there is none.
template <class Is> std::size_t some(RankProgram const& rank, Random& random, Is is) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < rank.code.size(); ++i)
    if (is(rank.code[i])) all.push_back(i);
  return all.empty() ? rank.code.size() : all[random() % all.size()];
}

/// Removes an instruction and its waits.
void remove(RankProgram& rank, std::size_t instruction) {
  erase(rank.waits, wait_of(rank, instruction), rank.code[instruction].waits);
  erase(rank.code, instruction);
}

/// Has two instructions that follow each other change places, with their waits.
void swap_with_next(RankProgram& rank, std::size_t i) {
  auto const first = rank.waits.begin() + wait_of(rank, i);
  std::rotate(first, first + rank.code[i].waits,
              first + rank.code[i].waits + rank.code[i + 1].waits);
  std::swap(rank.code[i], rank.code[i + 1]);
}

/// Plants one of those that hit an exchange with a server.
bool plant_exchange(RankProgram& rank, std::string const& fault, Random& random) {
  auto const is_push = [](Instruction const& in) { return in.op == Op::push; };
  auto const is_snapshot = [](Instruction const& in) { return in.op == Op::pull && in.snapshot(); };
  auto const waits = [&](Instruction const& in) { return is_snapshot(in) && in.waits != 0; };
  auto const exchanged = [](Instruction const& in) { return exchanges(in.op); };
  bool const pushes = fault.starts_with("a push is");
  bool const server = fault.find("for the server") != std::string::npos;
  std::size_t const i = pushes                                ? some(rank, random, is_push)
                        : server                              ? some(rank, random, waits)
                        : fault == "a push or a pull is gone" ? some(rank, random, exchanged)
                        : fault == "a round counts otherwise" ? some(rank, random, exchanged)
                                                              : some(rank, random, is_snapshot);
  if (i == rank.code.size()) return false;
  Instruction& in = rank.code[i];
  bool const up = below(random, 2) == 0;
  auto const near = [&](auto value) {
    return static_cast<decltype(value)>(up || value == 0 ? value + 1U : value - 1U);
  };
  if (fault == "a round counts otherwise") {
    in.microbatch = near(in.microbatch);
  } else if (fault == "waves of a snapshot count otherwise") {
    in.x = near(in.x);
  } else if (fault == "a snapshot in another slot") {
    in.next_version = near(in.next_version);
  } else if (fault == "a push or a pull is gone") {
    remove(rank, i);
  } else if (fault == "a push is early") {
    if (i == 0) return false;
    swap_with_next(rank, i - 1);
  } else if (fault == "a push is late") {
    if (i + 1 == rank.code.size()) return false;
    for (std::size_t at = i, times = 1 + pick(random, 4); times-- != 0; ++at)
      if (at + 1 < rank.code.size()) swap_with_next(rank, at);
  } else if (fault == "a snapshot lasts, or no longer") {
    in.y = in.last_pull() ? 1 : 2;
  } else {
    auto& count = rank.waits[wait_of(rank, i)].count;
    if (fault == "a wait for the server counts otherwise") {
      count = near(count);
    } else if (fault == "a wait for the server is dropped") {
      erase(rank.waits, wait_of(rank, i));
      --in.waits;
    } else {
      std::size_t const before = pick(random, i + 1);
      auto const first = rank.waits.begin() + wait_of(rank, before);
      std::rotate(first, rank.waits.begin() + wait_of(rank, i),
                  rank.waits.begin() + wait_of(rank, i) + 1);
      --in.waits;
      ++rank.code[before].waits;
    }
  }
  return true;
}

/// Plants a fault. @return whether there was room for it
bool plant(Program& program, std::size_t fault, Random& random) {
  auto& rank = program.ranks[pick(random, program.ranks.size())];
  if (rank.code.empty()) return false;
  if (fault >= 14) return plant_exchange(rank, faults[fault], random);
  std::size_t const i = pick(random, rank.code.size());
  Instruction& in = rank.code[i];
  std::size_t const wait = wait_of(rank, i);
  auto const near = [&](auto value) {
    bool const up = value == 0 || below(random, 2) == 0;
    return static_cast<decltype(value)>(up ? value + 1U : value - 1U);
  };
  switch (fault) {
    case 0:
      if (in.waits == 0) return false;
      erase(rank.waits, wait + pick(random, in.waits--));
      return true;
    case 1: {
      Instruction& other = rank.code[pick(random, rank.code.size())];
      if (in.signal_count == 0 || other.signal_count == 0) return false;
      auto& a = in.signal[pick(random, in.signal_count)];
      auto& b = other.signal[pick(random, other.signal_count)];
      if (a == b) return false;
      std::swap(a, b);
      return true;
    }
    case 2: {
      std::array<std::uint16_t*, 6> const slots{&in.x, &in.y, &in.kept, &in.dy, &in.dx, &in.inner};
      auto& slot = *slots[pick(random, slots.size())];
      slot = near(slot);
      return true;
    }
    case 3:
    case 5: {
      if (in.signal_count == 0 || (fault == 3 && in.signal_count == in.signal.size())) return false;
      std::size_t const g = pick(random, in.signal_count);
      if (fault == 3) {
        in.signal[in.signal_count++] = in.signal[g];
      } else {
        for (std::size_t k = g; k + 1 < in.signal_count; ++k) in.signal[k] = in.signal[k + 1];
        --in.signal_count;
      }
      return true;
    }
    case 4:
      (below(random, 2) == 0 ? in.version : in.next_version) =
          near(below(random, 2) == 0 ? in.version : in.next_version);
      return true;
    case 6:
      if (in.waits == 0) return false;
      {
        auto& count = rank.waits[wait + pick(random, in.waits)].count;
        count = near(count);
      }
      return true;
    case 7: {
      if (i + 1 == rank.code.size()) return false;
      auto const first = rank.waits.begin() + wait;
      std::rotate(first, first + in.waits, first + in.waits + rank.code[i + 1].waits);
      std::swap(in, rank.code[i + 1]);
      return true;
    }
    case 8:
      erase(rank.waits, wait, in.waits);
      erase(rank.code, i);
      return true;
    case 9:
      in.microbatch = near(in.microbatch);
      return in.microbatch < static_cast<std::uint32_t>(program.microbatches);
    case 10:
      if (in.op == Op::reduce && below(random, 2) == 0) {
        in.set_part(near(in.part()), in.parts());
        return true;
      }
      if (!has_group(in.op) && !(program.pushes_groups && pushes(in.op))) return false;
      in.group = near(in.group);
      return true;
    case 11:
      if (in.waits == 0) return false;
      rank.waits[wait + pick(random, in.waits)].signal =
          static_cast<std::uint32_t>(pick(random, program.signals.size()));
      return true;
    case 12: {
      if (in.op != Op::pass && in.op != Op::reduce && !gathers(in.op)) return false;
      if (i + 1 == rank.code.size() || in.waits != 0 || rank.code[i + 1].waits != 0) return false;
      std::swap(in, rank.code[i + 1]);
      return true;
    }
    default: {
      Instruction again = in;
      again.waits = 0;
      rank.code.push_back(again);
      std::rotate(rank.code.begin() + i, rank.code.end() - 1, rank.code.end());
      std::swap(rank.code[i], rank.code[i + 1]);
      return true;
    }
  }
}

}  // namespace

TEST_CASE("program/require_sound: programs that are laid out pass, as with the slow player",
          "[program]") {
  Random random(5);
  for (auto const& one : cases()) {
    CAPTURE(one->name);
    REQUIRE(said(one->program, *one) == "");
    REQUIRE(found(one->program, *one, random, 2) == "");
  }
  for (int const P : {2, 4})
    for (auto const& [name, table] : zoo::all(P, 3 * P))
      for (bool const recompute : {false, true}) {
        CAPTURE(P, name, recompute);
        auto const one = made(name, table, {.recompute = recompute});
        REQUIRE(said(one->program, *one) == "");
      }
}

TEST_CASE("program/require_sound: rows and gradient groups are refused by the plain checks",
          "[program]") {
  std::size_t refused = 0;
  for (auto const& one : cases()) {
    bool const shares = !one->program.row_edges.empty() || !one->program.groups.empty();
    if (!shares) continue;
    CAPTURE(one->name);
    Made other = *one;
    other.options.shared = nullptr;
    std::string const sentence = said(other.program, other);
    CAPTURE(sentence);
    CHECK((sentence.find("nobody") != std::string::npos ||
           sentence.find("without replicas") != std::string::npos ||
           sentence.find("before the step's end") != std::string::npos));
    ++refused;
  }
  CHECK(refused > 3);
}

TEST_CASE("program/require_sound: it finds every planted fault that the slow player finds",
          "[program]") {
  auto const all = cases();
  Random random(6);
  std::array<int, faults.size()> wrong{}, seen{}, planted{};
  int const tries = full() ? 100000 : sanitized ? 2000 : 20000;
  for (int i = 0; i < tries; ++i) {
    auto const& one = *all[pick(random, all.size())];
    auto const fault = pick(random, faults.size());
    Program program = one.program;
    if (!plant(program, fault, random)) continue;
    ++planted[fault];
    auto const theirs = found(program, one, random, 2);
    auto const ours = said(program, one);
    CAPTURE(i, one.name, faults[fault], theirs);
    if (!theirs.empty()) REQUIRE(ours != "");
    wrong[fault] += theirs.empty() ? 0 : 1;
    seen[fault] += ours.empty() ? 0 : 1;
  }
  for (std::size_t fault = 0; fault < faults.size(); ++fault) {
    CAPTURE(faults[fault], planted[fault], wrong[fault], seen[fault]);
    CHECK(planted[fault] > 0);
    CHECK(seen[fault] >= wrong[fault]);
    CHECK(wrong[fault] > planted[fault] / 8);  // else this test would prove little
  }
}

TEST_CASE("program/require_ends: a program of late answers waits for the server alone",
          "[program]") {
  std::size_t tried = 0;
  for (auto const& one : cases()) {
    if (!one->program.exchanges()) continue;
    CAPTURE(one->name);
    Program const answers = detail::only_answers(one->program);
    CHECK_NOTHROW(require_ends(answers));

    Program wrong = answers;
    auto& waits = wrong.ranks[0].waits;
    REQUIRE(!waits.empty());
    waits[0].signal = static_cast<std::uint32_t>(wrong.signals.size());
    CHECK_THROWS_WITH(require_ends(wrong), Catch::Contains("which does not exist"));
    for (std::size_t s = 0; s < wrong.signals.size(); ++s) {
      if (wrong.signals[s].receiver != 0 || wrong.signals[s].sender < 0) continue;
      waits[0].signal = static_cast<std::uint32_t>(s);  // no rank gives anything in this program
      CHECK_THROWS_WITH(require_ends(wrong), Catch::Contains("for ever"));
      ++tried;
      break;
    }
    wrong = answers;
    wrong.ranks[0].code[0].cell = static_cast<std::uint16_t>(wrong.cells.size());
    CHECK_THROWS_WITH(require_ends(wrong), Catch::Contains("which it does not hold"));
  }
  CHECK(tried > 1);
}

TEST_CASE("program/require_sound: one sentence names rank, instruction and what is wrong",
          "[program]") {
  auto const whole = made("1f1b", schedule::OneFOneB{}.table({2, 3}));
  Program program = whole->program;
  auto& rank = program.ranks[1];
  REQUIRE(rank.code[2].waits == 1);  // for the input of microbatch 1
  erase(rank.waits, wait_of(rank, 2));
  rank.code[2].waits = 0;
  CHECK_THAT(said(program, *whole), Catch::Contains("at instruction 2, 1F1, rank 1") &&
                                        Catch::Contains("message of its input") &&
                                        Catch::Contains("please report this"));
  CHECK(said(program, *whole).find('\n') == std::string::npos);

  SECTION("a table that claims to be proven, and is not") {
    Table table = whole->table;
    std::swap(table.actions[0], table.actions[1]);
    Table lacking = whole->table;
    lacking.actions.pop_back();
    CHECK_THAT(said(whole->program, *made("", table)),
               Catch::Contains("not the next of its row in the table"));
    CHECK_THROWS_WITH(lay_out(lacking), Catch::Contains("stage 1, microbatch 2"));
    lacking.actions.push_back({schedule::Kind::backward, 1, 3});
    CHECK_THROWS_WITH(lay_out(lacking), Catch::Contains("stage 1, microbatch 3"));
  }
  SECTION("an update before the last gradient of its minibatch") {
    LayOutOptions options;
    options.staleness = model_of(staleness::WeightStashing{});
    auto const alone = made("alone", schedule::OneFOneB{}.table({1, 4}), options);
    Program early = alone->program;
    auto& code = early.ranks[0].code;
    std::size_t update = 1;
    while (code[update].op != Op::apply) ++update;
    REQUIRE(code[update - 1].waits + code[update].waits == 0);
    std::swap(code[update - 1], code[update]);
    CHECK_THAT(said(early, *alone), Catch::Contains("makes update"));
  }
  SECTION("the end of a step before the last action of a rank") {
    auto const replicated = made("replicated", schedule::OneFOneB{}.table({1, 2}));
    replicated->replicas = std::make_shared<Replicas const>(Replicas{2});
    replicated->lay();
    for (Op const op : {Op::hand_in, Op::finish}) {
      Program early = replicated->program;
      auto& end = early.ranks[1];
      std::size_t last = end.code.size() - 1;
      while (!computes(end.code[last].op)) --last;
      std::size_t at = last;
      while (end.code[at].op != op) ++at;
      while (at > last) swap_with_next(end, --at);
      CHECK_THAT(said(early, *replicated), Catch::Contains("computes after its last gradient"));
    }
    Program lacking = replicated->program;  // the second replica leaves a whole microbatch out
    auto& short_rank = lacking.ranks[1];
    for (std::size_t i = short_rank.code.size(); i-- > 0;)
      if (short_rank.code[i].microbatch == 1) remove(short_rank, i);
    CHECK_THAT(said(lacking, *replicated),
               Catch::Contains("the end, rank 1 ends before all that the table says is done"));
  }
  SECTION("own waves in place of the pushes of others") {
    staleness::WaveSynchronous const waves{.in_flight = 2, .distance = 0};
    LayOutOptions options;
    options.staleness = detail::staleness_model<true>(waves);
    auto const worker = made("worker", schedule::Fifo{.in_flight = 2}.table({1, 9}), options);
    Program stale = worker->program;
    auto& only = stale.ranks[0];
    auto& code = only.code;
    std::size_t pull = 0;
    while (code[pull].op != Op::pull || code[pull].rounds() == 0) ++pull;
    REQUIRE(code[pull].snapshot());
    REQUIRE(code[pull].waits == 1);  // for the server
    erase(only.waits, wait_of(only, pull));
    code[pull].waits = 0;
    --code[pull].microbatch;  // a round less of all workers
    ++code[pull].x;           // and one more of its own, which makes as many updates
    CHECK_THAT(said(stale, *worker),
               Catch::Contains("reads weights with 0 pushes of every worker, where the staleness "
                               "model needs 1"));
  }
  SECTION("a staleness model that answers otherwise the second time") {
    static int asked = 0;
    asked = 0;
    auto model = model_of(staleness::WeightStashing{});
    model.version = [](void const*, int, int available) { return asked++ < 8 ? available : 0; };
    LayOutOptions options;
    options.staleness = model;
    auto const moody = made("moody", schedule::OneFOneB{}.table({2, 4}), options);
    CHECK_THAT(said(moody->program, *moody), Catch::Contains("where the staleness model says 0"));
  }
}

}  // namespace check_program_test
