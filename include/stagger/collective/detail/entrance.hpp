// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The workers of other processes that are about to join a parameter server.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>

namespace stagger::collective::detail {

/// While no worker has joined, the one that came first gives the first values, so that the server
/// has them once. The others wait until they can be compared, or until that one has gone and the
/// next gives its own. Any thread may call it.
class Entrance {
 public:
  /// @param most  workers that may be about to join at the same time
  explicit Entrance(int most) : most_(static_cast<std::size_t>(most)) {}

  /// A worker has said who it is. @param transport  of its connection
  /// @throws Error  bad_configuration if there are too many
  [[gnu::cold]] void enter(Transport& transport) {
    std::lock_guard const lock(mutex_);
    if (inside_.size() == most_)
      raise(Errc::bad_configuration, counted(most_, "worker"),
            " of other processes are about to join the parameter server, which has places for no "
            "more; give each worker a number of its own, and make the server for all of them");
    inside_.push_back(&transport);
  }
  /// It has joined, or its connection has ended.
  [[gnu::cold]] void leave(Transport const& transport) noexcept {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = 0; i < inside_.size(); ++i)
      if (inside_[i] == &transport) {
        for (; i + 1 < inside_.size(); ++i) inside_[i] = inside_[i + 1];
        inside_.pop_back();
      }
    wake_each();
  }
  /// Whether it is the first of those that are there.
  [[nodiscard]] bool is_first(Transport const& transport) {
    std::lock_guard const lock(mutex_);
    return !inside_.empty() && inside_.front() == &transport;
  }
  /// Lets all look again whether they can join.
  void wake() noexcept {
    std::lock_guard const lock(mutex_);
    wake_each();
  }

  /// Bytes of first values have arrived. Now and then those that wait are told, so that they do not
  /// take the server for dead.
  void come(std::size_t bytes) noexcept {
    std::uint64_t const before = bytes_.fetch_add(bytes);
    if (before / told_each != (before + bytes) / told_each) wake();
  }
  /// How often they are told.
  [[nodiscard]] std::uint64_t news() const noexcept { return bytes_.load() / told_each; }

 private:
  static constexpr std::uint64_t told_each = std::uint64_t{1} << 22U;  // bytes
  void wake_each() const noexcept {
    for (Transport* const each : inside_) each->wake();
  }

  std::size_t most_;
  std::mutex mutex_;         // of the next member
  List<Transport*> inside_;  // the first to come first
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace stagger::collective::detail
