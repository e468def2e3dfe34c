// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The end of a step by an error: whether this process may still end it, and the error that
///         did.

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/engine/step_status.hpp>

namespace stagger::mpi::detail {

/// The report of a process that ends a step, for the others.
struct FailureReport {
  Errc code = Errc::peer_failed;
  std::string message{};
};
[[nodiscard]] inline FailureReport report_of(std::exception_ptr const& failure) noexcept {
  FailureReport told;
  try {
    std::rethrow_exception(failure);
  } catch (Error const& e) {
    told = {e.code(), e.what()};
  } catch (std::exception const& e) {
    told.message = e.what();
  } catch (...) {
    told.message = "it threw something that is no std::exception";
  }
  return told;
}

/// Before its last vote to update, a process may end a step for any reason, on any thread;
/// afterwards only the thread that runs the step may. These decisions happen at most twice in a
/// step, so they take a lock.
class Ending {
 public:
  /// Called before anything can end the step.
  void open() noexcept {
    std::lock_guard const lock(mutex_);
    phase_ = Phase::open;
    failure_ = nullptr;
    stop_.store(false, std::memory_order_relaxed);
  }
  /// @return false if the step has failed already
  [[nodiscard]] bool vote() noexcept {
    std::lock_guard const lock(mutex_);
    if (phase_ != Phase::open) return false;
    phase_ = Phase::voted;
    return true;
  }
  /// Ends the step unless this process has voted not to. Any thread may call it.
  void fail(stagger::detail::StepStatus& status, std::exception_ptr failure) noexcept {
    std::lock_guard const lock(mutex_);
    if (phase_ == Phase::open) end(status, std::move(failure));
  }
  /// Ends the step even if this process has voted, unless all have.
  void break_off(stagger::detail::StepStatus& status, std::exception_ptr failure) noexcept {
    std::lock_guard const lock(mutex_);
    if (phase_ != Phase::failed) end(status, std::move(failure));
  }

  [[nodiscard]] bool failed() const noexcept { return stop_.load(std::memory_order_relaxed); }
  /// The error that ended the step.
  [[nodiscard]] std::exception_ptr failure() const noexcept {
    std::lock_guard const lock(mutex_);
    return failure_;
  }

 private:
  enum class Phase : std::uint8_t { open, voted, failed };

  void end(stagger::detail::StepStatus& status, std::exception_ptr failure) noexcept {
    if (!status.fail(failure)) return;
    phase_ = Phase::failed;
    failure_ = std::move(failure);
    stop_.store(true, std::memory_order_relaxed);
  }

  mutable std::mutex mutex_{};
  Phase phase_ = Phase::open;
  std::exception_ptr failure_{};
  std::atomic<bool> stop_{false};
};

}  // namespace stagger::mpi::detail
