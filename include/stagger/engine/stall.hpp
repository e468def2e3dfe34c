// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Stall detection: a counter that does not change for a deadline, and a thread that
///         watches it.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/chrono.hpp>

namespace stagger::detail {

/// Polls a counter to see whether it has stood still for a whole deadline. It counts polls, not
/// time, so that a process that is suspended for hours loses only one.
class StallDetector {
 public:
  /// @param deadline_s  > 0
  explicit StallDetector(double deadline_s) noexcept
      : interval_s_(std::min(deadline_s / 8, 3600.0)), looks_(deadline_s / interval_s_) {}

  /// The time between two looks.
  [[nodiscard]] std::chrono::duration<double> interval() const noexcept {
    return std::chrono::duration<double>(interval_s_);
  }
  /// Looks at the counter of something that runs. After the deadline has expired once, it starts
  /// over.
  /// @return  whether the counter has not changed for the deadline
  [[nodiscard]] bool expired(std::uint64_t progress) noexcept {
    quiet_ = seen_ && progress == progress_ ? quiet_ + 1 : 0;
    seen_ = true;
    progress_ = progress;
    if (static_cast<double>(quiet_) < looks_) return false;
    seen_ = false;
    return true;
  }
  /// Called while nothing runs.
  void idle() noexcept { seen_ = false; }

 private:
  double interval_s_;
  double looks_;  // number of intervals in the deadline
  std::uint64_t progress_ = 0;
  std::uint64_t quiet_ = 0;  // looks that found the counter unchanged
  bool seen_ = false;
};

/// Watches a counter while something runs. When it stands still for the deadline, `expired` is
/// called on the watchdog's thread, once for each run.
///
/// @tparam Progress  () const noexcept -> std::uint64_t; changes whenever anything moves; any
///                   thread
/// @tparam Expired   () noexcept -> void; must not end the run itself
template <class Progress, class Expired> class Watchdog {
 public:
  /// @param deadline_s  > 0
  Watchdog(double deadline_s, Progress progress, Expired expired)
      : deadline_s_(deadline_s), progress_(std::move(progress)), expired_(std::move(expired)) {}
  Watchdog(Watchdog const&) = delete;
  Watchdog& operator=(Watchdog const&) = delete;
  ~Watchdog() {
    {
      std::lock_guard const lock(mutex_);
      quit_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Begins a run. The first call starts the thread; later calls cost no more than a store.
  void begin() {
    if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
    ++run_;
    running_.store(run_, std::memory_order_release);
  }

  /// Ends the run; `expired` is not running any more when this returns.
  void end() noexcept {
    running_.store(0, std::memory_order_seq_cst);
    while (calling_.load(std::memory_order_seq_cst)) std::this_thread::yield();
  }

 private:
  [[gnu::cold]] void watch() {
    StallDetector detector(deadline_s_);
    std::uint64_t last = 0;
    std::uint64_t told = 0;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, detector.interval(), [this] { return quit_; })) {
      calling_.store(true, std::memory_order_seq_cst);
      std::uint64_t const run = running_.load(std::memory_order_seq_cst);
      if (run != std::exchange(last, run)) detector.idle();
      if (run != 0 && run != told && detector.expired(progress_())) {
        told = run;
        expired_();
      }
      calling_.store(false, std::memory_order_seq_cst);
    }
  }

  double deadline_s_;
  Progress progress_;
  Expired expired_;
  std::uint64_t run_ = 0;
  std::atomic<std::uint64_t> running_{0};
  std::atomic<bool> calling_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace stagger::detail
