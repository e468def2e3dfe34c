// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The status of a step: whether it succeeds, and its first error.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>

namespace stagger::detail {

/// The status of a step is decided once: by the ranks when all have finished, or by the first
/// error.
enum class Status : std::uint8_t { open, committed, failed };

class StepStatus {
 public:
  /// Ends the step with an error unless its status is decided already.
  /// @return whether this call decided it
  bool fail(std::exception_ptr failure) noexcept {
    while (failing_.exchange(true)) continue;  // one writer of `failure_`, for an instant
    bool decided = false;
    if (Status open = status_.load(); open == Status::open) {
      failure_ = std::move(failure);
      decided = status_.compare_exchange_strong(open, Status::failed);
    }
    failing_.store(false);
    return decided;
  }
  [[nodiscard]] bool failed() const noexcept { return status_.load() == Status::failed; }
  /// Ends the step with an error even if it has been decided that it succeeds.
  void lose(std::exception_ptr failure) noexcept {
    if (fail(failure) || failed()) return;
    failure_ = std::move(failure);
    status_.store(Status::failed);
  }
  /// Decides that the step succeeds; `reopen` undoes that for a program that was recorded instead
  /// of carried out.
  [[nodiscard]] bool commit() noexcept {
    Status status = Status::open;
    return status_.compare_exchange_strong(status, Status::committed) ||
           status == Status::committed;
  }
  void reopen() noexcept {
    Status status = Status::committed;
    status_.compare_exchange_strong(status, Status::open);
  }

 protected:
  ~StepStatus() = default;
  void begin_status() noexcept {
    while (failing_.load()) continue;  // an error that came too late for the previous step
    failure_ = nullptr;
    status_.store(Status::open);  // only now may `fail` write: a server may call it any time
  }
  [[nodiscard]] std::exception_ptr failure() const noexcept { return failure_; }
  [[noreturn]] void rethrow() { std::rethrow_exception(std::exchange(failure_, nullptr)); }

 private:
  std::exception_ptr failure_;
  std::atomic<Status> status_{Status::open};
  std::atomic<bool> failing_{false};
};

}  // namespace stagger::detail
