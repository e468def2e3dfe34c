// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/schedule/named.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "catch.hpp"

#include "../schedule/zoo.hpp"
#include "engine/typed_oracle.hpp"

namespace schedules_test {

using namespace small_model;

namespace {

/// A ready-made table as a policy.
struct Ready {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  Table made;
  int slices = 1;
  [[nodiscard]] int chunks() const { return made.stages / made.ranks(); }
  [[nodiscard]] Table table(sg::Shape) const { return made; }
};

template <class Device>
auto ready_pipeline(Device device, Table const& table, sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(table.stages)},
                                    Ready{table, table.slices}, Loss{}, optimizer(), device,
                                    options);
}

}  // namespace

TEST_CASE("train/Trainer: every schedule trains with the bits of typed loops that add in its order",
          "[train]") {
  int trained = 0;
  for (int const P : {2, 4}) {
    int const M = 2 * P;
    for (auto const& [name, table] : zoo::all(P, M)) {
      bool const backward = std::any_of(table.actions.begin(), table.actions.end(),
                                        [](Action const& a) { return a.kind != Kind::forward; });
      if (table.stages > layers || !backward) continue;
      for (bool const recompute : {false, true}) {
        CAPTURE(P, name, recompute);
        auto const data = batches(sanitized ? 2 : 6, M * table.slices, true);
        auto const orders = orders_of(table, first_layers(even_cuts(table.stages)));
        auto const course = expected_course(data, true, orders);
        sg::Options options;
        options.clip_norm = clip;
        options.recompute = recompute;
        auto on_threads = ready_pipeline(sg::host::Threads{2}, table, options);
        REQUIRE(first_difference(on_threads, data, course) == -1);
        auto in_virtual_time = ready_pipeline(sg::sim::VirtualClock{.jitter = 0.5}, table, options);
        REQUIRE(first_difference(in_virtual_time, data, course) == -1);
        ++trained;
      }
    }
  }
  CHECK(trained >= 60);
}

TEST_CASE(
    "train/Trainer: of several owners of a stage, all hold the parameters of the last step after "
    "a fault",
    "[train]") {
  auto const table = sg::schedule::DualPipe{}.table({4, 8, 1});
  auto const data = batches(2, 8, false);
  auto const course = expected_course(data, true, orders_of(table, first_layers(even_cuts(4))));
  sg::Options options;
  options.clip_norm = clip;
  auto train = ready_pipeline(sg::host::Threads{2}, table, options);
  Batch broken = data[0];
  broken.targets[5][0] = 1000;  // no such class
  CHECK_THROWS_AS(sg::run(train.step(broken)), sg::Error);
  CHECK(train.steps() == 0);
  CHECK(first_difference(train, data, course) == -1);
}

namespace {

/// Bits of the parameters after some steps, or after a stream where no step can be.
template <class Schedule, class Staleness>
std::vector<std::byte> trained(Schedule schedule, int stages, int inputs, Staleness staleness) {
  sg::Options options;
  options.seed = run_seed;
  auto train =
      sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(stages)}, std::move(schedule),
                                 Loss{}, optimizer(), sg::host::Threads{2}, options, staleness);
  for (auto const& data : batches(2, inputs, true)) {
    if constexpr (Staleness::synchronous)
      sg::run(train.step(data));
    else
      sg::run(train.stream(data));
  }
  return bits(train);
}

}  // namespace

TEST_CASE("train/Pipeline: a schedule by its name trains with the bits of its policy", "[train]") {
  int compared = 0;
  sg::schedule::catalog_lines.for_each([&]<class P>(sg::schedule::CatalogLine<P> const& line) {
    if (!line.trains) return;
    CAPTURE(sg::schedule::catalog_name<P>);
    sg::schedule::Named const named{.name = std::string(sg::schedule::catalog_name<P>)};
    int const stages = 2 * named.chunks(), inputs = 4 * named.facts().slices;
    auto const same = [&](auto staleness) {
      auto const by_type = trained(P{}, stages, inputs, staleness);
      REQUIRE(trained(named, stages, inputs, staleness) == by_type);
      REQUIRE(by_type != trained(P{}, stages, 2 * inputs, staleness));
    };
    if constexpr (P::flushes)
      same(sg::staleness::Synchronous{});
    else
      same(sg::staleness::WeightStashing{});
    ++compared;
  });
  CHECK(compared == static_cast<int>(sg::schedule::catalog.size()) - 1);
}

TEST_CASE(
    "train/Trainer: every schedule evaluates and predicts any number of microbatches, with the "
    "bits "
    "of one device",
    "[train]") {
  auto one =
      sg::Pipeline{model()}.on_one_device(Loss{}, optimizer(), sg::Options{.seed = run_seed});
  auto alone = sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(1)}, Loss{}, optimizer(),
                                          sg::Options{.seed = run_seed});
  int compared = 0;
  for (auto const& entry : sg::schedule::catalog) {
    sg::schedule::Named named{.name = std::string(entry.name)};
    if (!entry.flushes) continue;
    CAPTURE(named.name);
    int const stages = (entry.chunks > 1 ? 2 : 4) * entry.chunks;
    auto const check = [&](auto device, int most) {
      auto train = sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(stages)}, named, Loss{},
                                              optimizer(), device, sg::Options{.seed = run_seed});
      for (int microbatches = 1; microbatches <= most; ++microbatches) {
        CAPTURE(microbatches);
        Batch const data = batch(microbatches, microbatches * entry.slices, true);
        REQUIRE(sg::run(train.evaluate(data)).loss == one.evaluate(data).loss);
        std::vector<Matrix> ours(data.inputs.size()), theirs(data.inputs.size());
        sg::run(train.predict(data.inputs, ours));
        sg::run(alone.predict(data.inputs, theirs));
        for (std::size_t m = 0; m < ours.size(); ++m)
          REQUIRE(std::vector(ours[m].begin(), ours[m].end()) ==
                  std::vector(theirs[m].begin(), theirs[m].end()));
        ++compared;
      }
    };
    check(sg::host::Threads{2}, 7);
    check(sg::sim::VirtualClock{}, 3);
    // A limit on what is in flight is one of training alone, and so is a group.
    if (entry.takes_group) named.group = 9;
    if (!entry.takes_in_flight && !entry.takes_memory) named.limits.in_flight = 12;
    check(sg::host::Threads{1}, 4);
  }
  CHECK(compared > 200);
}

TEST_CASE("train/Trainer: a schedule that refuses everything says so when it is to evaluate",
          "[train]") {
  auto train = sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(3)},
                                          sg::schedule::Named{"chimera"}, Loss{}, optimizer());
  CHECK_THROWS_WITH(sg::run(train.evaluate(batch(0, 5, true))),
                    Catch::Contains("schedule chimera cannot have 3 ranks"));
}

TEST_CASE("train/Pipeline: a name that cannot train in steps is refused in one sentence",
          "[train]") {
  auto const make = [](char const* name) {
    return sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(2)}, sg::schedule::Named{name},
                                      Loss{});
  };
  CHECK_THROWS_WITH(make("pipedream"),
                    Catch::Contains("schedule pipedream never flushes, so weights change"));
  CHECK_THROWS_WITH(make("pipedrem"),
                    "there is no schedule 'pipedrem'; the nearest is 'pipedream'");
  CHECK_NOTHROW(make("zb-h1"));
  auto forward = make("forward-only");
  CHECK_THROWS_WITH(sg::run(forward.step(batch(0, 4, true))),
                    Catch::Contains("a table without a backward action, which cannot train"));
  CHECK(sg::run(forward.evaluate(batch(0, 4, true))).loss > 0);
}

}  // namespace schedules_test
