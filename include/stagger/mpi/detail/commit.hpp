// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Whether all processes know that all ranks have finished: before that none of them
///         updates anything for good.
/// @source D. Skeen, "Nonblocking Commit Protocols", SIGMOD 1981: a phase between the votes and the
///         commit, in which a process that has fallen silent may be left out.

#include <cstddef>

#include <stagger/core/fixed_array.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

/// One step's commit, as one process sees it.
///
/// Each rank votes to update once it has finished. A process that knows of all votes says so,
/// and updates when all others have said so. A process that lacks a vote has not
/// said so; hence none updates, and it may end the step. If one process falls silent after it has
/// voted, the others either all know of that, and may go on without it, or one does not, and says
/// that the step ends. It says so after a deadline; those in doubt wait half as long again for it.
///
/// Where each process updates a part of what others have, it does so, in a way that can be taken
/// back, once it knows of all votes. That it has handed its part over is a further vote; so
/// "all votes" means that the process has everything, and the update lasts when all have said
/// so.
class Commit {
 public:
  /// @param hands_over  whether each process hands over what it has updated
  void load(Program const& program, Placement const& placement, bool hands_over) {
    here_ = placement.here();
    bool const needed = program.training && program.flushes && !program.exchanges() &&
                        placement.processes() > 1 && program.computing > 1;
    ranks_ = needed ? program.computing : 0;
    handed_ = 0;
    takes_part_ = FixedArray<bool>(placement.processes());
    knows_ = FixedArray<bool>(placement.processes());
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
      knows_[p] = true;
      if (votes_ == 0 || static_cast<int>(p) == here_ || !takes_part_[p]) continue;
      knows_[p] = false;
      ++missing_;
    }
  }
  /// One more rank has voted, or process handed over. @return whether all have
  bool voted() noexcept { return votes_ != 0 && --votes_ == 0; }
  /// A process knows of all votes.
  void take(int process) noexcept {
    if (knows_[process]) return;
    knows_[process] = true;
    --missing_;
  }
  /// Whether ranks may update, or what they have updated may last.
  [[nodiscard]] bool made() const noexcept { return votes_ == 0 && missing_ == 0; }
  /// Whether this process has said that it knows of all votes, and may not end the step alone.
  [[nodiscard]] bool in_doubt() const noexcept { return votes_ == 0 && missing_ != 0; }
  /// In doubt, the one process that has not said so; -1 for several.
  [[nodiscard]] int last() const noexcept {
    int found = -1;
    for (std::size_t p = 0; p < knows_.size() && votes_ == 0 && missing_ == 1; ++p)
      if (!knows_[p]) found = static_cast<int>(p);
    return found;
  }
  /// Goes on without those that are missing.
  void settle() noexcept { missing_ = 0; }

 private:
  int here_ = 0;
  int ranks_ = 0;                  // 0: there is nothing to agree on
  int handed_ = 0;                 // processes that hand over
  FixedArray<bool> takes_part_{};  // [processes]
  FixedArray<bool> knows_{};       // [processes]
  int votes_ = 0;                  // that are not known here
  int missing_ = 0;                // processes that do not know of all
};

}  // namespace stagger::mpi::detail
