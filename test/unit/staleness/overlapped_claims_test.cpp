// SPDX-License-Identifier: Apache-2.0
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "step_times.hpp"

namespace overlapped_claims_test {

using namespace step_times;

namespace {

constexpr int workers = 8;
Sizes const equal(40, 12);

/// Of the equal layers, in whole ones.
double rounded(double share) { return std::floor(share * 40 + 1e-9) / 40; }
double best(double r, int ways) { return rounded(best_share(r, ways)); }

template <class Model> Step of(Model const& model, Link const& link) {
  return timed(model, equal, link);
}
auto late_of(double share) { return late(share, equal); }

std::vector<double> const ratios{0.1, 0.25, 0.5, 0.8, 1, 2, 3, 5};
constexpr sg::staleness::Synchronous bsp;
constexpr sg::staleness::Asynchronous asp;
constexpr sg::staleness::RoundRobinSynchronous r2sp;
constexpr auto full = sg::sim::Duplex::full;
constexpr auto half = sg::sim::Duplex::half;

}  // namespace

TEST_CASE("staleness/OverlappedSynchronous: O T1, T2: a step takes what the closed form says",
          "[staleness][papers]") {
  double best_gain = 0;
  for (int const ways : {1, 2})
    for (double const r : ratios) {
      Link const link{.r = r, .duplex = ways == 1 ? full : half};
      double const u = best(r, ways);
      CAPTURE(ways, r, u);
      double const step_s = of(late_of(u), link).all_s;
      CHECK(step_s == Approx(closed_form(r, u, ways)).epsilon(0.05));
      double const bulk_s = of(bsp, link).all_s;
      CHECK(bulk_s == Approx(computation_s * (1 + 2 * r)).epsilon(0.05));
      double const gain = bulk_s / step_s;
      best_gain = std::max(best_gain, gain);
      if (ways == 1 && r == 1) CHECK(gain == Approx(2.14).epsilon(0.05));
      if (ways == 1 && r == 0.8) CHECK(gain == Approx(1.97).epsilon(0.05));
    }
  CHECK(best_gain >= 1.5);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: O T1: what does not fit beside the computation is waited for",
    "[staleness][papers]") {
  for (int const ways : {1, 2})
    for (double const share : {0.4, 0.8}) {
      CAPTURE(ways, share);
      CHECK(of(late_of(share), {.r = 4, .duplex = ways == 1 ? full : half}).all_s ==
            Approx(closed_form(4, share, ways)).epsilon(0.05));
    }
}

TEST_CASE("staleness/OverlappedSynchronous: O T1, T2: the layers of the paper's models",
          "[staleness][papers]") {
  int gains = 0, gains_one_way = 0, first = 0;
  double best_gain = 0;
  for (Network const& network : networks()) {
    auto const step_s = [&](auto const& model, sg::sim::Duplex duplex) {
      return timed(model, network.layers, {.r = network.r, .duplex = duplex}).all_s;
    };
    auto const split = [&](int ways) {
      return late<osp::SplitLayer>(best_share(network.r, ways), network.layers);
    };
    // Where pushes and answers share the link, sizes of layers make no difference, only r does.
    double const one_way_s = step_s(split(2), half), bulk_one_way_s = step_s(bsp, half);
    CAPTURE(network.name, network.r, one_way_s, bulk_one_way_s);
    CHECK(one_way_s == Approx(closed_form(network.r, best_share(network.r, 2), 2)).epsilon(0.05));
    CHECK(bulk_one_way_s == Approx(computation_s * (1 + 2 * network.r)).epsilon(0.05));
    if (bulk_one_way_s / one_way_s >= 1.2) ++gains_one_way;
    // Where each has the link's rate, small layers are answered while large ones are pushed. That
    // shortens the steps of bulk synchronous workers above all.
    double const both_s = step_s(split(1), full), bulk_s = step_s(bsp, full);
    CAPTURE(both_s, bulk_s);
    CHECK(bulk_s <= 0.95 * computation_s * (1 + 2 * network.r));
    double const gain = bulk_s / both_s;
    CHECK(gain >= 1);
    if (gain >= 1.2) ++gains;
    best_gain = std::max(best_gain, gain);
    double const turns_s = step_s(r2sp, half);
    CHECK(turns_s ==
          Approx(computation_s * std::max(1 + 2 * network.r / 8, 2 * network.r)).epsilon(0.05));
    double const asynchronous_s = step_s(asp, full);
    CAPTURE(turns_s, asynchronous_s);
    if (network.name == "BERT-base")
      CHECK(asynchronous_s / both_s >= 0.8);  // T3
    else if (both_s < std::min({bulk_s, turns_s, asynchronous_s}))
      ++first;
  }
  CHECK(gains >= 3);
  CHECK(gains_one_way >= 3);
  CHECK(best_gain >= 1.5);
  CHECK(first >= 3);
}

TEST_CASE("staleness/OverlappedSynchronous: O T1: a layer with most of the bytes has to be split",
          "[staleness][papers]") {
  auto const all = networks();
  auto const vgg = std::find_if(all.begin(), all.end(),
                                [](Network const& each) { return each.name == "VGG-16"; });
  double const share = best_share(vgg->r, 1);
  Link const link{.r = vgg->r};
  double const bulk_s = timed(bsp, vgg->layers, link).all_s;
  CHECK(bulk_s / timed(late<osp::SplitLayer>(share, vgg->layers), vgg->layers, link).all_s >= 1.2);
  CHECK(bulk_s / timed(late<osp::FirstFit>(share, vgg->layers), vgg->layers, link).all_s < 1.2);
}

TEST_CASE("staleness/OverlappedSynchronous: O T1: against round-robin workers",
          "[staleness][papers]") {
  for (double const r : ratios) {
    CAPTURE(r);
    double const c = r * computation_s;
    double const alone_s = computation_s + 2 * c / workers;
    // Workers take turns, whether or not transfers could share the link.
    double const one_way_s = of(r2sp, {.r = r, .duplex = half}).all_s;
    CHECK(one_way_s == Approx(std::max(alone_s, 2 * c)).epsilon(0.05));
    CHECK(of(r2sp, {.r = r, .sharing = sg::sim::Sharing::one_at_a_time, .duplex = half}).all_s ==
          Approx(one_way_s).epsilon(0.05));
    double const both_ways_s = of(r2sp, {.r = r}).all_s;
    CHECK(both_ways_s == Approx(std::max(alone_s, c)).epsilon(0.05));
    double const own_s = of(late_of(best(r, 1)), {.r = r}).all_s;
    if (r >= 0.8) CHECK(one_way_s / own_s >= 1);
    // Where pushes and answers have a link each, round-robin workers are faster: the paper's gain
    // needs that they cannot use it.
    CHECK(both_ways_s <= own_s);
  }
}

TEST_CASE("staleness/OverlappedSynchronous: O T3, T7: against asynchronous workers",
          "[staleness][papers]") {
  double const r = 5;
  // Workers in lockstep share the link: nothing is gained over bulk synchronous ones.
  CHECK(of(asp, {.r = r}).all_s / of(late_of(best(r, 1)), {.r = r}).all_s >= 0.8);
  // The cited factor of 6 is that of one worker with the link for itself.
  double const alone_s = of(asp, {.r = r / workers, .workers = 1}).all_s;
  CHECK(of(bsp, {.r = r}).all_s / alone_s == Approx(4.9).epsilon(0.02));
}

TEST_CASE("staleness/OverlappedSynchronous: O T4: the share that is hidden is that which is late",
          "[staleness][papers]") {
  for (double const r : {0.5, 1.0}) {
    CAPTURE(r);
    double const u = rounded(0.6);
    double const hidden = 1 - of(late_of(u), {.r = r}).wait_s / of(bsp, {.r = r}).wait_s;
    CHECK(std::abs(hidden - u) <= 0.05);
  }
}

TEST_CASE(
    "staleness/OverlappedSynchronous: O T5, T6: the share of communication rises with workers",
    "[staleness][papers]") {
  CHECK(communication_of(1, 0.2, equal) == 0);
  double before = 0;
  for (int const n : {2, 4, 8}) {
    double const r = 0.2 * n;  // the same link
    double const share = communication_of(n, 0.2, equal);
    CHECK(share == Approx(2 * r / (1 + 2 * r)).epsilon(0.05));
    CHECK(share > before);
    before = share;
  }
  // A faster GPU, from 13.45 to 35.58 TFLOPS: 10 % becomes 22.7 %, not the published 39 %.
  double const r = 0.1 / 0.9 / 2;
  CHECK(of(bsp, {.r = r}).communication() == Approx(0.1).epsilon(0.05));
  CHECK(of(bsp, {.r = r * 35.58 / 13.45}).communication() == Approx(0.227).epsilon(0.05));
}

}  // namespace overlapped_claims_test
