// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/grouped_pushes.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/grouping/bucket.hpp>
#include <stagger/collective/grouping/greedy.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/small_model.hpp"
#include "train/in_groups.hpp"
#include "train/replay.hpp"
#include "train/scalar_worker.hpp"
#include "train/server_oracle.hpp"
#include "train/workers_oracle.hpp"

namespace grouped_pushes_test {

namespace sg = stagger;
namespace grouping = sg::collective::grouping;
using scalar_worker::Scale;
using sg::collective::GroupedPushes;
using sg::collective::ParameterServer;

namespace {

template <class Trainer> std::vector<std::byte> values(Trainer& train) {
  std::vector<std::byte> all;
  for (auto const& state : train.parameters())
    all.insert(all.end(), state.value.begin(), state.value.end());
  return all;
}

/// The weights of two workers of six layers after each of nine steps.
template <class Schedule>
void same_bits(std::vector<int> const& cuts, int ranks, Schedule const& schedule) {
  auto const trained = [&](auto collective_of) {
    ParameterServer const server({.workers = 2});
    auto const make = [&](int n) {
      return sg::Pipeline{sg::Sequential{std::vector<Scale>(6, Scale(9))}}.with(
          sg::partition::Cuts{cuts}, schedule, sg::staleness::Synchronous{},
          collective_of(server.worker(n)), scalar_worker::Sum{}, scalar_worker::sgd,
          sg::host::Threads{ranks});
    };
    auto a = make(0);
    auto b = make(1);
    std::vector<std::vector<std::byte>> all;
    for (int step = 0; step < 9; ++step) {
      static_cast<void>(
          sg::run_together(a.step(scalar_worker::batch(4)), b.step(scalar_worker::batch(8))));
      all.push_back(values(a));
      all.push_back(values(b));
    }
    return all;
  };
  auto const at_the_end = trained([](auto worker) { return worker; });
  auto const grouped = [&](auto policy) {
    return trained(
        [&](auto worker) { return GroupedPushes{std::move(worker), policy, {1e-6, 1e-9}}; });
  };
  CHECK(grouped(grouping::Layerwise{}) == at_the_end);
  CHECK(grouped(grouping::Single{}) == at_the_end);
  CHECK(grouped(grouping::Bucket{100}) == at_the_end);
  CHECK(grouped(grouping::Greedy{}) == at_the_end);
  CHECK(trained([](auto worker) { return GroupedPushes{std::move(worker)}; }) == at_the_end);
}

/// One worker of one stage with four layers of 36 bytes, over a link that carries one in a second.
/// A forward takes 4 s, a backward 2 s for each layer.
template <class Collective>
auto over_slow_link(sg::sim::Clock const& clock, Collective collective) {
  sg::sim::VirtualClock device;
  device.costs = sg::schedule::Costs::uniform(4, 8, 0);
  device.clock = clock;
  return sg::Pipeline{sg::Sequential{std::vector<Scale>(4, Scale(9))}}.with(
      sg::staleness::Synchronous{}, std::move(collective), scalar_worker::Sum{}, scalar_worker::sgd,
      std::move(device), sg::Options{.record = true});
}

/// Seconds of each of some steps.
template <class Trainer>
std::vector<double> step_s(sg::sim::Clock const& clock, Trainer& train, int steps) {
  std::vector<double> all;
  for (int i = 0; i < steps; ++i) {
    double const before = clock.now_s();
    static_cast<void>(sg::run(train.step(scalar_worker::batch(1))));
    all.push_back(clock.now_s() - before);
  }
  return all;
}

/// A model whose lowest layer fails in backward when told to.
struct Failing : Scale {
  bool const* fails;
  Failing(std::size_t size, bool const* when) : Scale(size), fails(when) {}
  void backward(sg::Context& c, float const& x, float const& dy, float& dx, sg::NothingSaved& s) {
    if (*fails) throw std::runtime_error("out of ink");
    Scale::backward(c, x, dy, dx, s);
  }
};

template <class... Policy> std::string refused(Policy... policy) {
  ParameterServer const server({.workers = 1});
  try {
    static_cast<void>(sg::Pipeline{sg::Sequential{std::vector<Scale>(4, Scale(9))}}.with(
        GroupedPushes{server.worker(0)}, scalar_worker::Sum{}, scalar_worker::sgd,
        std::move(policy)...));
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::bad_configuration);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("collective/GroupedPushes: the bits of pushes at the end of a step", "[collective]") {
  same_bits({}, 1, sg::schedule::OneFOneB{});
  same_bits({2}, 2, sg::schedule::OneFOneB{});
  same_bits({2}, 2, sg::schedule::ZeroBubbleH1{});
  same_bits({1, 2, 4}, 2, sg::schedule::Interleaved{2});
}

TEST_CASE("collective/GroupedPushes: workers have the bits of sequential loops", "[collective]") {
  using namespace workers_oracle;
  sweep_stale(Sweep(3), [](Stale const& stale, int rotation, int threads, auto const& optimizer) {
    ParameterServer const server({.workers = stale.workers, .shards = 2});
    compare_changes_on_threads(stale, InGroups{server, grouping::Layerwise{}}, rotation, threads,
                               optimizer);
  });
  sweep_steps([](int workers, int rotation, int threads) {
    ParameterServer const server({.workers = workers});
    compare_steps(workers, InGroups{server, grouping::Bucket{100}}, adam, rotation, threads);
  });
}

TEST_CASE("collective/GroupedPushes: carried out again, the server's log gives the same bits",
          "[collective]") {
  using namespace workers_oracle;
  auto const replay = [](auto const& model) {
    ParameterServer const server({.workers = 3, .shards = 2, .log = true});
    InGroups const in_groups{server, grouping::Layerwise{}};
    replay_drifting(
        model.pushes, 3, all_of(3), [&] { return logs_of(server); },
        [&](int n) { return stepping(model, in_groups, n, adam, cuts_of(n), 2); });
  };
  using sg::staleness::Pushes;
  for (Pushes const pushes : {Pushes::gradients, Pushes::changes}) {
    replay(sg::staleness::Asynchronous{pushes});
    replay(sg::staleness::StaleSynchronous{1, pushes});
  }
  replay(sg::staleness::RoundRobinSynchronous{});
}

TEST_CASE("collective/GroupedPushes: the exchange hides behind the backward that still runs",
          "[collective]") {
  sg::sim::Clock const late({.rate = 36});
  ParameterServer const one({.workers = 1});
  auto at_the_end = over_slow_link(late, one.worker(0));
  // 4 forward, 8 backward; all pushes share the link for 4 s, then all answers do.
  CHECK(step_s(late, at_the_end, 1).back() == Approx(20));

  sg::sim::Clock const early({.rate = 36});
  ParameterServer const two({.workers = 1});
  auto layerwise =
      over_slow_link(early, GroupedPushes{two.worker(0), grouping::Layerwise{}, {0, 1.0 / 36}});
  // Each layer's push and answer take 1 s each, while the next layer computes for 2 s.
  CHECK(step_s(early, layerwise, 1).back() == Approx(4 + 8 + 1 + 1));
  CHECK(values(layerwise) == values(at_the_end));
  int pushes = 0;
  double backward_s = 0;
  auto const timeline = layerwise.timeline();
  for (auto const& span : timeline.row(0)) {
    pushes += span.action.kind == sg::schedule::Kind::push ? 1 : 0;
    if (span.action.kind == sg::schedule::Kind::backward) backward_s += span.end_s - span.start_s;
  }
  CHECK(pushes == 4);
  CHECK(backward_s == Approx(8));
}

TEST_CASE(
    "collective/GroupedPushes: measured times and the link's line decide which layers go together",
    "[collective]") {
  // Backward takes 2 s a layer, so a start-up of 100 s is worth one push, and none is worth four.
  for (double const startup_s : {0.0, 100.0}) {
    sg::sim::Clock const clock({.rate = 36});
    ParameterServer const server({.workers = 1});
    auto train = over_slow_link(
        clock, GroupedPushes{server.worker(0), grouping::Optimal{}, {startup_s, 1.0 / 36}});
    auto const took = step_s(clock, train, 9);  // one to warm up, five to measure, then three
    for (int i = 0; i < 6; ++i) CHECK(took[static_cast<std::size_t>(i)] == Approx(14));
    for (std::size_t i = 6; i < took.size(); ++i)
      CHECK(took[i] == Approx(startup_s == 0 ? 14 : 20));
  }
}

TEST_CASE("collective/GroupedPushes: in turn, on one link", "[collective]") {
  auto const trained = [](bool grouped) {
    sg::sim::Clock const clock({.rate = 36, .sharing = sg::sim::Sharing::one_at_a_time});
    ParameterServer const server({.workers = 3});
    auto const make = [&](auto collective) {
      sg::sim::VirtualClock device;
      device.costs = sg::schedule::Costs::uniform(4, 8, 0);
      device.clock = clock;
      return sg::Pipeline{sg::Sequential{std::vector<Scale>(4, Scale(9))}}.with(
          sg::partition::Cuts{{2}}, sg::staleness::RoundRobinSynchronous{}, std::move(collective),
          scalar_worker::Sum{}, scalar_worker::sgd, std::move(device));
    };
    std::vector<std::byte> all;
    auto const take = [&](auto collective_of) {
      std::vector<decltype(make(collective_of(0)))> workers;
      for (int n = 0; n < 3; ++n) workers.push_back(make(collective_of(n)));
      auto const batch = scalar_worker::batch(4);
      for (int step = 0; step < 4; ++step) {
        std::vector<sg::Step> steps;
        for (auto& worker : workers) steps.push_back(worker.step(batch));
        static_cast<void>(sg::run_together(std::move(steps)));
      }
      for (auto& worker : workers) {
        auto const own = values(worker);
        all.insert(all.end(), own.begin(), own.end());
      }
    };
    if (grouped)
      take([&](int n) { return GroupedPushes{server.worker(n), grouping::Layerwise{}, {}}; });
    else
      take([&](int n) { return server.worker(n); });
    return std::pair(all, clock.now_s());
  };
  auto const [late, late_s] = trained(false);
  auto const [early, early_s] = trained(true);
  CHECK(early == late);
  CHECK(early_s < late_s);
}

TEST_CASE("collective/GroupedPushes: a step that fails keeps what it has pushed, and others go on",
          "[collective]") {
  bool fails = false;
  bool const never = false;
  ParameterServer const server({.workers = 2, .log = true});
  auto const make = [&](int n, bool const* lowest_fails) {
    return sg::Pipeline{
        sg::Sequential{std::vector<Failing>{{9, lowest_fails}, {9, &never}, {9, &never}}}}
        .with(sg::staleness::Asynchronous{},
              GroupedPushes{server.worker(n), grouping::Layerwise{}, {}}, scalar_worker::Sum{},
              scalar_worker::sgd, sg::host::Threads{1});
  };
  auto a = make(0, &fails);
  auto b = make(1, &never);
  auto const batch = scalar_worker::batch(1);  // whose only backward is the last
  auto const pushes = [&] {
    std::vector<int> counts;
    for (std::size_t l = 0; l < 3; ++l) {
      auto const log = server.log(l);
      counts.push_back(
          static_cast<int>(std::count_if(log.begin(), log.end(), [](auto const& event) {
            return event.kind == sg::collective::ServerEvent::Kind::added && event.worker == 0;
          })));
    }
    return counts;
  };
  static_cast<void>(sg::run(a.step(batch)));
  CHECK(pushes() == std::vector<int>{1, 1, 1});
  fails = true;
  CHECK_THROWS_WITH(sg::run(a.step(batch)), "out of ink");
  fails = false;
  CHECK(pushes() == std::vector<int>{1, 2, 2});  // the lowest layer had no gradient
  static_cast<void>(sg::run(b.step(batch)));
  static_cast<void>(sg::run(a.step(batch)));
  CHECK(pushes() == std::vector<int>{2, 3, 3});
}

TEST_CASE("collective/GroupedPushes: a gradient that is not finite is refused", "[collective]") {
  ParameterServer const server({.workers = 2});
  workers_oracle::InGroups const in_groups{server, grouping::Layerwise{}};
  workers_oracle::refuses_infinities(in_groups, in_groups);
}

/// Microbatches of 8 rows.
small_model::Batch batch_of(std::uint64_t microbatches) {
  using namespace small_model;
  Batch batch;
  for (std::uint64_t m = 0; m < microbatches; ++m) {
    Tokens x({8});
    Tokens t({8});
    for (std::size_t r = 0; r < 8; ++r) {
      x[r] = static_cast<std::int32_t>(sg::random_bits(6, {m, r}) % classes);
      t[r] = static_cast<std::int32_t>(sg::random_bits(7, {m, r}) % width);
    }
    batch.inputs.push_back(std::move(x));
    batch.targets.push_back(std::move(t));
  }
  return batch;
}

/// Values after each of some steps of a worker with replicas.
template <class Collective, class Staleness, class Schedule>
std::vector<std::vector<std::byte>> by_replicas(Collective collective, Staleness staleness,
                                                Schedule schedule, std::vector<int> const& counts) {
  using namespace small_model;
  auto train =
      sg::Pipeline{sg::Sequential{Embedding{}, Dense{}, Curve{}, Dense{5}, Curve{}, Dense{7}}}.with(
          sg::partition::Cuts{{3}}, staleness, schedule, std::move(collective), Loss{},
          workers_oracle::adam, sg::host::Threads{2},
          sg::Options{.replicas = sg::Replicas::even(counts.data(), counts.size())});
  Batch const batch = batch_of(4);
  std::vector<std::vector<std::byte>> all;
  for (int step = 0; step < 9; ++step) {
    static_cast<void>(sg::run(train.step(batch)));
    all.push_back(values(train));
  }
  return all;
}

template <class Staleness, class Schedule>
void replicas_have_same_bits(Staleness staleness, Schedule schedule,
                             std::vector<int> const& counts) {
  auto const trained = [&](auto collective_of) {
    ParameterServer const server({.workers = 1});
    return by_replicas(collective_of(server.worker(0)), staleness, schedule, counts);
  };
  auto const at_the_end = trained([](auto worker) { return worker; });
  CHECK(trained([](auto worker) { return GroupedPushes{std::move(worker)}; }) == at_the_end);
  CHECK(trained([](auto worker) {
          return GroupedPushes{std::move(worker), grouping::Layerwise{}};
        }) == at_the_end);
}

TEST_CASE("collective/GroupedPushes: sums of replicas have the bits of pushes at the end",
          "[collective]") {
  for (std::vector<int> const& counts :
       {std::vector{2, 1}, std::vector{1, 2}, std::vector{1, 1}, std::vector{2, 2}})
    replicas_have_same_bits(sg::staleness::Synchronous{}, sg::schedule::OneFOneB{}, counts);
  replicas_have_same_bits(sg::staleness::Asynchronous{.pushes = sg::staleness::Pushes::changes},
                          sg::schedule::GPipe{}, {3, 2});
  replicas_have_same_bits(
      sg::staleness::StaleSynchronous{.bound = 2,
                                      .pushes = sg::staleness::Pushes::changes,
                                      .adds = sg::staleness::Adds::in_worker_order},
      sg::schedule::ZeroBubbleH1{}, {2, 2});
  // Each stage has two owners, of which each also holds the other stage.
  replicas_have_same_bits(sg::staleness::Synchronous{}, sg::schedule::Chimera{}, {1, 1});
  // One way through, then the other: the ranks end their last backwards of stages in another order.
  small_model::Made const there_and_back{[](sg::Shape) {
    using small_model::Kind;
    small_model::Table table;
    table.stages = 2;
    table.microbatches = 4;
    for (int rank = 0; rank < 2; ++rank) {
      table.begin_row();
      for (int m = 0; m < 4; ++m) {
        int const stage = m / 2 == 0 ? rank : 1 - rank;
        table.add({Kind::forward, stage, m});
        table.add({Kind::backward, stage, m});
      }
    }
    return table;
  }};
  replicas_have_same_bits(sg::staleness::Synchronous{}, there_and_back, {1, 1});
}

/// A layer whose backward fails when told to.
struct FailingDense : small_model::Dense {
  bool const* fails = nullptr;
  void backward_weight(sg::Context& c, Input const& x, Output const& dy, sg::NothingSaved& s) {
    if (*fails) throw std::runtime_error("out of ink");
    Dense::backward_weight(c, x, dy, s);
  }
};

TEST_CASE("collective/GroupedPushes: sums of replicas are pushed while backward still runs",
          "[collective]") {
  using namespace small_model;
  bool fails = false;
  auto const trained = [&](auto collective_of) {
    sg::sim::Clock const clock({.rate = 2000});
    ParameterServer const server({.workers = 1, .log = true});
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(4, 8, 0);
    device.clock = clock;
    FailingDense low;
    low.fails = &fails;
    auto train = sg::Pipeline{sg::Sequential{Embedding{}, low, Curve{}, Dense{5}, Dense{7}}}.with(
        sg::staleness::Synchronous{}, collective_of(server.worker(0)), Loss{}, workers_oracle::sgd,
        std::move(device), sg::Options{.record = true, .replicas = {2}});
    Batch const batch = batch_of(1);
    for (int step = 0; step < 2; ++step) static_cast<void>(sg::run(train.step(batch)));
    double backward_ends_s = 0;
    double push_begins_s = 1e9;
    auto const timeline = train.timeline();
    for (int rank = 0; rank < 2; ++rank)
      for (auto const& span : timeline.row(rank)) {
        if (span.action.kind == sg::schedule::Kind::backward)
          backward_ends_s = std::max(backward_ends_s, span.end_s);
        if (span.action.kind == sg::schedule::Kind::push)
          push_begins_s = std::min(push_begins_s, span.start_s);
      }
    double const took_s = clock.now_s();
    auto all = values(train);
    fails = true;
    CHECK_THROWS_WITH(sg::run(train.step(batch)), "out of ink");
    fails = false;
    static_cast<void>(sg::run(train.step(batch)));  // the worker goes on
    auto const pushes_of = [&](std::size_t layer) { return server.log(layer).size(); };
    bool const kept = pushes_of(4) > pushes_of(1);
    return std::tuple(std::move(all), took_s, push_begins_s < backward_ends_s, kept);
  };
  auto const [late, late_s, late_overlaps, late_keeps] =
      trained([](auto worker) { return worker; });
  auto const [early, early_s, early_overlaps, early_keeps] =
      trained([](auto worker) { return GroupedPushes{std::move(worker), grouping::Layerwise{}}; });
  CHECK(early == late);
  CHECK(early_s < late_s);
  CHECK(early_overlaps);
  CHECK_FALSE(late_overlaps);
  CHECK(early_keeps);  // as without replicas, what was pushed before the failure
  CHECK_FALSE(late_keeps);
}

TEST_CASE("collective/GroupedPushes: what cannot be pushed in groups is refused in one sentence",
          "[collective]") {
  using Catch::Matchers::Contains;
  std::string const end =
      ", so that its layers cannot be pushed in groups while backward still runs";
  CHECK_THAT(refused(sg::schedule::Fifo{.in_flight = 2},
                     sg::staleness::WaveSynchronous{.in_flight = 2, .distance = 0}),
             Contains("a stream pushes after each of its waves" + end));
  CHECK_THAT(refused(sg::staleness::LocalSgd{.period = 2}),
             Contains("the staleness model pushes weights" + end));
  CHECK_THAT(refused(sg::staleness::OverlappedSynchronous<>{}),
             Contains("the staleness model says at the end of a step which layers are late" + end));
  CHECK_THAT(refused(sg::staleness::Synchronous{}, sg::Options{.clip_norm = 1}),
             Contains("clip_norm needs the gradients of all layers" + end));
  CHECK_THAT(refused(sg::staleness::Synchronous{}, sg::partition::LayerSplit{.group = 2},
                     sg::Options{.replicas = {2}}),
             Contains("partition::LayerSplit has ranks share layers" + end));
  ParameterServer const server({.workers = 1});
  GroupedPushes counted{server.worker(0)};
  counted.measured_steps = -1;
  CHECK_THROWS_WITH((sg::Pipeline{sg::Sequential{std::vector<Scale>(4, Scale(9))}}.with(
                        counted, sg::staleness::Synchronous{}, scalar_worker::Sum{})),
                    Contains("gradients cannot be grouped after -1 steps"));
}

}  // namespace grouped_pushes_test
