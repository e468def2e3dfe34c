// SPDX-License-Identifier: Apache-2.0
#include <stagger/parameters/store_history.hpp>

#include "catch.hpp"

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "replay.hpp"

using namespace workers_oracle;

namespace {

/// On threads of this process.
template <class Model>
void compare_steps(Model const& model, int workers, std::vector<int> const& cuts, int threads) {
  sg::collective::ParameterServer const server({.workers = workers, .shards = 2, .log = true});
  std::vector<int> own(static_cast<std::size_t>(workers));
  std::iota(own.begin(), own.end(), 0);
  replay_drifting(model, workers, own, server, [&] { return logs_of(server); }, cuts, threads);
}

}  // namespace

TEST_CASE("train/ParameterServer: carried out again, its log gives the bits of asynchronous steps",
          "[train]") {
  for (int const workers : {1, 2, 3, 4})
    for (auto const& cuts : {std::vector<int>{}, {2}, {1, 2, 3}})
      for (int const threads : {1, 2, 4}) {
        for (auto const pushes :
             {sg::staleness::Pushes::gradients, sg::staleness::Pushes::changes}) {
          compare_steps(sg::staleness::Asynchronous{pushes}, workers, cuts, threads);
          for (int const bound : {0, 1, 3})
            compare_steps(sg::staleness::StaleSynchronous{bound, pushes}, workers, cuts, threads);
        }
      }
}

TEST_CASE("train/ParameterServer: carried out again, its log gives the bits of waves on arrival",
          "[train]") {
  for (int const workers : {1, 2, 3, 4})
    for (int const Nm : {1, 2, 4})
      for (int const D : {0, 1, 3})
        for (int const threads : {1, 2, 4}) {
          CAPTURE(workers, Nm, D, threads);
          struct Arriving : Waves {
            [[nodiscard]] sg::staleness::WaveSynchronous model() const {
              return {.in_flight = in_flight, .distance = distance};
            }
          };
          Arriving const waves{{workers, Nm, D}};
          auto const N = static_cast<std::size_t>(workers);
          sg::collective::ParameterServer const server(
              {.workers = workers, .shards = 2, .log = true});
          SlowSgd const slow{sgd};
          std::vector<std::vector<int>> const cuts{{2}, {1}, {1, 2, 3}, {}};
          std::vector<decltype(make(waves, server, 0, {}, 1, slow))> trainers;
          std::vector<std::vector<Batch>> batches(N);
          for (std::size_t n = 0; n < N; ++n) {
            trainers.push_back(make(waves, server, static_cast<int>(n), cuts[n], threads, slow));
            for (int stream = 0; stream < 2; ++stream)
              batches[n].push_back(
                  data(stream == 0 ? 11 : 3, static_cast<double>(n) + 10.0 * stream));
          }
          for (std::size_t stream = 0; stream < 2; ++stream) {
            std::vector<sg::Step> steps;
            for (std::size_t n = 0; n < N; ++n)
              steps.push_back(trainers[n].stream(batches[n][stream]));
            sg::run_together(std::move(steps));
          }
          Replay replay(logs_of(server), N);
          auto const last = replay_streams(replay, sg::optimizer::Sgd{sgd},
                                           static_cast<std::size_t>(Nm), batches);
          for (auto& trainer : trainers) REQUIRE(weights(trainer) == last);
        }
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
