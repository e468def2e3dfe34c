// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The wait of the host for GPUs that may never answer.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/backoff.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::cuda::detail {

/// Keeps an object until the process ends, since a device may still use it.
inline void leave_behind(std::shared_ptr<void const> thing) {
  struct Left {
    std::shared_ptr<void const> thing;
    Left* next;
  };
  static std::atomic<Left*> all{nullptr};
  auto* const left = new Left{std::move(thing), all.load()};
  while (!all.compare_exchange_weak(left->next, left)) {
  }
}

/// Lets the host wait for its GPUs as long as anything moves, and watches them and the connections
/// between processes meanwhile.
class WaitPolicy {
 public:
  explicit WaitPolicy(Streams& streams) : streams_(streams) {}

  /// How long unfinished work may take to end after a failure.
  static constexpr double grace_s = 0.5;

  /// Waits until `done()`; the deadline starts again whenever the devices have moved.
  /// @param slot      of the iteration that is waited for
  /// @param replayed  whether it is a graph, whose parts cannot be observed
  /// @param within_s  how long to wait for `done()` once something else has failed
  /// @return the error of a device or of NCCL, or Error(deadline); null: none
  template <class Done>
  [[nodiscard]] std::exception_ptr wait(std::size_t slot, bool replayed, Done done,
                                        double within_s = 0) noexcept {
    try {
      at_.assign(streams_.ranks(), 0);
      auto const start = Clock::now();
      auto moved = start;
      auto failed = start;
      std::exception_ptr failure;
      std::uint64_t before = 0;
      for (; !done(); std::this_thread::sleep_for(std::chrono::microseconds(50))) {
        auto now = Clock::now();
        while (now - start < std::chrono::milliseconds(5)) {
          if (done()) return nullptr;
          std::this_thread::yield();
          now = Clock::now();
        }
        if (failure && seconds(now - failed) >= within_s) return failure;
        if (!failure) {
          failure = find_failure();
          failed = now;
          if (failure) continue;
        }
        if (auto const progress = replayed ? 0 : streams_.progress(slot, at_); progress != before) {
          before = progress;
          moved = now;
        } else if (seconds(now - moved) > streams_.machine().options().deadline_s) {
          raise(Errc::deadline, stall_text(replayed));
        }
      }
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  /// Waits until unfinished work has ended after an abort.
  /// @return false if the devices may still run it
  template <class Idle> [[nodiscard]] [[gnu::cold]] bool let_end(Idle idle) noexcept {
    try {
      return stagger::detail::wait_until(idle, grace_s);
    } catch (...) {
      return false;
    }
  }

  /// The same failure with the step that it ended, and the step's last known progress.
  [[nodiscard]] [[gnu::cold]] std::exception_ptr of_step(std::exception_ptr const& failure,
                                                         std::int64_t step) const noexcept {
    try {
      try {
        std::rethrow_exception(failure);
      } catch (Error const& error) {
        raise(error.result(), "step ", step, ": ", error.what(), "; when it was last looked at, ",
              where());
      } catch (stagger::Error const& error) {
        raise(error.code(), "step ", step, ": ", error.what());
      }
    } catch (...) {
      return std::current_exception();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration time) noexcept {
    return std::chrono::duration<double>(time).count();
  }

  [[nodiscard]] std::exception_ptr find_failure() noexcept {
    try {
      if (auto* const processes = streams_.gpus().processes()) processes->check_failures();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  /// The position of each rank that is not done, as far as it is known.
  [[nodiscard]] [[gnu::cold]] std::string where() const {
    auto const& program = streams_.machine().program();
    std::vector<std::uint32_t> given(program.signals.size());
    for (std::size_t r = 0; r < at_.size(); ++r)
      for (std::size_t i = 0; i < at_[r]; ++i)
        for (unsigned g = 0; g < program.ranks[r].code[i].signal_count; ++g)
          ++given[program.ranks[r].code[i].signal[g]];
    return stagger::detail::describe_stall(program, at_, given);
  }
  [[nodiscard]] [[gnu::cold]] std::string stall_text(bool replayed) const {
    char const* const gpus = streams_.gpus().name();
    double const deadline_s = streams_.machine().options().deadline_s;
    if (replayed)
      return text(gpus, " did not finish a replayed step within ", deadline_s,
                  " s; raise Options::deadline_s if a step may take that long");
    return text(gpus, " did not move for ", deadline_s, " s: ", where(),
                "; raise Options::deadline_s if an action may take that long");
  }

  Streams& streams_;
  std::vector<std::size_t> at_;  // [ranks] instructions that are known to be done
};

}  // namespace stagger::cuda::detail
