// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A virtual clock that several pipelines share: the workers of a parameter server.

#include <concepts>
#include <memory>

#include <stagger/schedule/links.hpp>
#include <stagger/sim/detail/event_queue.hpp>

namespace stagger::sim {

using schedule::Duplex;
using schedule::Links;
using schedule::Sharing;

/// A clock for several pipelines, each of which is given a copy of it. `run_together` runs their
/// steps on one thread. The time continues from step to step.
///
/// @code
///     sim::Clock const clock({.rate = 125e6});
///     auto a = pipeline.with(waves, server.worker(0), sim::VirtualClock{.costs = fast, .clock = clock});
///     auto b = pipeline.with(waves, server.worker(1), sim::VirtualClock{.costs = slow, .clock = clock});
///     run_together(a.stream(batch_a), b.stream(batch_b));
///     clock.now_s();
/// @endcode
class Clock {
 public:
  /// @param links  between the workers and their server
  /// @throws Error bad_configuration for numbers that are out of range
  // A template, so that only programs that make a clock compile what it is made of.
  template <std::same_as<Links> L = Links>
  explicit Clock(L const& links = {}) : time_(std::make_shared<detail::SharedTime>(links)) {}

  /// Virtual seconds since the clock was made.
  [[nodiscard]] double now_s() const noexcept { return time_->queue.now_s(); }

  /// For back ends.
  [[nodiscard]] std::shared_ptr<detail::SharedTime> const& time() const noexcept { return time_; }

 private:
  std::shared_ptr<detail::SharedTime> time_;
};

}  // namespace stagger::sim
