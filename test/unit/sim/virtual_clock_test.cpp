// SPDX-License-Identifier: Apache-2.0
#include <stagger/sim/virtual_clock.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <tuple>

#include <stagger/engine/replicas.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/v_1f1b.hpp>

#include "engine/random_table.hpp"
#include "engine/trap_model.hpp"
#include "schedule/zoo.hpp"

using namespace trap_model;
using sg::schedule::Action;
using sg::schedule::Costs;
using sg::schedule::Span;
using sg::schedule::Table;
using sg::schedule::Timeline;

// Every allocation by `new`: the one that `allocations_left` counts down to fails.
namespace {
thread_local long allocations_left = -1;     // negative: none fails
thread_local void (*meanwhile)() = nullptr;  // is called within the next one

void* allocate(std::size_t size, std::size_t alignment) {
  if (meanwhile != nullptr) std::exchange(meanwhile, nullptr)();
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* const memory =
      std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Where g++ inlines only one of a pair, it sees memory of aligned_alloc deleted, or memory of new freed.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, std::nothrow_t const&) noexcept {
  return std::aligned_alloc(16, (size + 15) / 16 * 16);
}
void* operator new[](std::size_t size, std::nothrow_t const&) noexcept {
  return std::aligned_alloc(16, (size + 15) / 16 * 16);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#pragma GCC diagnostic pop

namespace virtual_clock_test {

namespace {

/// A pipeline of one number per stage, with a fixed table.
auto clocked(Table const& table, sg::sim::VirtualClock clock, sg::Options options = {}) {
  options.record = true;
  int const chunks = table.stages / table.ranks();
  Made const schedule{[table](sg::Shape) { return table; }, chunks};
  auto const hook = make_hook();
  return sg::Pipeline{std::vector<Layer>(static_cast<std::size_t>(table.stages), Layer{hook})}.with(
      std::move(clock), schedule, Loss{hook}, optimizer(), options);
}

/// Costs in whole seconds: sums of them are exact.
Costs whole_costs(random_table::Random& random, int stages) {
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    sg::schedule::StageCosts c;
    c.forward_s = 1 + random_table::below(random, 9);
    c.backward_input_s = 1 + random_table::below(random, 9);
    c.backward_weight_s = 1 + random_table::below(random, 9);
    c.transfer_s = random_table::below(random, 6);
    costs.stages.push_back(c);
  }
  return costs;
}

double makespan(Timeline const& timeline) {
  double last = 0;
  for (auto const& span : timeline.spans) last = std::max(last, span.end_s);
  return last;
}

Timeline run(Table const& table, sg::sim::VirtualClock const& clock,
             sg::Options const& options = {}) {
  auto train = clocked(table, clock, options);
  auto const data = batch(table.microbatches);
  sg::run(train.step(data));
  return train.timeline();
}

sg::sim::VirtualClock clock_of(Costs costs) {
  sg::sim::VirtualClock clock;
  clock.costs = std::move(costs);
  return clock;
}

sg::Options room(unsigned spare) {
  sg::Options options;
  options.spare_slots = spare;
  return options;
}

}  // namespace

TEST_CASE(
    "sim/VirtualClock: with room for every message each action starts and ends as the schedule "
    "evaluates",
    "[sim]") {
  random_table::Random random(1);
  using namespace sg::schedule;
  for (int i = 0; i < 60; ++i) {
    int const P = 1 + random_table::below(random, 4);
    int const M = 1 + random_table::below(random, 8);
    std::vector<Table> tables{GPipe{}.table({P, M, 1}), OneFOneB{}.table({P, M, 1}),
                              OneFOneB{.warmup = Warmup::deep}.table({P, M, 1}),
                              small_model::split(OneFOneB{}.table({P, M, 1}), 1),
                              V1F1B{}.table({P, M, 2})};
    tables.push_back(Interleaved{}.table({P, P * (1 + M / 4), 2}));
    for (auto const& table : tables) {
      Costs const costs = whole_costs(random, table.stages);
      auto const expected = evaluate(table, costs);
      auto const ran = run(table, clock_of(costs), room(1000));
      CAPTURE(P, M, table.stages, table.microbatches);
      REQUIRE(makespan(ran) == expected.makespan_s);
      for (std::size_t r = 0; r < ran.row_begin.size(); ++r) {
        REQUIRE(ran.row(r).size() == expected.timeline.row(r).size());
        for (std::size_t a = 0; a < ran.row(r).size(); ++a) {
          REQUIRE(ran.row(r)[a].action == expected.timeline.row(r)[a].action);
          REQUIRE(ran.row(r)[a].start_s == expected.timeline.row(r)[a].start_s);
          REQUIRE(ran.row(r)[a].end_s == expected.timeline.row(r)[a].end_s);
        }
      }
    }
  }
}

TEST_CASE(
    "sim/VirtualClock: ranks that are equally fast need no option to run as the schedule evaluates",
    "[sim]") {
  int slower_with_one = 0;
  for (int const P : {2, 4}) {
    for (auto& [name, table] : zoo::all(P, 4 * P)) {
      if (name.find("forward-only") == 0) continue;                     // which cannot train
      for (auto& action : table.actions) action.overlaps_next = false;  // one after the other
      if (table.stages % table.ranks() != 0) continue;
      table.microbatches *= table.slices;  // as the engine runs them
      for (auto& action : table.actions) {
        action.microbatch = action.microbatch * table.slices + action.slice;
        action.slice = 0;
      }
      table.slices = 1;
      CAPTURE(P, name);
      double const expected = evaluate(table, Costs::uniform(1, 1, 1)).makespan_s;
      auto const clock = clock_of(Costs::uniform(1, 1, 1));
      CHECK(makespan(run(table, clock)) == expected);
      slower_with_one += makespan(run(table, clock, room(1))) > expected ? 1 : 0;
    }
  }
  CHECK(slower_with_one > 0);  // else this would say nothing
}

TEST_CASE("sim/VirtualClock: ranks that are equally fast never wait for room, recomputing or not",
          "[sim]") {
  int slower_with_one = 0;
  for (bool const recompute : {false, true})
    for (int const chunks : {2, 3})
      for (int const P : {2, 3, 4, 6})
        for (int const M : {P, 2 * P, 4 * P}) {
          auto const table =
              sg::schedule::Interleaved{.chunks_per_rank = chunks}.table({P, M, chunks});
          sg::Options options;
          options.recompute = recompute;
          auto const starts = [&](std::optional<unsigned> spare) {
            options.spare_slots = spare;
            std::vector<double> all;
            for (auto const& span : run(table, clock_of(Costs::uniform(1, 1, 1)), options).spans)
              all.push_back(span.start_s);
            return all;
          };
          CAPTURE(recompute, chunks, P, M);
          auto const expected = starts(1000);
          CHECK(starts(std::nullopt) == expected);
          slower_with_one += starts(1) != expected ? 1 : 0;
        }
  CHECK(slower_with_one > 0);  // else this would say nothing
}

TEST_CASE(
    "sim/VirtualClock: with few slots an action may start later than the data allow, never earlier",
    "[sim]") {
  random_table::Random random(2);
  int later = 0;
  for (int i = 0; i < 600; ++i) {
    Table const table = random_table::any(random);
    if (table.stages % table.ranks() != 0) continue;
    Costs const costs = whole_costs(random, table.stages);
    auto const expected = sg::schedule::evaluate(table, costs).timeline;
    auto const ran = run(table, clock_of(costs), room(static_cast<unsigned>(i) % 3));
    std::map<std::tuple<int, int, int>, double> ended;  // kind, stage, microbatch
    for (auto const& span : ran.spans)
      ended[{static_cast<int>(span.action.kind), span.action.stage, span.action.microbatch}] =
          span.end_s;
    auto const end_of = [&](sg::schedule::Kind kind, int stage, int microbatch) {
      auto const found = ended.find({static_cast<int>(kind), stage, microbatch});
      return found == ended.end() ? -1.0 : found->second;
    };
    std::vector<int> owner(static_cast<std::size_t>(table.stages));
    for (int r = 0; r < table.ranks(); ++r)
      for (auto const& a : table.row(r)) owner[static_cast<std::size_t>(a.stage)] = r;
    CAPTURE(i, table.ranks(), table.stages, table.microbatches);
    for (std::size_t r = 0; r < ran.row_begin.size(); ++r) {
      for (std::size_t a = 0; a < ran.row(r).size(); ++a) {
        auto const& span = ran.row(r)[a];
        REQUIRE(span.start_s >= expected.row(r)[a].start_s);
        later += span.start_s > expected.row(r)[a].start_s ? 1 : 0;
        // Its own inputs, in its own run: the message has travelled.
        auto const travelled = [&](int from, int edge, double end_s) {
          bool const crosses = owner[static_cast<std::size_t>(from)] != static_cast<int>(r);
          return end_s + (crosses ? costs.of(edge).transfer_s : 0);
        };
        int const s = span.action.stage;
        int const m = span.action.microbatch;
        if (span.action.kind == sg::schedule::Kind::forward && s > 0)
          REQUIRE(span.start_s >=
                  travelled(s - 1, s - 1, end_of(sg::schedule::Kind::forward, s - 1, m)));
        if (sg::schedule::gives_input_gradient(span.action.kind) && s + 1 < table.stages) {
          double const given = std::max(end_of(sg::schedule::Kind::backward, s + 1, m),
                                        end_of(sg::schedule::Kind::backward_input, s + 1, m));
          REQUIRE(span.start_s >= travelled(s + 1, s, given));
        }
      }
    }
  }
  CHECK(later > 0);
}

TEST_CASE("sim/VirtualClock: 1F1B on 8 ranks takes 3 (M + 7) for F = 1, B = 2", "[sim]") {
  for (int const M : {8, 32, 256})
    CHECK(makespan(run(sg::schedule::OneFOneB{}.table({8, M, 1}), sg::sim::VirtualClock{})) ==
          3.0 * (M + 7));
}

TEST_CASE("sim/VirtualClock: recomputation costs one more forward, and is told apart", "[sim]") {
  auto const table = sg::schedule::GPipe{}.table({2, 4, 1});
  sg::Options options;
  options.recompute = true;
  auto const ran = run(table, clock_of(Costs::uniform(3, 2, 1)), options);
  for (int r = 0; r < ran.ranks(); ++r) {
    auto const row = ran.row(r);
    std::size_t repeated = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].repeated) continue;
      ++repeated;
      CHECK(row[i].action.kind == sg::schedule::Kind::forward);
      CHECK(row[i].end_s - row[i].start_s == 3);
      CHECK(row[i + 1].action.kind == sg::schedule::Kind::backward);
      CHECK(row[i + 1].end_s - row[i + 1].start_s == 3);
    }
    CHECK(repeated == 4);
  }
  CHECK(makespan(ran) ==
        4 * 9 + 3 + 3);  // the first backward of rank 0 has repeated its forward meanwhile
}

TEST_CASE("sim/VirtualClock: jitter is drawn from the seed, within its bounds, anew in each step",
          "[sim]") {
  auto const table = sg::schedule::OneFOneB{}.table({4, 8, 1});
  auto const times = [&](double jitter, std::uint64_t seed, int steps) {
    sg::sim::VirtualClock clock;
    clock.jitter = jitter;
    clock.seed = seed;
    auto train = clocked(table, clock);
    auto const data = batch(table.microbatches);
    std::vector<double> spans;
    for (int s = 0; s < steps; ++s) {
      sg::run(train.step(data));
      for (auto const& span : train.timeline().spans) spans.push_back(span.end_s - span.start_s);
    }
    return spans;
  };
  auto const one = times(0.25, 5, 2);
  CHECK(one == times(0.25, 5, 2));
  CHECK(one != times(0.25, 6, 2));
  auto const half = static_cast<std::ptrdiff_t>(one.size() / 2);
  CHECK_FALSE(std::equal(one.begin(), one.begin() + half, one.begin() + half));
  auto const exact = times(0, 5, 2);
  double least = 2;
  double most = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    double const factor = one[i] / exact[i];
    least = std::min(least, factor);
    most = std::max(most, factor);
    CHECK(factor > 0.75 - 1e-9);
    CHECK(factor < 1.25 + 1e-9);
  }
  CHECK(least < 0.8);
  CHECK(most > 1.2);
}

TEST_CASE("sim/VirtualClock: an evaluation takes the time of its forwards", "[sim]") {
  auto train =
      clocked(sg::schedule::OneFOneB{}.table({3, 5, 1}), clock_of(Costs::uniform(2, 1, 1)));
  auto const data = batch(5);
  sg::run(train.evaluate(data));
  CHECK(makespan(train.timeline()) == 2.0 * (5 + 2));
}

TEST_CASE("sim/VirtualClock: costs and jitter that make no sense are refused in one sentence",
          "[sim]") {
  auto const table = sg::schedule::GPipe{}.table({2, 2, 1});
  auto const refuse = [&](sg::sim::VirtualClock const& clock, std::string const& value,
                          std::string const& remedy) {
    CHECK_THROWS_WITH(clocked(table, clock), Catch::Contains(value) && Catch::Contains(remedy));
  };
  refuse(clock_of(Costs::uniform(-1, 1, 1)), "forward_s = -1", "not negative");
  refuse(clock_of(Costs::uniform(1, 1, 1, -0.5)), "transfer_s = -0.5", "not negative");
  refuse(clock_of(Costs::uniform(1, std::numeric_limits<double>::quiet_NaN(), 1)),
         "backward_input_s = ", "finite");
  refuse(clock_of(Costs::uniform(1, 1, std::numeric_limits<double>::infinity())),
         "backward_weight_s = ", "finite");
  Costs three;
  three.stages.resize(3);
  refuse(clock_of(three), "3 stages", "one line per stage");
  for (double const jitter : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    sg::sim::VirtualClock clock;
    clock.jitter = jitter;
    refuse(clock, "jitter", "0 <= jitter < 1");
  }
  for (double const time :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    sg::sim::VirtualClock clock;
    clock.sum.startup_s = time;
    refuse(clock, "sum.startup_s", "finite number that is not negative");
    clock.sum = {0, time};
    refuse(clock, "sum.per_byte_s", "finite number that is not negative");
    clock.sum = {};
    clock.layer_backward_s = {1, time};
    refuse(clock, "layer_backward_s of layer 1", "finite number that is not negative");
  }
  sg::sim::VirtualClock layered;
  layered.layer_backward_s = {1};
  refuse(layered, "1 backward times", "2 layers");
}

TEST_CASE("sim/VirtualClock: a program that found no memory leaves those before and after it right",
          "[sim]") {
  // The programs differ in ranks: an even number of microbatches has two owners of each stage, and
  // ranks that add up their gradients.
  Made const mixed{[](sg::Shape shape) {
    return shape.microbatches % 2 == 0 ? sg::schedule::Chimera{}.table(shape)
                                       : sg::schedule::GPipe{}.table(shape);
  }};
  sg::Options options;
  options.replicas = {1, 1};
  auto const make = [&] {
    return sg::Pipeline{small_model::model()}.with(
        sg::partition::Cuts{{3}}, sg::sim::VirtualClock{}, mixed, small_model::Loss{},
        sg::optimizer::AdamW{}, options);
  };
  auto const few = small_model::batch(0, 3, true);
  auto const many = small_model::batch(1, 4, true);
  auto undisturbed_one = make();
  REQUIRE(undisturbed_one.program(4).ranks.size() != undisturbed_one.program(3).ranks.size());
  for (auto const* const data : {&few, &few, &many, &few}) sg::run(undisturbed_one.step(*data));
  auto const expected = bits(undisturbed_one);
  long failures = 0;
  for (bool failed = true; failed; ++failures) {
    auto train = make();
    sg::run(train.step(few));
    failed = false;
    allocations_left = failures;
    try {
      train.prepare(4);
    } catch (std::bad_alloc const&) {
      failed = true;
    }
    allocations_left = -1;
    CAPTURE(failures);
    sg::run(train.step(few));
    sg::run(train.step(many));
    sg::run(train.step(few));
    REQUIRE(bits(train) == expected);
  }
  CHECK(failures > 50);
}

TEST_CASE("train/Trainer: no step begins while failed_at copies what a step writes", "[sim]") {
  auto const hook = make_hook();
  auto train = pipeline(sg::sim::VirtualClock{}, hook);
  *hook = [](Call const& call) {
    if (call == Call{Function::forward, 2, 1}) throw std::runtime_error("trap");
  };
  CHECK_THROWS_AS(sg::run(train.step(batch(4))), std::runtime_error);
  *hook = [](Call const&) {};
  static decltype(train)* trainer;
  static std::string refusal;
  trainer = &train;
  refusal.clear();
  std::string place;
  meanwhile = [] {  // the copy has begun
    try {
      sg::run(trainer->step(batch(4)));
    } catch (sg::Error const& error) {
      refusal = error.what();
    }
  };
  place = train.failed_at();
  meanwhile = nullptr;
  CHECK(place == "rank 2 in 2F1, layer 2");
  CHECK_THAT(refusal, Catch::StartsWith("another call of this pipeline has not returned yet"));
  sg::run(train.step(batch(4)));
}

}  // namespace virtual_clock_test
