// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a pipeline of the small model is held against: training by plain typed loops.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "small_model.hpp"

namespace small_model {

/// In which order a layer's gradients are added, [layers][owners][microbatches]: each owner adds
/// its own, then the owners' sums are added. Empty: one owner, rising.
struct Orders {
  using Order = std::vector<std::vector<int>>;
  std::vector<Order> gradient;  ///< of B or I: layers whose backward is one function add then
  std::vector<Order> weight;    ///< of B or W: the others
};

/// The orders in a table, for stages that begin at `first_layer`.
Orders orders_of(Table const& table, std::vector<int> const& first_layer);

/// Parameters, loss and norm after each step of a run.
struct Course {
  std::vector<std::vector<std::byte>> bits;
  std::vector<double> loss;
  std::vector<double> norm;
};

inline constexpr std::uint64_t run_seed = 42;
inline constexpr double clip = 0.4;  // some steps exceed it, some do not

inline sg::optimizer::AdamW optimizer() { return {.rate = 0.05, .weight_decay = 0.1}; }

/// The course of the whole model by typed loops.
Course expected_course(std::vector<Batch> const& batches, bool clips, Orders const& orders = {});

/// Runs a pipeline over the batches. @return the first step after which it differs from the course,
/// or -1
template <class Trainer>
int first_difference(Trainer& train, std::vector<Batch> const& batches, Course const& course) {
  for (std::size_t s = 0; s < batches.size(); ++s) {
    auto const metrics = sg::run(train.step(batches[s]));
    if (bits(train) != course.bits[s] || metrics.loss != course.loss[s] ||
        metrics.gradient_norm != course.norm[s])
      return static_cast<int>(s);
  }
  return -1;
}

/// First layers of `stages` stages of about equal length, as cuts.
inline std::vector<int> even_cuts(int stages) { return sg::partition::Even{stages}.cuts(layers); }

/// The first layer of each stage, from cuts.
inline std::vector<int> first_layers(std::vector<int> cuts) {
  cuts.insert(cuts.begin(), 0);
  return cuts;
}

/// The whole model on a device, cut, with a schedule.
template <class Device>
auto pipeline(Device device, std::vector<int> cuts, Made schedule, sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{model()}.with(sg::partition::Cuts{std::move(cuts)}, std::move(schedule),
                                    Loss{}, optimizer(), std::move(device), options);
}

/// A trainer of it, on the host.
using Trainer = sg::Trainer<Tokens, Matrix, sg::optimizer::AdamW, Loss>;

Trainer pipeline(sg::host::Threads device, std::vector<int> cuts, Made schedule,
                 sg::Options options);
Trainer pipeline(sg::sim::VirtualClock device, std::vector<int> cuts, Made schedule,
                 sg::Options options);
int first_difference(Trainer& train, std::vector<Batch> const& batches, Course const& course);

}  // namespace small_model
