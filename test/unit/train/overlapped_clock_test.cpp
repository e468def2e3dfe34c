// SPDX-License-Identifier: Apache-2.0
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "plain_layers.hpp"

namespace sg = stagger;
using namespace plain_layers;
namespace osp = sg::staleness::overlapped;

namespace {

using Late =
    sg::staleness::OverlappedSynchronous<osp::FixedImportance, osp::FirstFit, osp::ShareLate>;
constexpr int most_workers = 8;
constexpr int layers = 40;
constexpr double layer_bytes = sizeof(float) * (width * width + width);
constexpr double computation_s = 3;

struct Run {
  double step_s = 0;  // per step of a worker, once it is under way
  double wait_s = 0;  // of those, what is no computation
};

/// @param r  time for one direction of a whole synchronisation, relative to the computation
template <class Model>
Run timed(Model const& model, double r, sg::sim::Sharing sharing, sg::sim::Duplex duplex,
          int workers = most_workers) {
  double const rate = layer_bytes * layers * workers / (r * computation_s);
  sg::sim::Clock const clock({.rate = rate, .sharing = sharing, .duplex = duplex});
  sg::collective::ParameterServer const server({.workers = workers});
  auto const make = [&](int n) {
    std::vector<Layer> stack;
    for (int l = 0; l < layers; ++l) stack.emplace_back(l);
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(1, 2, 0);
    device.clock = clock;
    return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{}}, model, server.worker(n), Loss{}, std::move(device));
  };
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < workers; ++n) trainers.push_back(make(n));
  auto const batch = data(1);
  constexpr int first = 6, last = 16;  // steps of worker 0 between which time is measured
  double from = 0, to = 0;
  std::vector<sg::Steps> all;
  for (int n = 0; n < workers; ++n)
    all.emplace_back([&, n, step = 0](sg::Metrics const*) mutable -> std::optional<sg::Step> {
      if (n == 0 && step == first) from = clock.now_s();
      if (n == 0 && step == last) to = clock.now_s();
      if (step++ == last + 4) return std::nullopt;
      return trainers[static_cast<std::size_t>(n)].step(batch);
    });
  static_cast<void>(sg::run_together(std::move(all)));
  double const step_s = (to - from) / (last - first);
  return {step_s, step_s - computation_s};
}

Late late(double share) { return {.importance = {std::vector<double>(layers)}, .budget = {share}}; }
/// Of the model, in whole layers.
double rounded(double share) { return std::floor(share * layers + 1e-9) / layers; }
/// What hides all it can.
double best_share(double r, int ways) { return rounded(std::min(0.8, 1 / (ways * r))); }

double closed_form(double r, double u, int ways) {
  double const c = r * computation_s;
  return computation_s + 2 * (1 - u) * c + std::max(0.0, ways * u * c - computation_s);
}

std::vector<double> const ratios{0.1, 0.25, 0.5, 0.8, 1, 2, 3, 5};
constexpr auto fair = sg::sim::Sharing::fair;
constexpr auto in_turn = sg::sim::Sharing::one_at_a_time;
constexpr auto full = sg::sim::Duplex::full;
constexpr auto half = sg::sim::Duplex::half;

}  // namespace

TEST_CASE("train/OverlappedSynchronous: O T1, T2: a step takes what the closed form says",
          "[train][papers]") {
  double best_gain = 0;
  int gains = 0;
  for (int const ways : {1, 2})
    for (double const r : ratios) {
      auto const duplex = ways == 1 ? full : half;
      double const u = best_share(r, ways);
      CAPTURE(ways, r, u);
      double const step_s = timed(late(u), r, fair, duplex).step_s;
      CHECK(step_s == Approx(closed_form(r, u, ways)).epsilon(0.05));
      double const bulk_s = timed(sg::staleness::Synchronous{}, r, fair, duplex).step_s;
      CHECK(bulk_s == Approx(computation_s * (1 + 2 * r)).epsilon(0.05));
      double const gain = bulk_s / step_s;
      best_gain = std::max(best_gain, gain);
      if (gain >= 1.2) ++gains;
      if (ways == 1 && r == 1) CHECK(gain == Approx(2.14).epsilon(0.05));
      if (ways == 1 && r == 0.8) CHECK(gain == Approx(1.97).epsilon(0.05));
    }
  CHECK(best_gain >= 1.5);
  CHECK(gains >= 3);
}

TEST_CASE(
    "train/OverlappedSynchronous: O T1: what does not fit beside the computation is waited for",
    "[train][papers]") {
  for (int const ways : {1, 2})
    for (double const share : {0.4, 0.8}) {
      CAPTURE(ways, share);
      CHECK(timed(late(share), 4, fair, ways == 1 ? full : half).step_s ==
            Approx(closed_form(4, share, ways)).epsilon(0.05));
    }
}

TEST_CASE("train/OverlappedSynchronous: O T1: against round-robin workers on one link",
          "[train][papers]") {
  sg::staleness::RoundRobinSynchronous const turns;
  for (double const r : {0.8, 1.0, 2.0, 5.0}) {
    CAPTURE(r);
    double const c = r * computation_s;
    double const one_way = timed(turns, r, in_turn, half).step_s;
    CHECK(one_way == Approx(std::max(computation_s + 2 * c / most_workers, 2 * c)).epsilon(0.05));
    CHECK(one_way / timed(late(best_share(r, 1)), r, fair, full).step_s >= 1);
    // Where pushes and answers have a link each, round-robin workers are faster: the paper's gain
    // needs that they cannot use it.
    double const both_ways = timed(turns, r, in_turn, full).step_s;
    CHECK(both_ways <= timed(late(best_share(r, 1)), r, fair, full).step_s);
  }
}

TEST_CASE("train/OverlappedSynchronous: O T3, T7: against asynchronous workers",
          "[train][papers]") {
  sg::staleness::Asynchronous const asynchronous;
  double const r = 5;
  // Workers in lockstep share the link: nothing is gained over bulk synchronous ones.
  double const together = timed(asynchronous, r, fair, full).step_s;
  CHECK(together / timed(late(best_share(r, 1)), r, fair, full).step_s >= 0.8);
  // The cited factor of 6 is that of one worker with the link for itself.
  double const alone = timed(asynchronous, r / most_workers, fair, full, 1).step_s;
  CHECK(timed(sg::staleness::Synchronous{}, r, fair, full).step_s / alone ==
        Approx(4.9).epsilon(0.02));
}

TEST_CASE("train/OverlappedSynchronous: O T4: the share that is hidden is that which is late",
          "[train][papers]") {
  for (double const r : {0.5, 1.0}) {
    CAPTURE(r);
    double const u = rounded(0.6);
    double const hidden = 1 - timed(late(u), r, fair, full).wait_s /
                                  timed(sg::staleness::Synchronous{}, r, fair, full).wait_s;
    CHECK(std::abs(hidden - u) <= 0.05);
  }
}

TEST_CASE("train/OverlappedSynchronous: O T5, T6: the share of communication rises with workers",
          "[train][papers]") {
  double before = 0;
  for (int const workers : {2, 4, 8}) {
    double const r = 0.2 * workers;  // the same link
    Run const run = timed(sg::staleness::Synchronous{}, r, fair, full, workers);
    double const share = run.wait_s / run.step_s;
    CHECK(share == Approx(2 * r / (1 + 2 * r)).epsilon(0.05));
    CHECK(share > before);
    before = share;
  }
  // A faster GPU, from 13.45 to 35.58 TFLOPS: 10 % becomes 22.7 %, not the published 39 %.
  double const r = 0.1 / 0.9 / 2;
  Run const slow = timed(sg::staleness::Synchronous{}, r, fair, full);
  Run const fast = timed(sg::staleness::Synchronous{}, r * 35.58 / 13.45, fair, full);
  CHECK(slow.wait_s / slow.step_s == Approx(0.1).epsilon(0.05));
  CHECK(fast.wait_s / fast.step_s == Approx(0.227).epsilon(0.05));
}
