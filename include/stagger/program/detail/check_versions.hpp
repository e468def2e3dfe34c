// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check of weight versions where stages update alone, or exchange parameters with a
///         server: which version is in which slot.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_state.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

/// The version of its weights that each cell which updates alone holds in each slot, and with a
/// parameter server the changes. A template, since g++ would compile it for every program: it
/// compiles each class that a virtual call could reach.
/// @tparam Model  StalenessModel
template <class Model> class HeldVersionCheck final : public VersionCheck {
 public:
  [[gnu::cold]] HeldVersionCheck(CheckState const& state, Model const& staleness)
      : VersionCheck(state), staleness_(staleness) {
    if (state.program.flushes) exchanged_.assign(state.program.cells.size(), 0);
    bool const in_step = staleness && staleness.in_step();
    if (!state.program.training || (state.program.flushes && !in_step)) return;
    per_update_ = std::max(1, staleness.microbatches);
    if (!in_step) per_push_ = state.program.push_minibatches;
    auto const& cells = state.program.cells;
    cells_ = FixedArray<Weights>(cells.size());
    for (std::size_t c = 0; c < cells.size(); ++c) {
      cells_[c].alone = !state.program.flushes || staleness.alone(cells[c].depth);
      cells_[c].slots.assign(cells[c].versions, Held{});
      if (cells[c].versions != 0) cells_[c].slots[0] = {.updates = 0};
      cells_[c].wanted.resize(state.units);
      cells_[c].holders = {c, c + 1};
      if (is_first_holder(cells, c)) continue;
      cells_[c].holders.first = cells_[c - 1].holders.first;
      for (std::size_t const d : cells_[c].holders) cells_[d].holders.last = c + 1;
    }
  }

  [[gnu::cold]] void read(Instruction const& in) override {
    if (!exchanged_.empty() && exchanged_[in.cell] == none_yet) exchanged_[in.cell] = read_once;
    if (!alone(in.cell)) return VersionCheck::read(in);
    Weights& own = cells_[in.cell];
    own.used_at = state_.now();
    require_others(in, "reads weights", [&](Weights const& other) {
      return other.made == own.made ? other.made_at : Weights::not_yet;
    });
    Held& wanted = own.wanted[in.microbatch];
    if (gives_output(in.op)) {
      int const minibatch = static_cast<int>(in.microbatch) / per_update_;
      wanted.updates = staleness_.version(staleness_.policy, minibatch, own.made);
      if (per_push_ != 0)
        wanted.rounds = own.rounds =
            std::max(own.rounds, staleness_.needs(staleness_.policy, minibatch));
    }
    Held const held = slot_of(in, in.version);
    if (held.updates != wanted.updates)
      state_.refuse("reads version ", held.updates,
                    " of its weights, where the staleness model says ", wanted.updates);
    if (held.rounds != wanted.rounds)
      state_.refuse("reads weights with ", counted(held.rounds, "push"),
                    " of every worker, where the staleness model needs ", wanted.rounds);
  }

  void add(Instruction const& in) override {
    if (!alone(in.cell)) return;
    if (static_cast<int>(in.microbatch) / per_update_ != cells_[in.cell].made)
      state_.refuse("adds to the gradients of another minibatch");
    ++cells_[in.cell].ended;
  }

  [[gnu::cold]] void apply(Instruction const& in, std::uint32_t ended) override {
    if (!alone(in.cell)) return VersionCheck::apply(in, ended);
    Weights& own = cells_[in.cell];
    auto const made = static_cast<std::uint32_t>(own.made);
    auto const per_update = static_cast<std::uint32_t>(per_update_);
    if (in.update() != made || ended != (made + 1) * per_update)
      state_.refuse("makes update ", in.update(), ", but ", counted(own.made, "update"), " and ",
                    counted(ended, "microbatch"), " came before");
    IndexRange const holders = own.holders;
    if (holders.size() > 1 ? in.part() != in.cell - holders.first || in.parts() != holders.size()
                           : in.updates_part())
      state_.refuse("updates part ", in.part(), " of ", in.parts(), ", which is not its own");
    require_others(in, "adds up gradients and overwrites weights", [&](Weights const& other) {
      return other.ended == own.ended ? other.used_at : Weights::not_yet;
    });
    own.made_at = state_.now();
    auto& slots = cells_[holders.first].made_in;  // which all who hold the stage share
    if (std::cmp_equal(slots.size(), own.made)) slots.push_back({in.version, in.next_version});
    if (slots[own.made].from != in.version || slots[own.made].to != in.next_version)
      state_.refuse("makes a version in another slot than the others that hold its stage");
    Held const from = slot_of(in, in.version);
    Held const seen = per_push_ != 0 ? own.wanted[made] : Held{.updates = own.made};
    if (from.updates != seen.updates || from.rounds != seen.rounds)
      state_.refuse(per_push_ != 0 ? "takes the change from another version than its minibatch saw"
                                   : "updates another version than the last");
    ++own.made;
    slot_of(in, in.next_version) =
        per_push_ != 0 ? Held{.change = own.made - 1} : Held{.updates = own.made};
  }

  [[gnu::cold]] void push(Instruction const& in) override {
    if (state_.program.flushes) return exchange_once(in);
    Weights& own = exchanged(in);
    int const last = std::min((own.pushes + 1) * per_push_, state_.program.updates);
    if (static_cast<int>(in.round()) != own.pushes || own.made != last)
      state_.refuse("makes push ", in.round(), ", but ", counted(own.pushes, "push"), " and ",
                    counted(own.made, "change"), " came before");
    ++own.pushes;
  }

  [[gnu::cold]] void pull(Instruction const& in) override {
    if (state_.program.flushes) {
      if (!in.snapshot() && (!state_.program.late || exchanged_[in.cell] != none_yet))
        state_.refuse("corrects weights that have been read in the step");
      if (!in.snapshot()) return;
      require_awaited(in);
      return exchange_once(in);
    }
    Weights& own = exchanged(in);
    Held& to = slot_of(in, in.next_version);
    if (!in.snapshot()) {
      Held const from = slot_of(in, in.version);
      if (from.updates == none || to.change != from.updates)
        state_.refuse("adds change ", to.change, " to version ", from.updates, " of its weights");
      to = {.updates = from.updates + 1, .rounds = from.rounds};
      return;
    }
    int const rounds = static_cast<int>(in.rounds());
    int const pushes = rounds + in.waves();
    if (pushes > own.pushes)
      state_.refuse("needs its own push ", pushes - 1, ", but has made only ",
                    counted(own.pushes, "push"));
    require_awaited(in);
    to = {.updates = std::min(pushes * per_push_, state_.program.updates), .rounds = rounds};
  }

  [[gnu::cold]] void require_last(std::size_t c) const override {
    if (state_.program.cells[c].alone != (state_.program.flushes && alone(c)))
      state_.refuse("has a cell that is marked to update at another time than its instructions do");
    bool const exchanges = state_.program.training && state_.program.exchanges() &&
                           is_first_holder(state_.program.cells, c);
    if (!exchanged_.empty() && (exchanges ? exchanged_[c] != pulled : exchanged_[c] >= pushed))
      state_.refuse("does not end with one push and one pull of each stage");
    if (!alone(c)) return;
    Weights const& own = cells_[c];
    if (own.slots.size() != cells_[own.holders.first].slots.size())
      state_.refuse("has another number of versions than the others that hold its stage");
    int const updates =
        state_.program.flushes ? state_.program.microbatches : state_.program.updates;
    if (own.made != updates) state_.refuse("makes ", own.made, " updates of ", updates);
    if (per_push_ != 0 && own.pushes * per_push_ < own.made)
      state_.refuse("pushes ", own.pushes, " times, which is not all of its changes");
    if (own.slots[0].updates != own.made || (per_push_ != 0 && own.slots[0].rounds != own.pushes))
      state_.refuse("ends with the newest weights of a cell in another slot than slot 0");
  }

 private:
  static constexpr int none = -1;
  /// A version of the weights, or a change.
  struct Held {
    int updates = none;  // own updates that a version contains
    int rounds = 0;      // pushes of every worker that it contains
    int change = none;
  };
  struct Made {
    std::uint16_t from = 0;  // slots
    std::uint16_t to = 0;
  };
  struct Weights {
    List<Held> slots;
    List<Held> wanted;  // [microbatches] version that each is to see
    int made = 0;       // updates, or changes
    int pushes = 0;
    int rounds = 0;  // rounds that the last forward must have seen
    bool alone = false;
    // Where several ranks hold the stage, each of which updates a part:
    static constexpr std::uint32_t not_yet = 0xffffffff;
    IndexRange holders{};       // cells
    List<Made> made_in;         // [updates] if it is the first of them
    std::uint32_t ended = 0;    // microbatches
    std::uint32_t used_at = 0;  // instructions ended with the last use of weights or gradients
    std::uint32_t made_at = 0;  // likewise with the last update
  };
  enum Exchanged : std::uint8_t { none_yet, read_once, pushed, pulled };
  [[nodiscard]] bool alone(std::size_t c) const { return cells_.size() != 0 && cells_[c].alone; }
  void require_awaited(Instruction const& pull) const {
    if (state_.awaited(state_.program.outside_signal(pull.cell)) < state_.program.answers_for(pull))
      state_.refuse("takes a snapshot that it has not waited for");
  }
  /// Checks that there is one push of a step, or those of its groups, and then one pull.
  void exchange_once(Instruction const& in) {
    auto& done = exchanged_[in.cell];
    bool const more = done == pushed && state_.program.pushes_groups;  // GroupCheck counts them
    if (!state_.program.exchanges() || (pushes(in.op) ? done >= pushed && !more : done != pushed))
      state_.refuse("exchanges parameters in the wrong order, or twice");
    done = pushes(in.op) ? pushed : pulled;
  }
  /// Requires that the rank knows how far the others that hold its stage have come.
  /// @param until  (Weights of another) -> the instructions that it must have ended
  template <class Until>
  void require_others(Instruction const& in, char const* what, Until until) const {
    for (std::size_t const d : cells_[in.cell].holders) {
      int const rank = state_.program.cells[d].rank;
      if (d != in.cell && !state_.knows(rank, until(cells_[d])))
        state_.refuse(what, " that rank ", rank, " may still use or change");
    }
  }
  [[nodiscard]] Weights& exchanged(Instruction const& in) {
    if (cells_.size() == 0 || per_push_ == 0)
      state_.refuse("exchanges changes in a run without a parameter server");
    return cells_[in.cell];
  }
  [[nodiscard]] Held& slot_of(Instruction const& in, std::size_t slot) {
    if (slot >= cells_[in.cell].slots.size())
      state_.refuse("uses version slot ", slot, ", which cell ", in.cell, " does not have");
    return cells_[in.cell].slots[slot];
  }

  Model const& staleness_;
  FixedArray<Weights> cells_;     // none: all update together
  List<std::uint8_t> exchanged_;  // [cells] Exchanged, in a step
  int per_update_ = 1;
  int per_push_ = 0;  // minibatches; 0: no parameter server
};

}  // namespace stagger::detail
