// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers whose changes the server averages, wherever it is, with their oracle.

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "workers_oracle.hpp"

namespace averaged_changes {

using namespace workers_oracle;

/// The optimizer of an oracle that trains its workers one after the other, each of which multiplies
/// its changes by its share.
struct Shared : sg::optimizer::Sgd {
  std::vector<double> shares;
  std::shared_ptr<std::size_t> layers_done = std::make_shared<std::size_t>(0);
  template <class T>
  void change(sg::OptimizerView<T> const& view, double scale, std::int64_t step) const {
    Sgd::change(view, scale, step);
    auto const share = static_cast<T>(shares[(*layers_done)++ / layers % shares.size()]);
    for (std::size_t i = 0; i < view.size; ++i) view.next[i] *= share;
  }
};

constexpr int workers = 3;

/// The model's policy comes last, with the schedule if it needs one.
template <class Device, class... Policies>
auto make(sg::collective::ServerWorker const& worker, int number, Device device,
          Policies... policies) {
  std::vector<std::vector<int>> const cuts{{2}, {1}, {1, 2, 3}};
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{cuts[static_cast<std::size_t>(number)]}, std::move(policies)..., worker,
      Loss{}, sgd, std::move(device));
}

/// Two streams of waves, then steps that may be ahead, in the order of workers. Their weights lack
/// changes of the worker itself, which it has multiplied, too.
/// @param own        the workers of this process
/// @param serve      (weights, body) makes a server that averages and calls body(worker_of)
/// @param device_of  (worker)
template <class Serve, class DeviceOf>
void compare(std::vector<int> const& own, Serve serve, DeviceOf device_of) {
  for (auto const& given : {std::vector<double>{}, {0.5, 0.3, 0.2}}) {
    CAPTURE(given);
    auto const shares = given.empty() ? std::vector<double>(workers, 1.0 / workers) : given;
    for (auto const& [in_flight, distance] : {std::pair{1, 0}, {2, 1}, {3, 0}}) {
      Waves const waves{workers, in_flight, distance};
      CAPTURE(in_flight, distance);
      serve(given, [&](auto worker_of) {
        auto const of = [&](int n) {
          return make(worker_of(n), n, device_of(n),
                      sg::schedule::Fifo{.in_flight = waves.in_flight}, waves.model());
        };
        std::vector<decltype(of(0))> trainers;
        for (int const n : own) trainers.push_back(of(n));
        std::vector<OracleWorker<Shared>> oracle(workers);
        auto expected = first_weights();
        for (int stream = 0; stream < 2; ++stream) {
          for (std::size_t n = 0; n < oracle.size(); ++n)
            oracle[n].batch = data(11, static_cast<double>(n) + 10.0 * stream);
          std::vector<sg::Step> steps;
          for (std::size_t k = 0; k < own.size(); ++k)
            steps.push_back(trainers[k].stream(oracle[static_cast<std::size_t>(own[k])].batch));
          static_cast<void>(sg::run_together(std::move(steps)));
          sequential(waves, Shared{sgd, shares}, oracle, expected);
          for (auto& trainer : trainers) REQUIRE(weights(trainer) == expected);
        }
      });
    }
    for (int const bound : {0, 2}) {
      CAPTURE(bound);
      Stale const stale{workers, bound};
      serve(given, [&](auto worker_of) {
        compare_changes(stale, own, Shared{sgd, shares},
                        [&](int n) { return make(worker_of(n), n, device_of(n), stale.model()); });
      });
    }
  }
}

}  // namespace averaged_changes
