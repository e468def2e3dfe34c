// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The commit of a step: no process makes a permanent update before all processes know that
///         all ranks have finished. And its end by an error: whether this process may still end it.
/// @source D. Skeen, "Nonblocking Commit Protocols", SIGMOD 1981: a phase between the votes and the
///         commit, in which a process that has fallen silent may be left out.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/engine/step_status.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

/// The commit of one step, as one process sees it.
///
/// Each rank votes to update once it has finished. A process that has received all votes announces
/// this, and updates once all others have announced it too. As long as a process lacks a vote it
/// has announced nothing, so no process updates, and it may still end the step. If a process falls
/// silent after it has voted, either all others have received its vote and may go on without it, or
/// one of them has not, and ends the step after a deadline. The others wait for half as long again
/// to hear of that.
///
/// If each process updates a part of what others have too, it does so once it has received all
/// votes, in a way that can be undone. Handing its part over to the others is a further vote; so a
/// process with all votes has all parts, and the update becomes permanent once all have announced
/// that.
class Commit {
 public:
  /// @param hands_over  whether each process sends the part that it has updated to others
  void load(Program const& program, Placement const& placement, bool hands_over) {
    here_ = placement.here();
    bool const needed = program.training && program.flushes && !program.exchanges() &&
                        placement.processes() > 1 && program.computing > 1;
    ranks_ = needed ? program.computing : 0;
    handed_ = 0;
    auto const processes = static_cast<unsigned>(placement.processes());
    takes_part_.assign(processes, false);
    knows_.assign(processes, true);
    for (int r = 0; r < ranks_; ++r) {
      bool& takes_part = takes_part_[placement.process_of(r)];
      if (!takes_part && hands_over) ++handed_;
      takes_part = true;
    }
  }
  void begin_step() {
    votes_ = takes_part_[here_] ? ranks_ + handed_ : 0;
    missing_ = 0;
    for (std::size_t p = 0; p < knows_.size(); ++p) {
      knows_[p] = votes_ == 0 || static_cast<int>(p) == here_ || !takes_part_[p];
      if (!knows_[p]) ++missing_;
    }
  }
  /// Notes the vote of a rank, or that a process has handed its part over. @return whether all have
  bool voted() noexcept { return votes_ != 0 && --votes_ == 0; }
  /// Notes that a process has all votes.
  void take(int process) noexcept {
    if (knows_[process]) return;
    knows_[process] = true;
    --missing_;
  }
  /// Whether ranks may update, or their updates become permanent.
  [[nodiscard]] bool made() const noexcept { return votes_ == 0 && missing_ == 0; }
  /// Whether this process has announced that it has all votes, and so must not end the step alone.
  [[nodiscard]] bool in_doubt() const noexcept { return votes_ == 0 && missing_ != 0; }
  /// The only process that has not announced that it has all votes; -1 if this process has not
  /// announced it, or if there is not exactly one other that has not.
  [[nodiscard]] int last() const noexcept {
    int found = -1;
    for (std::size_t p = 0; p < knows_.size() && votes_ == 0 && missing_ == 1; ++p)
      if (!knows_[p]) found = static_cast<int>(p);
    return found;
  }
  /// Goes on without the processes that are missing.
  void settle() noexcept { missing_ = 0; }

 private:
  int here_ = 0;
  int ranks_ = 0;            // 0: there is nothing to agree on
  int handed_ = 0;           // processes that hand over
  List<bool> takes_part_{};  // [processes]
  List<bool> knows_{};       // [processes]
  int votes_ = 0;            // that are not known here
  int missing_ = 0;          // processes that do not know of all
};

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
