// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The state of the check: the current instruction, and what its rank knows about the
///         progress of others.

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// The state that all parts of the check share.
///
/// Each signal is given by one rank, so its k-th give is always at the same instruction. Therefore,
/// if waits order all accesses of a slot in the order that is played, they do so in every other
/// order. A rank is assumed to know only what it has waited for itself, not what follows from waits
/// of a third rank.
class CheckState {
 public:
  [[gnu::cold]] explicit CheckState(Program const& checked)
      : program(checked),
        units(static_cast<std::size_t>(checked.microbatches)),
        ranks_(static_cast<int>(checked.ranks.size())),
        known_(checked.ranks.size() * checked.ranks.size()),
        given_(checked.signals.size()),
        awaited_(checked.signals.size()),
        first_give_(checked.signals.size() + 1) {}

  Program const& program;
  std::size_t const units;  // microbatches, or their slices
  int rank = 0;             // rank of the current instruction
  std::size_t index = 0;
  Instruction const* in = nullptr;  // null at the end of the rank's code

  void at(int of_rank, std::size_t instruction) {
    auto const& code = program.ranks[of_rank].code;
    rank = of_rank;
    index = instruction;
    in = index < code.size() ? &code[index] : nullptr;
  }

  /// Always inline, as `raise` is.
  template <class... T> [[noreturn, gnu::always_inline]] void refuse(T const&... what) const {
    refuse_passed(kinds_of<decltype(passed(what))...>(), passed(what)...);
  }

  /// How many instructions the rank has ended after the current one.
  [[nodiscard]] std::uint32_t now() const { return static_cast<std::uint32_t>(index) + 1; }
  /// Whether the rank knows that another has ended this many instructions.
  [[nodiscard]] bool knows(int other, std::uint32_t instructions) const {
    return other == rank || known_[rank * ranks_ + other] >= instructions;
  }
  [[nodiscard]] std::uint32_t given(std::size_t signal) const { return given_[signal]; }
  [[nodiscard]] std::uint32_t awaited(std::size_t signal) const { return awaited_[signal]; }

  /// Called before the program is played: counts how often signals will be given.
  void count_gives(Instruction const& instruction) {
    for (unsigned g = 0; g < instruction.signal_count; ++g)
      ++first_give_[instruction.signal[g] + 1];
  }
  [[gnu::cold]] void place_gives() {
    for (std::size_t s = 0; s < given_.size(); ++s) first_give_[s + 1] += first_give_[s];
    give_at_ = FixedArray<std::uint32_t>(first_give_[given_.size()]);
  }

  /// Records what the rank knows after its waits.
  [[gnu::cold]] void note_waits(std::span<Wait const> waits) {
    for (Wait const& wait : waits) {
      std::size_t const s = wait.signal;
      awaited_[s] = std::max(awaited_[s], wait.count);
      if (program.signals[s].sender == SignalEnds::outside) {
        require_own_snapshot(wait);
        continue;
      }
      auto& known = known_[rank * ranks_ + program.signals[s].sender];
      known = std::max(known, give_at_[first_give_[s] + wait.count - 1]);
    }
  }
  void note_give(std::size_t signal) { give_at_[first_give_[signal] + given_[signal]++] = now(); }

  [[gnu::cold]] void require_all_awaited() {
    for (std::size_t s = 0; s < given_.size(); ++s) {
      if (given_[s] == awaited_[s] || program.signals[s].sender == SignalEnds::outside) continue;
      at(program.signals[s].sender, 0);
      refuse("gives signal ", s, " ", given_[s], " times in a step, of which ", awaited_[s],
             " are awaited");
    }
  }

 private:
  [[noreturn]] [[gnu::cold]] [[gnu::noinline]] void refuse_passed(std::uint64_t kinds, ...) const {
    std::va_list pieces;
    va_start(pieces, kinds);
    std::string const what = join_passed(kinds, pieces);
    va_end(pieces);
    raise(Errc::bad_schedule, "the program does not do what its table says: at instruction ", index,
          ", ", in == nullptr ? "the end" : describe(program, *in), ", ", name_of(program, rank),
          " ", what,
          "; if the schedule claims to be `proven`, check its tables with schedule::verify, if the "
          "staleness model is yours, let its answers depend on its arguments alone; else please "
          "report this");
  }

  /// Requires that the rank waits for a snapshot that one of its pulls takes: the worker asks only
  /// for these, so waiting for another one would never end.
  void require_own_snapshot(Wait wait) const {
    if (!exchanges(in->op) || wait.signal != program.outside_signal(in->cell) ||
        wait.count != program.answers_for(*in))
      refuse("waits for a snapshot of the server that it does not take");
  }

  int ranks_;
  List<std::uint32_t> known_;            // [ranks][ranks] instructions known to be ended
  List<std::uint32_t> given_, awaited_;  // [signals]
  List<std::uint32_t> first_give_;       // [signals + 1] into:
  FixedArray<std::uint32_t> give_at_;    // instructions that the sender has ended by then
};

/// Requires that all stages update together, at the end, and that nobody exchanges parameters with
/// a server. Where the staleness model says otherwise, HeldVersionCheck (check_versions.hpp)
/// replaces it.
class VersionCheck {
 public:
  explicit VersionCheck(CheckState const& state) : state_(state) {}
  VersionCheck(VersionCheck const&) = delete;
  VersionCheck& operator=(VersionCheck const&) = delete;
  virtual ~VersionCheck() = default;

  virtual void read(Instruction const& in) {
    if (in.version != 0) state_.refuse("reads another version of its weights than the only one");
  }
  /// Checks a gradient that is added up for the next update.
  virtual void add(Instruction const&) {}
  /// @param ended  microbatches whose gradients are there
  virtual void apply(Instruction const&, [[maybe_unused]] std::uint32_t ended) {
    state_.refuse("updates alone a stage that updates with the others");
  }
  virtual void push(Instruction const&) { refuse_exchange(); }
  virtual void pull(Instruction const&) { refuse_exchange(); }
  /// Called after all instructions.
  virtual void require_last(std::size_t c) const {
    if (state_.program.cells[c].alone)
      state_.refuse("has a cell that is marked to update at another time than its instructions do");
  }

 protected:
  CheckState const& state_;

 private:
  [[noreturn]] [[gnu::cold]] void refuse_exchange() const {
    state_.refuse("exchanges parameters in a run without a parameter server");
  }
};

}  // namespace stagger::detail
