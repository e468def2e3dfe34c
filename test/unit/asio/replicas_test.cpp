// SPDX-License-Identifier: Apache-2.0
// Workers whose stages several ranks run, and a server on a port.
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/small_model.hpp"

namespace replicas_test {

namespace {

namespace sg = stagger;
using namespace small_model;

constexpr sg::optimizer::Sgd sgd{.rate = 0.1, .momentum = 0.5};

Batch batch(std::uint64_t seed) {
  Batch result;
  for (std::uint64_t m = 0; m < 4; ++m) {
    Tokens x({4});
    Tokens t({4});
    for (std::size_t r = 0; r < x.size(); ++r) {
      x[r] = static_cast<std::int32_t>(sg::random_bits(6, {seed, m, r}) % classes);
      t[r] = static_cast<std::int32_t>(sg::random_bits(7, {seed, m, r}) % width);
    }
    result.inputs.push_back(std::move(x));
    result.targets.push_back(std::move(t));
  }
  return result;
}

template <class Trainer> std::vector<std::byte> values(Trainer& train) {
  std::vector<std::byte> all;
  for (auto const& state : train.parameters())
    all.insert(all.end(), state.value.begin(), state.value.end());
  return all;
}

/// Steps of two workers with the server here, and with one on a port, which may exchange memory with
/// layers.
template <class Model> void compare(Model const& model, int workers, sg::Options const& options) {
  sg::collective::ParameterServer const near({.workers = workers});
  sg::collective::ParameterServer const server({.workers = workers});
  sg::host::AsioParameterServer const listening(server, {}, sgd);
  sg::host::RemoteParameterServer const far({.port = listening.port()});
  auto const make = [&](auto const& from, int number) {
    return sg::Pipeline{sg::Sequential{Embedding{}, Dense{}, Curve{}, Dense{5}}}.with(
        sg::partition::Cuts{{2}}, model, from.worker(number), Loss{}, sgd, sg::host::Threads{2},
        options);
  };
  using Trainer = decltype(make(near, 0));
  std::vector<Trainer> here, there;
  for (int n = 0; n < workers; ++n) {
    here.push_back(make(near, n));
    there.push_back(make(far, n));
  }
  for (std::uint64_t step = 0; step < 4; ++step) {
    std::vector<Batch> batches;
    for (std::size_t n = 0; n < here.size(); ++n) batches.push_back(batch(10 * step + n));
    for (auto* const trainers : {&here, &there}) {
      std::vector<sg::Step> steps;
      for (std::size_t n = 0; n < here.size(); ++n)
        steps.push_back((*trainers)[n].step(batches[n]));
      static_cast<void>(sg::run_together(std::move(steps)));
    }
    for (std::size_t n = 0; n < here.size(); ++n) REQUIRE(values(there[n]) == values(here[n]));
  }
}

}  // namespace

TEST_CASE("asio/AsioParameterServer: stages of one or several ranks have the bits of a server here",
          "[asio]") {
  using sg::staleness::Asynchronous;
  using sg::staleness::Pushes;
  for (int const replicas : {1, 2}) {
    CAPTURE(replicas);
    sg::Options options;
    if (replicas != 1) options.replicas = {replicas, replicas};
    compare(sg::staleness::Synchronous{}, 2, options);
    for (Pushes const pushes : {Pushes::gradients, Pushes::changes})
      compare(Asynchronous{pushes}, 1, options);
  }
}

}  // namespace replicas_test
