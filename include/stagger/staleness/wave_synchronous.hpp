// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Wave synchronous parallelism: workers are pipelines without a flush, and synchronise
///         once per wave.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 5.

#include <stagger/core/error.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Minibatch m (from 0) of a worker with Nm minibatches in flight sees its own changes up to m -
/// Nm, and at least the first (m + 1) / Nm - 1 - D waves of Nm changes of every worker. A worker
/// pushes the sum of a wave's changes after the backward pass of its last minibatch.
///
/// The weights are a snapshot of the server, plus the worker's own waves that it lacks, each as one
/// sum, plus the worker's later changes, one by one. For one worker without a server take Delayed.
struct WaveSynchronous {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = false;
  static constexpr Pushes pushes = Pushes::changes;

  int in_flight = 0;  ///< Nm >= 1, the same for all workers; 0: as many as the schedule has
  int distance = 0;   ///< D >= 0: how many waves a worker may be ahead of the slowest
  /// With on_arrival a minibatch sees the newest waves; with in_worker_order precisely those that
  /// it needs, so that the bits do not depend on timing.
  Adds adds = Adds::on_arrival;

  constexpr void follow(int schedules) noexcept {
    in_flight = in_flight == 0 ? schedules : in_flight;
  }
  void check() const {
    if (in_flight < 1)
      raise(
          Errc::bad_configuration, "a wave of ", counted(in_flight, "minibatch"),
          " cannot be pushed; let WaveSynchronous::in_flight be at least 1, or leave it out with a "
          "schedule that says how many it has, such as schedule::Fifo{4}");
    if (distance < 0)
      raise(Errc::bad_configuration, "a worker cannot be ", distance,
            " waves ahead of the slowest; let WaveSynchronous::distance be at least 0");
  }
  [[nodiscard]] constexpr int microbatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int version(int minibatch, int) const noexcept {
    int const own = minibatch + 1 - in_flight;
    return own > 0 ? own : 0;
  }
  [[nodiscard]] constexpr int minibatches() const noexcept { return in_flight; }
  [[nodiscard]] constexpr int needs(int minibatch) const noexcept {
    int const waves = (minibatch + 1) / in_flight - 1 - distance;
    return waves > 0 ? waves : 0;
  }
};

static_assert(AsynchronousPolicy<WaveSynchronous>);
static_assert(ExchangingPolicy<WaveSynchronous>);

}  // namespace stagger::staleness
