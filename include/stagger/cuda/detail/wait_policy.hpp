// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Waiting for a device that may never answer.

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include <stagger/cuda/watchdog.hpp>

namespace stagger::cuda::detail {

/// Lets the host wait for a device as long as anything moves.
///
/// @tparam Engine  progress() const noexcept -> std::uint64_t, changes whenever anything moves;
///                 expire() noexcept -> std::exception_ptr, called by the watchdog's thread: what
///                 to say when nothing did for the deadline
template <class Engine> class WaitPolicy {
 public:
  WaitPolicy(double deadline_s, Engine* engine)
      : watchdog_(deadline_s, Progress{engine}, Expired{engine, this}) {}

  /// Between these two, the engine is watched.
  void begin() {
    expired_.store(false, std::memory_order_relaxed);
    watchdog_.begin();
  }
  void end() noexcept { watchdog_.end(); }

  /// Waits until `done()`. After a while it begins to `look()`, so that progress can be told.
  /// @param until_done  waits on when the deadline passes
  /// @return what went wrong; null: nothing
  template <class Done, class Look>
  [[nodiscard]] std::exception_ptr wait(bool until_done, Done done, Look look) noexcept {
    try {
      auto const start = std::chrono::steady_clock::now();
      while (!done()) {
        if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(5)) {
          std::this_thread::yield();
          continue;
        }
        look();
        if (!until_done && expired_.load(std::memory_order_acquire)) return expiry_;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

 private:
  struct Progress {
    Engine const* engine;
    std::uint64_t operator()() const noexcept { return engine->progress(); }
  };
  struct Expired {
    Engine* engine;
    WaitPolicy* self;
    void operator()() const noexcept {
      self->expiry_ = engine->expire();
      self->expired_.store(true, std::memory_order_release);
    }
  };

  std::exception_ptr expiry_;
  std::atomic<bool> expired_{false};
  Watchdog<Progress, Expired> watchdog_;
};

}  // namespace stagger::cuda::detail
