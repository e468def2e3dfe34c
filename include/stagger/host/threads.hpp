// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The device that runs ranks on threads of this process. It needs only the standard
///         library.

#include <stagger/engine/device.hpp>
#include <stagger/engine/session.hpp>

namespace stagger::host {

class ThreadsBackend;

/// Device policy: ranks share `count` threads; a thread with several ranks runs whichever of them
/// can proceed.
///
/// The thread that calls `run` is one of them, so `Threads{1}` starts only the one that watches the
/// deadline. Threads wait between steps without using a core.
struct Threads {
  using policy_tag = DeviceTag;
  using Backend = ThreadsBackend;
  static constexpr DeviceTraits traits{.obeys_placement = true,
                                       .spare_places = true,
                                       .sums_while_running = true,
                                       .outside_signals = true,
                                       .shares_layers = true};
  static_assert(stagger::detail::device_features(traits) == stagger::detail::feature::of_threads);
  int count = 1;  ///< >= 1; threads beyond one for each rank add up gradients of replicas, or are
                  ///< idle

  /// How many places a placement policy may spread the ranks over.
  [[nodiscard]] int places() const noexcept { return count; }

  /// How many threads are left for adding up gradients beside the ranks.
  [[nodiscard]] int spare_places(int ranks) const noexcept { return count - ranks; }
};

}  // namespace stagger::host

#ifdef STAGGER_SEPARATE_COMPILATION
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(host::Threads const&, List<Layer>, Setup&);
}
#else
#include <stagger/host/detail/threads_backend.hpp>
#endif
