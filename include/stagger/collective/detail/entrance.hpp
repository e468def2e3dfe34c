// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The workers of other processes that are about to join a parameter server.

#include <cstddef>
#include <mutex>

#include <stagger/collective/messages.hpp>
#include <stagger/core/list.hpp>

namespace stagger::collective::detail {

/// While no worker has joined, the one that came first gives the first values, so that the server
/// has them once. The others wait until they can be compared, or until that one has gone and the
/// next gives its own. Any thread may call it.
class Entrance {
 public:
  /// A process of a worker has said who it is. If it is there already, since its old connection is
  /// not known to have ended, it gives up its old place.
  /// @param transport  of its connection
  [[gnu::cold]] void enter(Transport& transport, int worker, int process) {
    std::lock_guard const lock(mutex_);
    auto const own = [=](Place const& old) {
      return old.worker == worker && old.process == process;
    };
    if (auto* const old = removed(own)) old->wake();
    places_.push_back({&transport, worker, process});
    wake_each();
  }
  /// It has joined, or its connection has ended.
  [[gnu::cold]] void leave(Transport const& transport) noexcept {
    std::lock_guard const lock(mutex_);
    static_cast<void>(removed([&](Place const& each) { return each.transport == &transport; }));
    wake_each();
  }
  enum class Turn { first, waits, lost };
  /// Whether it is the first of those that are there, or has lost its place.
  [[nodiscard]] Turn turn(Transport const& transport) {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (places_[i].transport == &transport) return i == 0 ? Turn::first : Turn::waits;
    return Turn::lost;
  }
  /// Lets all look again whether they can join.
  void wake() noexcept {
    std::lock_guard const lock(mutex_);
    wake_each();
  }

 private:
  struct Place {
    Transport* transport;
    int worker, process;
  };
  /// Removes the one for which `is` holds. @return its transport; null: there is none
  template <class Is> [[nodiscard]] Transport* removed(Is is) noexcept {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!is(places_[i])) continue;
      Transport* const transport = places_[i].transport;
      for (; i + 1 < places_.size(); ++i) places_[i] = places_[i + 1];
      places_.pop_back();
      return transport;
    }
    return nullptr;
  }
  void wake_each() const noexcept {
    for (Place const& each : places_) each.transport->wake();
  }

  std::mutex mutex_;    // of the next member
  List<Place> places_;  // the first to come first
};

}  // namespace stagger::collective::detail
