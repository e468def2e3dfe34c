// SPDX-License-Identifier: Apache-2.0
// Workers with groups that share layers, and a server on a port.
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <cstddef>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "engine/split_model.hpp"

namespace groups_test {

using namespace split_model;

TEST_CASE(
    "asio/AsioParameterServer: groups that share layers have the bits of a server in one process",
    "[asio]") {
  auto const check = [](auto const& model, Case const& of) {
    sg::collective::ParameterServer const server({.workers = 2});
    sg::host::AsioParameterServer const listening(server, {}, optimizer());
    sg::host::RemoteParameterServer const far({.port = listening.port()});
    sg::collective::ParameterServer const near({.workers = 2});
    auto const make = [&](auto const& worker, int number) {
      Case own = of;  // the workers may have different numbers of groups
      if (own.update == sg::partition::Update::accumulate) own.groups = 1 + number % 2;
      return pipeline<double>(sg::host::Threads{1 + number}, own, model, worker);
    };
    auto a = make(far.worker(0), 0);
    auto b = make(far.worker(1), 1);
    auto c = make(near.worker(0), 0);
    auto d = make(near.worker(1), 1);
    for (int step = 0; step < 4; ++step) {
      auto const of_a = batch<double>(2 * step, of.microbatches, 17);
      auto const of_b = batch<double>(2 * step + 1, of.microbatches, 17);
      auto const there = sg::run_together(a.step(of_a), b.step(of_b));
      auto const here = sg::run_together(c.step(of_a), d.step(of_b));
      for (std::size_t n = 0; n < 2; ++n) CHECK(there[n].loss == here[n].loss);
      REQUIRE(bits(a) == bits(c));
      REQUIRE(bits(b) == bits(d));
    }
    REQUIRE_THROWS_WITH(
        [&] {
          sg::collective::ParameterServer const first({.workers = 2});
          sg::host::AsioParameterServer const port(first, {}, optimizer());
          sg::host::RemoteParameterServer const others({.port = port.port()});
          auto const one = make(others.worker(0), 0);
          Case other = of;
          other.members *= 2;
          return pipeline<double>(sg::host::Threads{1}, other, model, others.worker(1));
        }(),
        Catch::Matchers::Contains("of worker 1 share layers as 'group 4, "));
  };
  Case of{.members = 2, .microbatches = 2};
  check(sg::staleness::Synchronous{}, of);
  check(sg::staleness::LocalSgd{.period = 2}, of);
  of.update = sg::partition::Update::each_pass;
  check(sg::staleness::LocalSgd{.period = 1}, of);
}

}  // namespace groups_test
