// SPDX-License-Identifier: Apache-2.0
#include <stagger/parameters/detail/store_history.hpp>

#include "catch.hpp"

#include <cstddef>
#include <vector>

#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "replay.hpp"

namespace replay_test {

using namespace workers_oracle;

TEST_CASE("train/ParameterServer: carried out again, its log gives the bits of asynchronous steps",
          "[train]") {
  Sweep sweep(1);
  auto const replay = [&](auto const& model, int workers, int rotation, int threads) {
    if (!sweep.takes()) return;
    CAPTURE(rotation, threads);
    sg::collective::ParameterServer const server({.workers = workers, .shards = 2, .log = true});
    replay_drifting(
        model.pushes, workers, all_of(workers), [&] { return logs_of(server); },
        [&](int n) { return stepping(model, server, n, adam, cuts_of(n, rotation), threads); });
  };
  using sg::staleness::Pushes;
  sweep_steps([&](int workers, int rotation, int threads) {
    for (auto const pushes : {Pushes::gradients, Pushes::changes}) {
      replay(sg::staleness::Asynchronous{pushes}, workers, rotation, threads);
      for (int const bound : {0, 1, 3})
        replay(sg::staleness::StaleSynchronous{bound, pushes}, workers, rotation, threads);
    }
    replay(sg::staleness::RoundRobinSynchronous{}, workers, rotation, threads);
  });
}

TEST_CASE("train/ParameterServer: carried out again, its log gives the bits of waves on arrival",
          "[train]") {
  sweep_waves(Sweep(15), [](Waves const& waves, int rotation, int threads, int minibatches,
                            auto const& optimizer) {
    sg::collective::ParameterServer const server(
        {.workers = waves.workers, .shards = 2, .log = true});
    replay_waves(
        waves, all_of(waves.workers), minibatches, optimizer, [&] { return logs_of(server); },
        all_here,
        [&](int n, auto& seen) {
          return make_noting(waves, server.worker(n), cuts_of(n, rotation),
                             sg::host::Threads{threads}, optimizer, seen);
        });
  });
}

TEST_CASE("train/ParameterServer: counts what the weights of each push lacked", "[train]") {
  using Counts = std::vector<std::uint64_t>;
  auto const first = [](Counts const& counts, std::size_t size) {
    Counts few(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(size));
    std::uint64_t rest = 0;
    for (std::size_t k = size; k < counts.size(); ++k) rest += counts[k];
    CHECK(rest == 0);
    return few;
  };
  auto const train = [](auto const& model, sg::collective::ParameterServer const& server,
                        std::vector<std::size_t> const& order) {
    auto a = stepping(model, server, 0, sgd);
    auto b = stepping(model, server, 1, sgd);
    auto const batch = data(2);
    static_cast<void>(run(a.step(batch)));  // so that both have begun
    static_cast<void>(run(b.step(batch)));
    for (std::size_t const n : order) static_cast<void>(run((n == 0 ? a : b).step(batch)));
  };
  SECTION("asynchronous") {
    sg::collective::ParameterServer const server({.workers = 2});
    // b begins behind a's first push. Then a lacks the pushes that b makes between two of its own.
    train(sg::staleness::Asynchronous{}, server, {0, 1, 1, 1, 0, 0, 1});
    CHECK(first(server.missed(0), 4) == Counts{2, 1, 0, 1});
    CHECK(first(server.missed(1), 4) == Counts{3, 1, 1, 0});
    REQUIRE_THROWS_WITH(server.log(0), Catch::Matchers::Contains("remembers nothing"));
    REQUIRE_THROWS_WITH(server.missed(0, 7), Catch::Matchers::Contains("has 4 layers"));
    REQUIRE_THROWS_WITH(server.missed(2), Catch::Matchers::Contains("no worker 2"));
  }
  SECTION("in step and in turn") {
    for (bool const in_turn : {false, true}) {
      sg::collective::ParameterServer const server({.workers = 2});
      auto const steps = [&](auto model) {
        auto a = stepping(model, server, 0, sgd);
        auto b = stepping(model, server, 1, sgd);
        auto const batch = data(2);
        for (int step = 0; step < 5; ++step) sg::run_together(a.step(batch), b.step(batch));
      };
      in_turn ? steps(sg::staleness::RoundRobinSynchronous{}) : steps(sg::staleness::Synchronous{});
      CHECK(first(server.missed(0), 2) == (in_turn ? Counts{1, 4} : Counts{5, 0}));
      CHECK(first(server.missed(1), 2) == (in_turn ? Counts{0, 5} : Counts{5, 0}));
    }
  }
}

}  // namespace replay_test
