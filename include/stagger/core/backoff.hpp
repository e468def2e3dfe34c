// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back-off for threads that poll.

#include <stagger/core/requirements.hpp>

#include <thread>

#include <stagger/core/chrono.hpp>

namespace stagger::detail {

/// Waits a little longer each time: first not at all, then one time slice, then up to 200 µs, so
/// that a thread with nothing to do leaves the core to those that have.
class Backoff {
 public:
  void pause() {
    ++rounds_;
    if (rounds_ < spins) return;
    if (rounds_ < spins + yields) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    if (sleep_ < longest) sleep_ *= 2;
  }

 private:
  static constexpr int spins = 200;
  static constexpr int yields = 400;
  static constexpr std::chrono::microseconds longest{200};
  int rounds_ = 0;
  std::chrono::microseconds sleep_{25};
};

}  // namespace stagger::detail
