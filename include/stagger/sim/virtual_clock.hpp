// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The device that runs the same engine and arithmetic in virtual time, on one thread.

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

template <class Device> class VirtualClockBackend;

/// Device policy: every rank has a device of its own whose actions take the time that `costs` says.
///
/// Stages really run, so parameters are the same as on any other device; `timeline()` is in virtual
/// seconds. The same seed gives the same times on every machine.
struct VirtualClock {
  using policy_tag = DeviceTag;
  using Backend = VirtualClockBackend<VirtualClock>;
  static constexpr DeviceTraits traits{.sums_while_running = true,
                                       .outside_signals = true,
                                       .shares_time = true,
                                       .shares_layers = true};
  static_assert(stagger::detail::device_features(traits) ==
                stagger::detail::feature::of_virtual_clock);

  schedule::Costs costs{};  ///< of each stage, for all rows of a microbatch; a recomputation costs
                            ///< as much as F
  collective::CostLine sum{};  ///< of adding up a group of gradients over replicas; if not given,
                               ///< the group's share of the stage's reduce_s, by bytes
  collective::CostLine exchange{};  ///< of a message between two members of a group that shares
                                    ///< layers
  std::vector<double> layer_backward_s{};  ///< [layers] the time of each layer's backward relative
                                           ///< to the other layers of its stage; empty: all take
                                           ///< equally long
  double jitter = 0;       ///< 0 <= jitter < 1: each action takes its cost times a factor in [1 -
                           ///< jitter, 1 + jitter)
  std::uint64_t seed = 0;  ///< of the jitter
  std::optional<Clock> clock{};  ///< shared by the workers of a parameter server; if not given, the
                                 ///< pipeline has its own clock, which starts at 0 in each step

  /// How many places a placement policy may spread the ranks over: as many as there are ranks.
  [[nodiscard]] int places() const noexcept { return std::numeric_limits<int>::max(); }
};

}  // namespace stagger::sim

#ifdef STAGGER_SEPARATE_COMPILATION
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(sim::VirtualClock const&, List<Layer>,
                                                      Setup&);
}
#else
#include <stagger/sim/detail/virtual_clock_backend.hpp>
#endif
