// SPDX-License-Identifier: Apache-2.0
#include <stagger/staleness/wave_synchronous.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/sim/virtual_clock.hpp>

#include "replay.hpp"

namespace arriving_waves_test {

using namespace workers_oracle;
using sg::schedule::Costs;

namespace {

sg::sim::VirtualClock on(sg::sim::Clock const& clock, Costs costs, double jitter = 0,
                         std::uint64_t seed = 0) {
  sg::sim::VirtualClock device;
  device.costs = std::move(costs);
  device.jitter = jitter;
  device.seed = seed;
  device.clock = clock;
  return device;
}

constexpr double layer_bytes = sizeof(float) * (width * width + width);

/// Two equal workers of two stages, a stage for 3 s a minibatch, 20 waves of 2.
struct Equal {
  std::vector<std::uint64_t> lacked;  // of the first worker
  std::uint64_t pulls[2] = {};        // likewise, of each layer of a stage
  double seconds = 0;
  Equal(sg::sim::Links const& links, int distance) {
    sg::sim::Clock const clock(links);
    sg::collective::ParameterServer const server({.workers = 2});
    Waves const waves{2, 2, distance};
    std::vector<std::vector<Seen>> seen(2, std::vector<Seen>(layers));
    auto const device = on(clock, Costs::uniform(1, 2, 0));
    auto a = make_noting(waves, server.worker(0), {2}, device, sgd, seen[0]);
    auto b = make_noting(waves, server.worker(1), {2}, device, sgd, seen[1]);
    auto const batch = data(40);
    static_cast<void>(sg::run_together(a.stream(batch), b.stream(batch)));
    auto const counts = a.staleness();
    lacked.assign(counts.begin(), counts.end());
    for (int stage = 0; stage < 2; ++stage) {
      auto const counted = a.traffic().of(stage, sg::TrafficKind::pulls);
      pulls[stage] = counted.messages / 2;
      CHECK(counted.bytes == 2 * pulls[stage] * static_cast<std::uint64_t>(layer_bytes));
    }
    seconds = clock.now_s();
  }
  [[nodiscard]] std::size_t most_lacked() const {
    std::size_t most = 0;
    for (std::size_t k = 0; k < lacked.size(); ++k)
      if (lacked[k] != 0) most = k;
    return most;
  }
};

}  // namespace

TEST_CASE(
    "train/WaveSynchronous: on arrival, equal workers see each other's waves however far "
    "apart they may be",
    "[train]") {
  for (int const distance : {0, 1, 2, 8, 40})
    for (double const latency_s : {0.0, 0.5, 2.0}) {
      CAPTURE(distance, latency_s);
      Equal const run({.latency_s = latency_s}, distance);
      CHECK(run.most_lacked() <= 2);
      // What is there at first, the newest weights behind each wave but the last, and all in the end.
      // The first stage begins the last wave when it has pushed the last but one, before an answer.
      CHECK(run.pulls[1] == 1 + 19 + 1);
      CHECK(run.pulls[0] == (distance == 0 || latency_s == 0 ? 1 + 19 + 1 : 1 + 18 + 1));
    }
}

TEST_CASE("train/WaveSynchronous: on arrival, nobody waits for weights that are newer than needed",
          "[train]") {
  // A wave takes 6 s; weights are under way for longer, and so many waves are pushed meanwhile.
  for (auto const& [latency_s, waves] : {std::pair{4.0, 2}, {7.0, 3}, {13.0, 5}}) {
    CAPTURE(latency_s, waves);
    Equal const apart({.latency_s = latency_s}, 40);
    CHECK(apart.most_lacked() <= static_cast<std::size_t>(2 * waves));
    CHECK(apart.seconds == Approx(41 * 3 + 2 * latency_s));  // to the last push, and the answer
    Equal const near({.latency_s = latency_s}, 0);
    CHECK(near.seconds > apart.seconds + 19);
  }
}

TEST_CASE("train/WaveSynchronous: on arrival, a link that is always busy brings answers too",
          "[train]") {
  // Both workers' pushes take a little less than a wave, and so do their answers.
  Equal const run({.rate = 8 * layer_bytes / 5.5, .latency_s = 1}, 40);
  CHECK(run.most_lacked() <= 6);
  CHECK(run.pulls[0] >= 1 + 6 + 1);
}

TEST_CASE("train/WaveSynchronous: on arrival, minibatches see what the server's log says",
          "[train]") {
  std::vector<sg::sim::Links> const links{
      {},
      {.rate = 100, .latency_s = 0.5},
      {.rate = 60, .loss = 0.5, .sharing = sg::sim::Sharing::fifo, .duplex = sg::sim::Duplex::half},
      {.latency_s = 7, .sharing = sg::sim::Sharing::one_at_a_time}};
  for (auto const& link : links)
    for (double const jitter : {0.0, 0.5})
      for (int const workers : {1, 2, 3})
        for (int const in_flight : {1, 3})
          for (int const distance : {0, 1, 2, 8}) {
            CAPTURE(link.rate, link.latency_s, jitter);
            sg::sim::Clock const clock(link);
            sg::collective::ParameterServer const server({.workers = workers, .log = true});
            replay_waves(
                {workers, in_flight, distance}, all_of(workers), 20, sgd,
                [&] { return logs_of(server); }, all_here,
                [&](int n, auto& seen) {
                  return make_noting({workers, in_flight, distance}, server.worker(n), cuts_of(n),
                                     on(clock, Costs::uniform(1 + n, 2, 0.5), jitter,
                                        static_cast<std::uint64_t>(n)),
                                     sgd, seen);
                });
          }
}

}  // namespace arriving_waves_test
