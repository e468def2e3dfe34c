// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Local SGD: local steps, and a mean of all workers' weights after every T steps.
/// @source Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Lai et al.,
///         "SplitBrain", arXiv 2112.15317, for the mean of the optimizer's state.

#include <stagger/core/error.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// Each worker takes `period` steps on its own, with its own optimizer. Then the server takes the
/// mean of all workers' weights, and all continue from it. The optimizer's state is averaged too,
/// or stays the worker's own.
struct LocalSgd {
  using policy_tag = StalenessTag;
  static constexpr bool synchronous = true;  // the stages of a worker end a step together
  static constexpr Pushes pushes = Pushes::weights;
  static constexpr Adds adds = Adds::in_worker_order;
  int period = 1;             ///< T >= 1, in steps
  bool average_state = true;  ///< whether momentum and moments are averaged
  /// @throws Error  bad_configuration for a period that is no number of steps
  void check() const {
    if (period < 1)
      raise(Errc::bad_configuration, "workers cannot take the mean of their weights after every ",
            counted(period, "step"), "; let LocalSgd::period be at least 1");
  }
  [[nodiscard]] constexpr int minibatches() const noexcept { return period; }
  [[nodiscard]] constexpr int needs(int step) const noexcept { return step / period; }
};

static_assert(ExchangingPolicy<LocalSgd>);

}  // namespace stagger::staleness
