// SPDX-License-Identifier: Apache-2.0
// Workers with groups that share layers, each in one process, and a server in all processes. Each
// assertion holds in every process.
#include <stagger/mpi/parameter_server.hpp>

#include "catch.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "engine/split_model.hpp"
#include "world.hpp"

namespace worker_groups_test {

using namespace split_model;

TEST_CASE("mpi/ParameterServer: groups that share layers have the bits of a server in one process",
          "[mpi]") {
  auto const check = [](auto const& model, Case const& of) {
    int const workers = processes() + 1;
    sg::mpi::ParameterServer const server({.workers = workers}, optimizer());
    sg::collective::ParameterServer const near({.workers = workers});
    auto const make = [&](auto const& worker, int number) {
      Case own = of;  // the workers may have different numbers of groups
      if (own.update == sg::partition::Update::accumulate) own.groups = 1 + number % 2;
      return pipeline<double>(sg::host::Threads{1}, own, model, worker);
    };
    {
      std::vector<decltype(make(near.worker(0), 0))> there;
      std::vector<decltype(make(near.worker(0), 0))> here;
      std::vector<int> numbers;
      for (int n = process(); n < workers; n += processes()) numbers.push_back(n);
      for (int const n : numbers) there.push_back(make(server.worker(n), n));
      for (int n = 0; n < workers; ++n) here.push_back(make(near.worker(n), n));
      for (int step = 0; step < 4; ++step) {
        std::vector<Batch<double>> batches;
        for (int n = 0; n < workers; ++n)
          batches.push_back(batch<double>(step * workers + n, of.microbatches, 17));
        std::vector<sg::Step> over;
        std::vector<sg::Step> expected;
        for (std::size_t k = 0; k < there.size(); ++k)
          over.push_back(there[k].step(batches[static_cast<std::size_t>(numbers[k])]));
        for (std::size_t n = 0; n < here.size(); ++n) expected.push_back(here[n].step(batches[n]));
        auto const metrics = sg::run_together(std::move(over));
        auto const alike = sg::run_together(std::move(expected));
        for (std::size_t k = 0; k < there.size(); ++k) {
          auto const n = static_cast<std::size_t>(numbers[k]);
          CHECK(metrics[k].loss == alike[n].loss);
          CHECK(bits(there[k]) == bits(here[n]));
        }
      }
    }
    server.serve();
  };
  Case of{.members = 2, .microbatches = 2};
  check(sg::staleness::Synchronous{}, of);
  check(sg::staleness::LocalSgd{.period = 2}, of);
  of.update = sg::partition::Update::each_pass;
  check(sg::staleness::LocalSgd{.period = 1}, of);
}

TEST_CASE("mpi/Processes: what a worker over processes cannot do is refused in one sentence",
          "[mpi]") {
  sg::mpi::ParameterServer const server({.workers = 1}, optimizer());
  auto const says = [&](auto const& model, Case of) -> std::string {
    try {
      static_cast<void>(pipeline<double>(sg::mpi::Processes{}, of, model, server.worker(0)));
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::bad_configuration);
      return error.what();
    }
    return "";
  };
  CHECK(says(sg::staleness::Synchronous{}, {.members = 2}) ==
        "a worker over processes has no replicas; leave Options::replicas out, use host::Threads "
        "for its device, or make more workers");
}

}  // namespace worker_groups_test
