// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/parameter_server.hpp>

#include "catch.hpp"

#include <cstdint>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>

#include "averaged_changes.hpp"

namespace averaged_changes_test {

using namespace averaged_changes;

namespace {

void serve(std::vector<double> const& given, auto body) {
  sg::collective::ParameterServer const server(
      {.workers = workers, .shards = 2, .weights = given, .average_changes = true});
  body([&](int n) { return server.worker(n); });
}

}  // namespace

TEST_CASE("train/ParameterServer: averaged changes have the bits of a sequential loop", "[train]") {
  SECTION("on threads") {
    compare(
        {0, 1, 2}, [](auto const& given, auto body) { serve(given, body); },
        [](int n) { return sg::host::Threads{1 + n}; });
  }
  SECTION("in virtual time") {
    for (sg::sim::Links const link :
         {sg::sim::Links{}, sg::sim::Links{.rate = 80, .latency_s = 3}}) {
      std::vector<sg::sim::Clock> clocks;
      compare(
          {0, 1, 2},
          [&](auto const& given, auto body) {
            clocks.emplace_back(link);
            serve(given, body);
          },
          [&](int n) {
            sg::sim::VirtualClock device;
            device.costs = sg::schedule::Costs::uniform(1 + n, 2, 0);
            device.clock = clocks.back();
            return device;
          });
    }
  }
}

TEST_CASE("train/ParameterServer: to average changes is to sum up changes of a smaller rate",
          "[train]") {
  // Of powers of 2, to the bit; also where pushes are added on arrival.
  auto const ended = [](bool averages, double rate) {
    sg::collective::ParameterServer const server({.workers = 2, .average_changes = averages});
    sg::optimizer::Sgd const own{.rate = rate, .momentum = 0.5};
    sg::staleness::Asynchronous const model{.pushes = sg::staleness::Pushes::changes};
    std::vector<Layer> stack;
    for (int l = 0; l < layers; ++l) stack.emplace_back(l);
    auto const of = [&](int n) {
      return sg::Pipeline{sg::Sequential{std::vector<Layer>(stack)}}.with(
          model, server.worker(n), Loss{}, own, sg::host::Threads{1});
    };
    auto a = of(0);
    auto b = of(1);
    auto const batch = data(2);
    for (int step = 0; step < 3; ++step) {
      static_cast<void>(run(a.step(batch)));
      static_cast<void>(run(b.step(batch)));
    }
    return weights(b);
  };
  CHECK(ended(true, 0.25) == ended(false, 0.125));
  CHECK(ended(true, 0.25) != ended(false, 0.25));
}

}  // namespace averaged_changes_test
