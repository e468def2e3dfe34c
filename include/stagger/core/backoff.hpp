// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The waiting of a thread that polls: it spins, yields, then sleeps.

#include <stagger/core/requirements.hpp>

#include <thread>

#include <stagger/core/chrono.hpp>

namespace stagger::detail {

/// Polls without a pause for the time `spin`, then yields between polls for the time `yield`, and
/// from then on sleeps up to 200 µs at a time, so that an idle thread leaves the core to others.
class Backoff {
 public:
  explicit Backoff(std::chrono::microseconds spin = std::chrono::microseconds(50),
                   std::chrono::microseconds yield = std::chrono::microseconds(500)) noexcept
      : spin_(spin), yield_(yield) {}

  /// Since the wait began.
  [[nodiscard]] double waited_s() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  void pause() {
    auto const waited = Clock::now() - start_;
    if (waited < spin_) return;
    if (waited < spin_ + yield_) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    if (sleep_ < longest) sleep_ *= 2;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds longest{200};
  Clock::time_point start_ = Clock::now();
  std::chrono::microseconds spin_;
  std::chrono::microseconds yield_;
  std::chrono::microseconds sleep_{25};
};

/// Waits until `done()` is true.
/// @return false if it is not true after this many seconds
template <class Done>
[[nodiscard]] bool wait_until(Done done, double seconds, Backoff backoff = Backoff()) {
  for (; !done(); backoff.pause())
    if (backoff.waited_s() >= seconds) return false;
  return true;
}

}  // namespace stagger::detail
