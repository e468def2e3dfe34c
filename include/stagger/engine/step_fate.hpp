// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Whether a step succeeds, and what it ended with.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>

namespace stagger::detail {

/// A step's fate is decided once, by whoever comes first: the ranks, when all have finished, or an
/// error.
enum class Fate : std::uint8_t { open, committed, failed };

class StepFate {
 public:
  /// Ends the step with an error unless its fate is decided already.
  /// @return whether this call decided it
  bool fail(std::exception_ptr failure) noexcept {
    if (failing_.exchange(true)) return false;  // one writer of `failure_`
    bool decided = false;
    if (Fate open = fate_.load(); open == Fate::open) {
      failure_ = std::move(failure);
      decided = fate_.compare_exchange_strong(open, Fate::failed);
    }
    failing_.store(false);
    return decided;
  }
  [[nodiscard]] bool failed() const noexcept { return fate_.load() == Fate::failed; }
  /// Ends the step with an error even if it was decided that it succeeds.
  void lose(std::exception_ptr failure) noexcept {
    if (fail(failure) || failed()) return;
    failure_ = std::move(failure);
    fate_.store(Fate::failed);
  }
  /// Decides that the step succeeds, and takes that back for a program that was recorded instead of
  /// carried out.
  [[nodiscard]] bool commit() noexcept {
    Fate fate = Fate::open;
    return fate_.compare_exchange_strong(fate, Fate::committed) || fate == Fate::committed;
  }
  void reopen() noexcept {
    Fate fate = Fate::committed;
    fate_.compare_exchange_strong(fate, Fate::open);
  }

 protected:
  ~StepFate() = default;
  void begin_fate() noexcept {
    fate_.store(Fate::open, std::memory_order_relaxed);
    failure_ = nullptr;
  }
  [[noreturn]] void rethrow() { std::rethrow_exception(std::exchange(failure_, nullptr)); }

 private:
  std::exception_ptr failure_;
  std::atomic<Fate> fate_{Fate::open};
  std::atomic<bool> failing_{false};
};

}  // namespace stagger::detail
