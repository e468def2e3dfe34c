// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: the same engine, the same arithmetic, in virtual time on one thread.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/session.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/sim/clock.hpp>

namespace stagger::sim {

class VirtualClockBackend;

/// Device policy: every rank has a device of its own whose actions take the time that `costs` says.
///
/// Stages really run, so parameters come out as on any other device; `timeline()` speaks virtual
/// seconds. Same seed, same times, on every machine.
struct VirtualClock {
  using policy_tag = DeviceTag;
  using Backend = VirtualClockBackend;
  static constexpr DeviceTraits traits{.sums_while_running = true,
                                       .outside_signals = true,
                                       .shares_time = true,
                                       .shares_layers = true};

  schedule::Costs costs{};  ///< of each stage on all of a microbatch's rows; a recomputation costs
                            ///< its F
  collective::CostLine sum{};  ///< of a group of gradients that replicas add up; none: its bytes'
                               ///< share of the stage's reduce_s
  collective::CostLine exchange{};  ///< of what a member of a group takes from another where they
                                    ///< share layers
  std::vector<double> layer_backward_s{};  ///< [layers] which part of a stage's backward each
                                           ///< takes, relative to the others; empty: all the same
  double jitter = 0;       ///< 0 <= jitter < 1: each action takes its cost times a factor in [1 -
                           ///< jitter, 1 + jitter)
  std::uint64_t seed = 0;  ///< of the jitter
  std::optional<Clock> clock{};  ///< shared with other pipelines: workers of one parameter server;
                                 ///< none: its own, which starts at 0 with each step

  /// How many places a placement policy may spread the ranks over: as many as there are ranks.
  [[nodiscard]] int places() const noexcept { return std::numeric_limits<int>::max(); }
};

}  // namespace stagger::sim

#ifdef STAGGER_SEPARATE_COMPILATION
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(sim::VirtualClock const&, List<Layer>,
                                                      Setup const&);
}
#else
#include <stagger/engine/make_session.hpp>
#include <stagger/sim/detail/virtual_clock_backend.hpp>
#endif
