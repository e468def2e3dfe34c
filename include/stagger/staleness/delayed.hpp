// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Delayed gradient descent: the weights of every stage are Nm - 1 updates behind, for Nm
///         minibatches in flight.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 4, for one virtual worker: minibatch p,
///         counted from 1 there, sees the updates of 1 .. p - Nm.

#include <stagger/core/error.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Every microbatch is a minibatch. Minibatch p (from 0) sees, at every stage, the weights after p
/// + 1 - Nm updates, although stages further down have made more by then. With Nm = 1 this is
/// sequential gradient descent.
struct Delayed {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = false;

  int in_flight = 0;  ///< Nm >= 1; 0: as many as the schedule has, such as schedule::Fifo{Nm}

  constexpr void follow(int schedules) noexcept {
    if (in_flight == 0) in_flight = schedules;
  }
  /// @throws Error  bad_configuration
  void check() const {
    if (in_flight < 1)
      raise(
          Errc::bad_configuration, "weights cannot be those for ", counted(in_flight, "minibatch"),
          " in flight; let Delayed::in_flight be at least 1, or leave it out with a schedule that "
          "says how many it has, such as schedule::Fifo{4}");
  }
  [[nodiscard]] constexpr int microbatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int version(int minibatch, int) const noexcept {
    int const contained = minibatch + 1 - in_flight;
    return contained > 0 ? contained : 0;
  }
};

static_assert(AsynchronousPolicy<Delayed>);

}  // namespace stagger::staleness
