// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A plan: which layers run on which devices, how an iteration flows through them, and the
///         predicted time and memory.

#include <cstdint>
#include <string>
#include <vector>

#include <stagger/plan/latency.hpp>

namespace stagger::plan {

/// How a stage's gradients are sent.
enum class Gradients : std::uint8_t {
  together,    ///< in one message, after the last backward
  overlapped,  ///< in groups of layers, while the last backward still runs
};

/// What keeps a stage from being faster.
enum class Limit : std::uint8_t {
  time,    ///< its own forward and backward
  memory,  ///< its warm-up is shorter than planned, because no further activation fits
  link,  ///< a transfer to a neighbour, both ways, takes longer than its forward and backward, or its
         ///< gradients longer than all its microbatches
};

/// "time", "memory" or "link".
[[nodiscard]] constexpr char const* name(Limit limit) noexcept {
  return limit == Limit::time ? "time" : limit == Limit::memory ? "memory" : "link";
}

/// The samples of the largest share, where shares are this many on average: times and memory are for
/// these.
[[nodiscard]] constexpr double whole_samples(double share) noexcept {
  auto const below = static_cast<long long>(share);
  return static_cast<double>(below + (share - static_cast<double>(below) > 1e-9 ? 1 : 0));
}

/// One stage, its replicas, and its predictions.
struct PlanStage {
  int first = 0;               ///< first layer, numbered from 0
  int last = 0;                ///< last layer, included
  std::vector<int> devices{};  ///< a replica on each; rising

  int warm_up = 1;              ///< forwards before the first backward
  StageTime time{};             ///< a microbatch on the slowest replica, and the exposed all-reduce
  double transfer_s = 0;        ///< one microbatch to the next stage; 0 for the last
  double static_bytes = 0;      ///< parameters, gradients and optimizer state, on each device
  double activation_bytes = 0;  ///< for each further microbatch in flight, on each device
  double memory_bytes = 0;      ///< peak, on each device
  double capacity_bytes = 0;    ///< of its smallest device
  Limit limit = Limit::time;

  [[nodiscard]] int replicas() const noexcept { return static_cast<int>(devices.size()); }
  /// Samples of a microbatch on each replica, on average over microbatches and replicas.
  [[nodiscard]] double share(int batch, int microbatches) const noexcept {
    return static_cast<double>(batch) / (microbatches < 1 ? 1 : microbatches) /
           (devices.empty() ? 1 : replicas());
  }
  friend bool operator==(PlanStage const& a, PlanStage const& b) {
    return a.first == b.first && a.last == b.last && a.devices == b.devices &&
           a.warm_up == b.warm_up;
  }
};

/// A plan as a value. Two are equal if every device does the same work in both.
struct Plan {
  std::string policy{};  ///< the planner that made it
  std::vector<PlanStage> stages{};
  int batch = 0;         ///< samples of an iteration
  int microbatches = 1;  ///< of an iteration
  bool recompute = false;
  Gradients gradients = Gradients::together;

  Latency estimate{};        ///< closed; its pivot counts transfers as stages
  double latency_s = 0;      ///< of the estimate
  double simulated_s = 0;    ///< early backward with the warm-up of the stages, in virtual time
  double lower_bound_s = 0;  ///< no plan of the same request takes less
  double gap = 0;            ///< simulated_s / lower_bound_s - 1
  double speedup = 0;        ///< over the fastest single device, by the estimate
  double acr = 0;            ///< one-way transfer over forward and backward, both averaged
  double alpha = 0;          ///< twice that: what the warm-up has to hide
  long long candidates = 1;  ///< plans evaluated to find this one
  double solve_s = 0;        ///< of the planner; filled in by the caller

  friend bool operator==(Plan const& a, Plan const& b) {
    return a.stages == b.stages && a.batch == b.batch && a.microbatches == b.microbatches &&
           a.recompute == b.recompute && a.gradients == b.gradients;
  }
};

}  // namespace stagger::plan
