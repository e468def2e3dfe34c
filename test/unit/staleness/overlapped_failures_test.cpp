// SPDX-License-Identifier: Apache-2.0
#include "train/overlapped_failures.hpp"

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/backoff.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "sweep.hpp"
#include "temporary_folder.hpp"

namespace overlapped_failures_test {

namespace sg = stagger;
using namespace overlapped_oracle;
namespace osp = sg::staleness::overlapped;
using sg::collective::OnFailure;
using sg::collective::ParameterServer;

namespace {

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};
sg::optimizer::Sgd const sgd{.rate = 0.05, .momentum = 0.9, .weight_decay = 0.01};

template <class Selection, class Budget = osp::ShareLate>
using Osp = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, Selection, Budget>;

Rules all_late() {
  Rules rules = products(1);
  return rules;
}

/// @param check  (model, rules)
template <class Check> void sweep_budgets(Check check) {
  for (double const share : {0.3, 0.5, 0.8}) {
    CAPTURE(share);
    check(Osp<osp::FirstFit>{.budget = {share}}, products(share));
  }
  for (double const share : {0.1, 0.6, 0.8}) {
    CAPTURE(share);
    Rules rules = products(share);
    rules.misfit = Rules::splits;
    check(Osp<osp::SplitLayer>{.budget = {share}}, rules);
  }
  check(Osp<osp::FirstFit, osp::AllLate>{}, all_late());
}

}  // namespace

TEST_CASE(
    "staleness/OnFailure: a worker with late layers is killed at any point and comes back, and the "
    "bits are those of a sequential loop",
    "[staleness]") {
  Sweep sweep(2);
  int waited = 0;
  int all = 0;
  for (int const worker : {0, 1, 2})
    for (int const threads : {1, 2})
      for (int const shards : {1, 3}) {
        Failure failure{.worker = worker, .cuts = {}, .threads = threads};
        if (threads == 2) failure.cuts = {2};
        if (shards == 3) failure.shares = {0.5, 0.25, 0.25};
        auto const server = [&] {
          return std::make_unique<ParameterServer>(
              sg::collective::ServerOptions{.workers = 3,
                                            .shards = shards,
                                            .weights = failure.shares,
                                            .on_failure = OnFailure::go_on});
        };
        sweep_budgets([&](auto const& model, Rules const& rules) {
          if (!sweep.takes()) return;
          int const killed = compare_failures(server, model, rules, adam, failure, 20, waited);
          CHECK(killed > 12);  // a push, a request and an answer of each layer
          failure.back += 3;
          all += killed;
        });
      }
  CHECK((sanitized || waited > all / 10));
  CHECK(waited < all);
}

namespace {

Osp<osp::SplitLayer> const half{.budget = {0.6}};

[[nodiscard]] auto made(Through const& through, int n, double deadline_s) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{{2}}, half, through.worker(n), Loss{}, sgd, sg::host::Threads{1},
      sg::Options{.deadline_s = deadline_s});
}

/// Workers of a server that goes on without one that fails, and the oracle.
class Team {
 public:
  /// @param last_deadline_s  of the last worker; the others wait for as long as it takes
  explicit Team(int count, double last_deadline_s = 60)
      : server_({.workers = count, .on_failure = OnFailure::go_on}),
        oracle{sgd, local_split_rules(), static_cast<std::size_t>(count)} {
    for (int n = 0; n < count; ++n) {
      links.push_back(std::make_shared<Watched>(
          server_.worker(n).link(), [this, n] { return server_.in_process()->pushes(n, 0); }));
      trainers.push_back(made(Through{links.back()}, n, n == count - 1 ? last_deadline_s : 60));
    }
  }
  /// A step of some workers. Those that fail do so by what watches their links.
  void take(std::vector<std::size_t> const& who) {
    auto const batch = batches();
    std::vector<sg::Step> ran;
    for (std::size_t const n : who) ran.push_back(trainers[n].step(batch[n]));
    try {
      static_cast<void>(sg::run_together(std::move(ran)));
    } catch (std::exception const& error) {
      REQUIRE(error.what() == std::string("killed"));
    }
    ended(who, batch);
  }
  /// These workers have taken a step.
  void ended(std::vector<std::size_t> const& who, std::vector<Batch> const& batch) {
    std::vector<Done> done(links.size(), Done::nothing());
    for (std::size_t const n : who) done[n] = links[n]->happened() ? links[n]->done() : Done();
    for (auto const& each : links) each->watch(-1, nullptr);
    oracle.train(batch, done);
  }
  [[nodiscard]] std::vector<Batch> batches() const {
    std::vector<Batch> all;
    for (std::size_t n = 0; n < links.size(); ++n)
      all.push_back(data(3, static_cast<double>(n) + 10.0 * oracle.step));
    return all;
  }
  /// A worker begins on a thread of its own, which the server knows on return.
  [[nodiscard]] std::thread begins(std::size_t n, Batch const& batch, std::string& error) {
    links[n]->asks.store(false);
    std::thread thread([this, n, &batch, &error] {
      try {
        static_cast<void>(run(trainers[n].step(batch)));
      } catch (std::exception const& why) {
        error = why.what();
      }
    });
    static_cast<void>(sg::detail::wait_until([&] { return links[n]->asks.load(); }, 20));
    return thread;
  }
  void kill(std::size_t n, int at) { links[n]->watch(at, die); }
  void compare(std::vector<std::size_t> const& who) {
    for (std::size_t const n : who) REQUIRE(weights(trainers[n]) == oracle.p);
    oracle.theta.assign(oracle.workers, oracle.p);  // looking has brought what was late
  }

 private:
  ParameterServer server_;

 public:
  Oracle<sg::optimizer::Sgd> oracle;
  std::vector<std::shared_ptr<Watched>> links;
  std::vector<decltype(made(std::declval<Through>(), 0, 0))> trainers;
};

std::vector<int> const calls{0, 2, 4, 5, 7, 8, 10, 12, 13, 15, 16};  // of the 17 of a step

}  // namespace

TEST_CASE(
    "staleness/OnFailure: two of three workers with late layers fail in one step, and come back",
    "[staleness]") {
  for (int const first : calls)
    for (int const second : calls) {
      CAPTURE(first, second);
      Team team(3);
      team.take({0, 1, 2});
      team.take({0, 1, 2});
      team.kill(0, first);
      team.kill(2, second);
      team.take({0, 1, 2});
      team.take({1});
      team.compare({1});
      auto const batch = team.batches();
      std::vector<std::string> errors(2);
      auto a = team.begins(0, batch[0], errors[0]);
      auto c = team.begins(2, batch[2], errors[1]);
      static_cast<void>(run(team.trainers[1].step(batch[1])));
      a.join();
      c.join();
      REQUIRE(errors == std::vector<std::string>(2));
      team.ended({0, 1, 2}, batch);
      team.take({0, 1, 2});
      team.compare({0, 1, 2});
    }
}

TEST_CASE("staleness/OnFailure: workers with late layers that have all failed begin anew",
          "[staleness]") {
  for (int const count : {1, 2})
    for (int const at : calls) {
      CAPTURE(count, at);
      Team team(count);
      std::vector<std::size_t> all{0};
      if (count == 2) all.push_back(1);
      team.take(all);
      team.take(all);
      if (count == 2) {
        team.kill(1, at / 2);
        team.take(all);
      }
      team.kill(0, at);
      team.take({0});
      // What it had pushed is in the weights, and nothing is late.
      team.oracle.begin_anew();
      team.take({0});
      team.take({0});
      team.take({0});
      team.compare({0});
    }
}

namespace {

/// The steps and losses that a budget policy is told of.
struct Told {
  std::vector<std::int64_t>* steps = nullptr;
  friend bool operator==(Told const&, Told const&) = default;
  double bytes(auto const& step) const {
    steps->push_back(step.step);
    return static_cast<double>(step.model_bytes) / 2;
  }
};

}  // namespace

TEST_CASE("staleness/OnFailure: a budget of late layers outlasts a failed step", "[staleness]") {
  for (auto const failure : {OnFailure::fail_fast, OnFailure::go_on}) {
    CAPTURE(failure == OnFailure::go_on);
    std::vector<std::int64_t> steps;
    ParameterServer const server({.workers = 1, .on_failure = failure});
    auto train =
        workers_oracle::stepping(Osp<osp::FirstFit, Told>{.budget = {&steps}}, server, 0, sgd);
    auto batch = data(2);
    for (int step = 0; step < 3; ++step) static_cast<void>(sg::run(train.step(batch)));
    auto broken = batch;
    broken.targets[1][0] = std::numeric_limits<float>::infinity();
    REQUIRE_THROWS(sg::run(train.step(broken)));
    for (int step = 0; step < 2; ++step) static_cast<void>(sg::run(train.step(batch)));
    CHECK(steps == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  }
}

TEST_CASE("staleness/OnFailure: a worker with late layers waits to come back for as long as it may",
          "[staleness]") {
  Team team(2, 0.3);
  team.take({0, 1});
  team.kill(1, 5);
  team.take({0, 1});
  auto batch = team.batches();
  std::string error;
  team.links[0]->watch(9, [&] {  // some layers of the step are added
    team.begins(1, batch[1], error).join();
  });
  static_cast<void>(run(team.trainers[0].step(batch[0])));
  CHECK_THAT(error, Catch::Matchers::Contains(
                        "the server has not let the worker begin for 0.3 s; the worker waits "
                        "for worker 0, which has made "));
  team.links[0]->watch(-1, nullptr);
  team.ended({0}, batch);
  team.take({0});
  team.compare({0});

  // Another one fails while it waits: it begins anew.
  batch = team.batches();
  std::thread back;
  error.clear();
  team.links[0]->watch(9, [&] {
    back = team.begins(1, batch[1], error);
    die();
  });
  CHECK_THROWS_WITH(run(team.trainers[0].step(batch[0])), "killed");
  back.join();
  CHECK(error.empty());
  std::vector<Done> done(2, Done::nothing());
  done[0] = team.links[0]->done();
  team.oracle.train(batch, done);
  team.oracle.begin_anew();
  team.links[0]->watch(-1, nullptr);
  team.ended({1}, batch);
  team.take({1});
  team.compare({1});
}

TEST_CASE(
    "staleness/OnFailure: a worker in virtual time comes back where nothing late is under way",
    "[staleness]") {
  for (bool const instant : {true, false}) {
    sg::sim::Clock const clock = instant ? sg::sim::Clock{} : sg::sim::Clock({.latency_s = 1});
    ParameterServer const server({.workers = 2, .on_failure = OnFailure::go_on});
    auto const make = [&](int n) {
      sg::sim::VirtualClock device;
      device.clock = clock;
      std::vector<Layer> stack;
      for (int l = 0; l < layers; ++l) stack.emplace_back(l);
      if (n == 1) stack[1].fail_at = 2;
      return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
          sg::partition::Cuts{{2}}, half, server.worker(n), Loss{}, sgd, device);
    };
    auto a = make(0);
    auto b = make(1);
    Oracle<sg::optimizer::Sgd> oracle{sgd, local_split_rules(), 2};
    auto const train = [&](std::vector<Done> const& done, int microbatches) {
      std::vector<Batch> const batches{data(2, 10.0 * oracle.step),
                                       data(microbatches, 10.0 * oracle.step + 1)};
      struct Train {
        Oracle<sg::optimizer::Sgd>& oracle;
        std::vector<Batch> const& batches;
        std::vector<Done> const& done;
        ~Train() { oracle.train(batches, done); }
      } const after{oracle, batches, done};
      static_cast<void>(sg::run_together(a.step(batches[0]), b.step(batches[1])));
    };
    std::vector<Done> const both(2);
    train(both, 2);
    train(both, 2);
    REQUIRE_THROWS_WITH(train({Done(), Done::nothing()}, 3), "out of ink");
    if (!instant)
      REQUIRE_THROWS_WITH(
          train({Done(), Done::nothing()}, 2),
          Catch::Matchers::Contains(
              "worker 1 comes back while others are in a step or their late layers under way, "
              "which it cannot wait for in virtual time"));
    CHECK(weights(a) == oracle.p);
    oracle.theta.assign(2, oracle.p);
    train(both, 2);
    train(both, 2);
    CHECK(weights(a) == oracle.p);
    CHECK(weights(b) == oracle.p);
  }
}

TEST_CASE("staleness/OnFailure: a durable server does not go on without a worker with late layers",
          "[staleness]") {
  TemporaryFolder const folder;
  ParameterServer const server(
      {.workers = 2, .on_failure = OnFailure::go_on, .durable = folder.path()});
  CHECK_THROWS_WITH(
      workers_oracle::stepping(half, server, 0, sgd),
      Catch::Matchers::Contains("cannot go on without a worker whose layers may be late; use "
                                "OnFailure::fail_fast, or no ServerOptions::durable"));
}

}  // namespace overlapped_failures_test
