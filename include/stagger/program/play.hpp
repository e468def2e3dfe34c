// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The player of programs, which takes all instructions in an order that their waits allow.

#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>

namespace stagger {

/// A rank that cannot go on, and what it waits for.
struct Blocked {
  int rank = 0;
  std::size_t instruction = 0;
  Wait wait;
};

/// Which waits the player obeys.
enum class PlayedWaits : std::uint8_t {
  all,
  messages,  ///< only waits for values between stages, as if slots were always free
};

/// Plays all ranks of a program against each other: each rank's instructions in order, and each
/// after those whose signals it waits for. Signals from outside count as given.
///
/// @code
///     for (Player player(program); player.next();) use(player.instruction());
/// @endcode
/// @complexity linear in the number of instructions and waits
class Player {
 public:
  [[gnu::cold]] explicit Player(Program const& program, PlayedWaits waits = PlayedWaits::all)
      : program_(program),
        places_(program.ranks.size()),
        given_(program.signals.size()),
        waits_(waits) {
    for (int r = ranks(); r-- > 0;) runnable_.push_back(r);
  }

  /// Ends the current instruction, and goes on to the next.
  /// @return whether there is a next one; if not, see `blocked`
  [[nodiscard]] [[gnu::noinline]] bool next() {
    if (in_ != nullptr) end_instruction();
    for (;; take_rank()) {
      if (rank_ != none) {
        auto const& code = program_.ranks[rank_].code;
        Place& place = places_[rank_];
        if (place.instruction < code.size()) {
          in_ = &code[place.instruction];
          if (unmet(waits()) == nullptr) return true;
        }
        place.queued = false;
      }
      in_ = nullptr;
      if (runnable_.empty()) return false;
    }
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t index() const noexcept { return places_[rank_].instruction; }
  [[nodiscard]] Instruction const& instruction() const noexcept { return *in_; }
  [[nodiscard]] std::span<Wait const> waits() const noexcept { return waits_at(rank_); }

  /// The ranks that have not reached their end. If there are none after the last `next`, the
  /// program cannot deadlock, however long actions take.
  [[nodiscard]] [[gnu::cold]] List<Blocked> blocked() const {
    List<Blocked> stuck;
    for (int r = 0; r < ranks(); ++r)
      if (places_[r].instruction != program_.ranks[r].code.size())
        stuck.push_back({r, places_[r].instruction, *unmet(waits_at(r))});
    return stuck;
  }

 private:
  static constexpr int none = -1;
  struct Place {
    std::size_t instruction = 0;
    std::size_t wait = 0;
    bool queued = true;
  };

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(places_.size()); }

  [[nodiscard]] std::span<Wait const> waits_at(int rank) const noexcept {
    auto const& own = program_.ranks[rank];
    return {own.waits.data() + places_[rank].wait, own.code[places_[rank].instruction].waits};
  }

  [[nodiscard]] Wait const* unmet(std::span<Wait const> waits) const noexcept {
    for (Wait const& wait : waits)
      if (given_[wait.signal] < wait.count &&
          program_.signals[wait.signal].sender != SignalEnds::outside &&
          (waits_ == PlayedWaits::all || program_.signals[wait.signal].edge >= 0))
        return &wait;
    return nullptr;
  }

  void take_rank() {
    rank_ = runnable_.back();
    runnable_.pop_back();
  }

  void end_instruction() {
    places_[rank_].wait += in_->waits;
    ++places_[rank_].instruction;
    for (unsigned g = 0; g < in_->signal_count; ++g) {
      ++given_[in_->signal[g]];
      int const receiver = program_.signals[in_->signal[g]].receiver;
      if (receiver != SignalEnds::everyone)
        wake(receiver);
      else
        for (int r = 0; r < ranks(); ++r) wake(r);
    }
  }

  void wake(int rank) {
    if (places_[rank].queued) return;
    places_[rank].queued = true;
    runnable_.push_back(rank);
  }

  Program const& program_;
  List<Place> places_;         // [ranks]
  List<std::uint32_t> given_;  // [signals] how often
  List<int> runnable_;         // ranks that may have something to do
  int rank_ = none;            // of the current instruction
  Instruction const* in_ = nullptr;
  PlayedWaits waits_;
};

/// Plays a program to its end.
/// @return the ranks that never reach their end
[[nodiscard]] [[gnu::cold]] inline List<Blocked> play(Program const& program) {
  Player player(program);
  while (player.next()) continue;
  return player.blocked();
}

}  // namespace stagger
