// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The iterations that devices have been given, their outcomes, and the wait of the host
///         for GPUs that may never answer.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/backoff.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::cuda::detail {

[[noreturn]] [[gnu::cold]] inline void refuse_lost() {
  raise(Errc::device, "a GPU or its communicator was lost in an earlier step; make a new pipeline");
}

/// Keeps an object until the process ends, since a device may still use it.
inline void leave_behind(std::shared_ptr<void const> thing) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::shared_ptr<void const>>;  // never destroyed
  std::lock_guard const lock(mutex);
  all->push_back(std::move(thing));
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

  /// Where each rank is that is not done, as far as it is known.
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

/// Iterations in flight, and whether the devices were lost. An iteration is decided once its
/// updates are enqueued: from then on parameters are lost if it fails.
class InFlight {
 public:
  /// @param slots  iterations that may be in flight
  InFlight(Streams& streams, int slots)
      : streams_(streams), wait_policy_(streams), all_(std::max(slots, 0)) {
    if (slots < 1)
      raise(Errc::bad_configuration, "the host cannot be ", slots,
            " steps ahead of its GPUs; use at least 1");
  }
  InFlight(InFlight const&) = delete;
  InFlight& operator=(InFlight const&) = delete;

  [[nodiscard]] std::size_t slots() const noexcept { return all_.size(); }
  [[nodiscard]] bool lost() const noexcept { return lost_; }  ///< no further step is possible
  [[nodiscard]] bool corrupted() const noexcept { return corrupted_; }  ///< the parameters are lost
  /// The devices may still run what they were given.
  [[nodiscard]] bool stuck() const noexcept { return stuck_; }

  /// An iteration is about to be enqueued.
  void begin(std::size_t slot) noexcept {
    slot_ = slot;
    all_[slot] = {};
  }
  void replays() noexcept { all_[slot_].replayed = true; }
  [[nodiscard]] bool replayed(std::size_t slot) const noexcept { return all_[slot].replayed; }
  /// The iteration has been enqueued.
  void went(bool decided) noexcept {
    all_[slot_].enqueued = true;
    all_[slot_].decided = decided;
  }

  [[nodiscard]] bool finished(std::size_t slot) const noexcept {
    if (lost_ || all_[slot].finished) return true;
    try {
      return has_finished(slot);
    } catch (...) {
      return true;  // reported by `await`
    }
  }

  /// Waits for an iteration. All earlier ones must have been awaited.
  /// @param step  its number for an error message; 0: it is not named
  /// @return the error with which it ended; null: it succeeded
  [[nodiscard]] std::exception_ptr await(std::size_t slot, std::int64_t step,
                                         double grace_s = 0) noexcept {
    all_[slot].enqueued = false;
    if (all_[slot].finished) return nullptr;
    if (!lost_)
      if (auto const failure = wait_for(slot, grace_s)) {
        reason_ = step == 0 ? failure : wait_policy_.of_step(failure, step);
        lose(reason_, all_[slot].decided);
        abort();
      }
    return lost_ ? reason_ : nullptr;
  }
  /// Waits for all iterations except the current one; they still count as in flight.
  [[nodiscard]] std::exception_ptr wait_for_others() noexcept {
    for (std::size_t i = 1; i < slots(); ++i)
      if (all_[after(i)].enqueued)
        if (auto failure = wait_for(after(i), 0)) return failure;
    return nullptr;
  }
  /// Waits for all iterations in flight, for at most the deadline.
  void await_all() noexcept {
    for (std::size_t i = 1; i <= slots(); ++i)
      if (all_[after(i)].enqueued) static_cast<void>(await(after(i), 0));
  }

  /// Waits for something that the devices do in the current iteration.
  /// @return the error of a device, or Error(deadline); null: it is done
  template <class Done> [[nodiscard]] std::exception_ptr wait(Done done) noexcept {
    return wait_policy_.wait(slot_, false, done);
  }
  /// Waits until the devices are idle.
  /// @param grace_s  how long to wait if something else has failed
  [[nodiscard]] std::exception_ptr wait_for_all(double grace_s = 0) noexcept {
    return wait_policy_.wait(
        slot_, all_[slot_].replayed, [this] { return streams_.idle(); }, grace_s);
  }

  /// Ends the current iteration, which could not be enqueued. Earlier ones remain valid, if the
  /// devices finish them.
  /// @return whether it can be undone
  [[nodiscard]] [[gnu::cold]] bool call_off(bool decided) noexcept {
    if (lost_ && !decided) return false;
    if (streams_.gpus().processes() != nullptr) {  // others wait for messages that will not come
      for (std::size_t i = 1; i < slots() && !lost_; ++i)
        if (all_[after(i)].enqueued)
          all_[after(i)].finished = await(after(i), 0, WaitPolicy::grace_s) == nullptr;
      abort();
    } else if (auto failure = wait_for_all()) {
      for (Iteration const& one : all_) decided = decided || (one.enqueued && one.decided);
      lose(std::move(failure), decided);
      abort();
    }
    return !stuck_ && !decided && !corrupted_;
  }

  /// Ends the step with an error even if it was decided already.
  [[gnu::cold]] void lose(std::exception_ptr failure, bool decided) noexcept {
    if (!reason_) reason_ = failure;
    corrupted_ = corrupted_ || decided;
    streams_.machine().lose(std::move(failure));
    lost_ = true;
  }

 private:
  struct Iteration {
    bool enqueued = false;  // and not awaited
    bool decided = false;
    bool finished = false;  // before the devices were lost
    bool replayed = false;
  };

  /// The i-th slot after the current one.
  [[nodiscard]] std::size_t after(std::size_t i) const noexcept { return (slot_ + i) % slots(); }
  [[nodiscard]] bool has_finished(std::size_t slot) const {
    std::size_t const ends = all_[slot].replayed ? 1 : streams_.gpus().size();
    for (std::size_t g = 0; g < ends; ++g)
      if (!streams_.end_of(slot, g).done()) return false;
    return true;
  }
  [[nodiscard]] std::exception_ptr wait_for(std::size_t slot, double grace_s) noexcept {
    return wait_policy_.wait(
        slot, all_[slot].replayed, [&] { return has_finished(slot); }, grace_s);
  }

  /// Ends all communication between processes, and thereby everything that waits for messages.
  [[gnu::cold]] void abort() noexcept {
    lost_ = true;
    auto* const processes = streams_.gpus().processes();
    if (processes != nullptr) processes->abort();
    auto const idle = [&] {
      return streams_.idle() && (processes == nullptr || processes->idle());
    };
    try {
      stuck_ = stuck_ || !stagger::detail::wait_until(idle, WaitPolicy::grace_s);
    } catch (...) {
      stuck_ = true;
    }
  }

  Streams& streams_;
  WaitPolicy wait_policy_;
  FixedArray<Iteration> all_;
  std::size_t slot_ = 0;       // of the current iteration
  std::exception_ptr reason_;  // for which the devices were lost
  bool lost_ = false;
  bool corrupted_ = false;
  bool stuck_ = false;
};

}  // namespace stagger::cuda::detail
