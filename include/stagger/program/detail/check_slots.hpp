// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The slots of a program that is being checked: who may read them and overwrite them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// What holds for the signals and slots of a program that is played, one instruction at a time.
///
/// The k-th give of a signal is always at the same instruction, since one rank gives it. So if all
/// accesses of a slot are ordered by waits in the order that is played, they are in every other
/// order. A rank is taken to know of another what it waited for itself, not what a third one told
/// it; and to have a message only if it waited for that very message, which may still be on its way
/// when its sender is known to have gone on.
class SlotCheck {
 protected:
  explicit SlotCheck(Program const& program)
      : program_(program), units_(static_cast<std::size_t>(program.microbatches)) {}

  static constexpr std::uint32_t nothing = 0xffffffff;
  enum Space : std::size_t {
    space_x,
    space_kept,
    space_dy,
    space_inner,
    space_y,
    space_dx,
    spaces
  };

  /// A place for one value of each microbatch in turn.
  struct Slot {
    std::uint32_t unit = nothing;  // whose value it holds
    std::uint32_t number = 0;      // of the message over its edge
    std::uint32_t read = 0;        // instructions that its reader will have ended then; 0: none
  };
  struct CellSlots {
    std::size_t first[spaces] = {};      // slot of each space
    std::uint32_t messages[2] = {0, 0};  // backward, forward: made for other cells
    List<std::size_t> cuts_from, cuts_to;
  };

  template <class... T> [[noreturn]] [[gnu::cold]] void refuse(T const&... what) const {
    raise(Errc::bad_schedule, "the program does not do what its table says: at instruction ",
          index_, ", ", describe(*in_), ", ", name_of(program_, rank_), " ", text(what...),
          "; if the schedule claims to be `proven`, check its tables with schedule::verify, if the "
          "staleness model is yours, let its answers depend on its arguments alone; else please "
          "report this");
  }
  template <class... T> void require(bool holds, T const&... what) const {
    if (!holds) [[unlikely]]
      refuse(what...);
  }
  void at(std::size_t rank, std::size_t index) {
    static constexpr Instruction none{};
    rank_ = rank;
    auto const& code = program_.ranks[rank].code;
    index_ = index;
    in_ = index < code.size() ? &code[index] : &none;
  }

  [[nodiscard]] Cell const& cell(std::size_t c) const { return program_.cells[c]; }
  [[nodiscard]] static std::size_t index_of(int number) { return static_cast<std::size_t>(number); }
  [[nodiscard]] std::size_t rank_of(std::size_t c) const { return index_of(cell(c).rank); }
  [[nodiscard]] bool crosses(int to) const {
    return to != Cell::none && rank_of(index_of(to)) != rank_;
  }
  [[nodiscard]] std::uint32_t times_given(std::size_t signal) const { return given_[signal]; }
  [[nodiscard]] std::uint32_t now() const { return static_cast<std::uint32_t>(index_) + 1; }
  [[nodiscard]] bool knows(std::size_t rank, std::uint32_t instructions) const {
    return rank == rank_ || known_[rank_ * program_.ranks.size() + rank] >= instructions;
  }

  // --- before

  /// All indices lie within what they are indices of.
  [[gnu::cold]] void require_numbers() {
    auto const& cells = program_.cells;
    auto const ranks = program_.ranks.size();
    for (std::size_t r = 0; r < ranks; ++r) {
      auto const& rank = program_.ranks[r];
      std::size_t const own = rank.beside < 0 ? r : index_of(rank.beside);
      std::size_t waits = 0;
      for (std::size_t i = 0; i < rank.code.size(); ++i) {
        Instruction const& in = rank.code[i];
        at(r, i);
        require(in.gives <= in.give.size(), "gives too many signals");
        for (std::size_t g = 0; g < in.gives; ++g)
          require(in.give[g] < program_.signals.size() &&
                      program_.signals[in.give[g]].giver == cell_rank(r),
                  "gives signal ", in.give[g], ", which is not its own");
        waits += in.waits;
        require(waits <= rank.waits.size(), "has more waits than there are");
        for (std::size_t w = waits - in.waits; w < waits; ++w) {
          std::size_t const signal = rank.waits[w].signal;
          require(rank.waits[w].count != 0, "waits for signal ", signal, " to be given 0 times");
          require(signal < program_.signals.size(), "waits for signal ", signal,
                  ", which does not exist");
          int const taker = program_.signals[signal].taker;
          require(taker == SignalEnds::everyone || taker == cell_rank(r), "waits for signal ",
                  signal, ", which is another's");
        }
        if (ends_step(in.op)) continue;
        require(
            in.cell < cells.size() && rank_of(in.cell) == own && cell(in.cell).stage == in.stage,
            "works on cell ", in.cell, " of stage ", in.stage, ", which it does not hold");
        require((in.op == Op::reduce) == (rank.beside >= 0), "is of the wrong kind for that");
        require(in.microbatch < units_, "works on microbatch ", in.microbatch, " of ", units_);
        require(!has_group(in.op) || (in.group < program_.groups.size() &&
                                      program_.groups[in.group].stage == in.stage),
                "works on gradient group ", in.group, ", which its stage does not have");
      }
      at(r, rank.code.size());
      require(waits == rank.waits.size(), "has ", rank.waits.size(), " waits, of which ", waits,
              " belong to instructions");
    }
  }
  [[nodiscard]] static int cell_rank(std::size_t rank) { return static_cast<int>(rank); }

  [[gnu::cold]] void prepare_slots() {
    auto const& cells = program_.cells;
    known_.resize(program_.ranks.size() * program_.ranks.size());
    places_ = FixedArray<CellSlots>(cells.size());
    std::size_t slots = 0;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      std::uint32_t const counts[spaces] = {cell(c).x_slots,  cell(c).kept_slots,
                                            cell(c).dy_slots, cell(c).inner_slots,
                                            cell(c).y_slots,  cell(c).dx_slots};
      for (std::size_t space = 0; space < spaces; ++space) {
        places_[c].first[space] = slots;
        slots += counts[space];
      }
    }
    slots_.resize(slots);
    slots = 0;
    for (std::size_t k = 0; k < program_.cuts.size(); ++k) {
      Cut const cut = program_.cuts[k];
      places_[cut.from].cuts_from.push_back(k);
      places_[cut.to].cuts_to.push_back(k);
      first_taken_.push_back(slots);
      first_taken_.push_back(slots += cell(cut.to).dx_slots);
      slots += cell(cut.from).y_slots;
    }
    taken_.resize(slots);
    given_.resize(program_.signals.size());
    awaited_.resize(program_.signals.size());
    first_give_.resize(program_.signals.size() + 1);
    for (auto const& rank : program_.ranks)
      for (Instruction const& in : rank.code)
        for (std::size_t g = 0; g < in.gives; ++g) ++first_give_[in.give[g] + 1U];
    for (std::size_t s = 0; s < program_.signals.size(); ++s) first_give_[s + 1] += first_give_[s];
    give_at_.resize(first_give_[program_.signals.size()]);
  }

  // --- signals

  void see(std::span<Wait const> waits) {
    for (Wait const& wait : waits) {
      std::size_t const s = wait.signal;
      awaited_[s] = std::max(awaited_[s], wait.count);
      auto& known = known_[rank_ * program_.ranks.size() + index_of(program_.signals[s].giver)];
      known = std::max(known, give_at_[first_give_[s] + wait.count - 1]);
    }
  }

  void note_gives(Instruction const& in) {
    for (std::size_t g = 0; g < in.gives; ++g) {
      std::size_t const s = in.give[g];
      give_at_[first_give_[s] + given_[s]++] = now();
      if (program_.signals[s].edge >= 0) require_announced(s, in);
    }
  }

  /// A value is announced by the instruction that makes it, or a `pass` behind it.
  void require_announced(std::size_t signal, Instruction const& in) const {
    std::size_t const edge = signal / signals_per_edge;
    bool const forward =
        static_cast<EdgeSignal>(signal % signals_per_edge) == EdgeSignal::forward_full;
    std::size_t giver = edge;
    std::size_t taker = edge;
    if (edge >= program_.cells.size()) {
      Cut const cut = program_.cuts[edge - program_.cells.size()];
      giver = forward ? cut.from : cut.to;
      taker = forward ? cut.to : cut.from;
    } else if (!forward) {
      giver = index_of(cell(edge).after);
    } else {
      taker = index_of(cell(edge).after);
    }
    require(in.cell == giver && given_[signal] == places_[giver].messages[forward ? 1 : 0],
            "announces a value to rank ", rank_of(taker),
            " that it has not just made, or announces it twice");
  }

  // --- slots

  [[nodiscard]] std::size_t slot_number(Space space, std::size_t c, std::size_t number) const {
    std::size_t const first = places_[c].first[space];
    std::size_t const end = space + 1 < spaces       ? places_[c].first[space + 1]
                            : c + 1 < places_.size() ? places_[c + 1].first[0]
                                                     : slots_.size();
    require(number < end - first, "uses slot ", number, " of ", words_of(space), ", of which cell ",
            c, " has ", end - first);
    return first + number;
  }
  [[nodiscard]] static char const* words_of(Space space) noexcept {
    constexpr char const* words[] = {"inputs",          "kept values",      "output gradients",
                                     "inner gradients", "gathered outputs", "gathered gradients"};
    return words[space];
  }

  [[nodiscard]] Slot& slot_at(Space space, std::size_t c, std::size_t number) {
    return slots_[slot_number(space, c, number)];
  }

  void read(Space space, std::size_t c, std::size_t number) {
    Slot& slot = slot_at(space, c, number);
    require_value(slot, space, number);
    slot.read = now();
  }
  void require_value(Slot const& slot, Space space, std::size_t number) const {
    require(slot.unit == in_->microbatch, "reads slot ", number, " of ", words_of(space),
            ", which then does not hold its value");
  }
  /// The message of the value in a slot has been waited for.
  void require_message(Slot const& slot, std::size_t edge, EdgeSignal full) const {
    require(awaited_[signal_of(edge, full)] > slot.number, "does not wait for the message of ",
            full == EdgeSignal::forward_full ? "its input" : "its gradient");
  }

  /// @param reader  the rank that read what lay there
  void write(Space space, std::size_t c, std::size_t number, std::size_t reader,
             std::uint32_t message = 0) {
    Slot& slot = slot_at(space, c, number);
    require(slot.unit == nothing || knows(reader, slot.read), "overwrites slot ", number, " of ",
            words_of(space), " of cell ", c, " while microbatch ", slot.unit, " may be read there");
    slot.unit = in_->microbatch;
    slot.number = message;
    slot.read = 0;
  }
  void write_own(Space space, std::size_t c, std::size_t number) { write(space, c, number, rank_); }

  /// Counts a message, and requires that the one before it was announced.
  /// @param whole  or more of it follows
  /// @return its number
  std::uint32_t count_message(std::size_t c, bool forward, bool whole) {
    std::uint32_t const number = places_[c].messages[forward ? 1 : 0];
    EdgeSignal const full = forward ? EdgeSignal::forward_full : EdgeSignal::backward_full;
    int const next = forward ? cell(c).after : cell(c).before;
    if (crosses(next)) require_given(signal_of(forward ? c : index_of(next), full), number);
    for (std::size_t const k : forward ? places_[c].cuts_from : places_[c].cuts_to)
      require_given(signal_of(program_.cells.size() + k, full), number);
    if (whole) ++places_[c].messages[forward ? 1 : 0];
    return number;
  }
  void require_given(std::size_t signal, std::uint32_t times) const {
    require(given_[signal] == times, "makes the next value before the last one is announced");
  }

  /// Writes what others take rows of.
  void write_for_cuts(Space space, std::size_t c, std::size_t number, bool forward, bool whole) {
    for (std::size_t const k : forward ? places_[c].cuts_from : places_[c].cuts_to) {
      Cut const cut = program_.cuts[k];
      std::size_t const slot = slot_number(space, c, number) - places_[c].first[space];
      require(knows(rank_of(forward ? cut.to : cut.from),
                    taken_[first_taken_[2 * k + (forward ? 1 : 0)] + slot]),
              "overwrites slot ", number, " of ", words_of(space), " of cell ", c,
              " while rows of it may be taken");
    }
    write(space, c, number, rank_, count_message(c, forward, whole));
  }
  void read_from_cuts(std::size_t c, std::size_t number, bool forward) {
    auto const& cuts = forward ? places_[c].cuts_to : places_[c].cuts_from;
    require(!cuts.empty(), "has nobody to take rows from");
    for (std::size_t const k : cuts) {
      Cut const cut = program_.cuts[k];
      Space const space = forward ? space_y : space_dx;
      std::size_t const from = forward ? cut.from : cut.to;
      std::size_t const place = slot_number(space, from, number);
      require_value(slots_[place], space, number);
      if (rank_of(from) != rank_)
        require_message(slots_[place], program_.cells.size() + k,
                        forward ? EdgeSignal::forward_full : EdgeSignal::backward_full);
      taken_[first_taken_[2 * k + (forward ? 1 : 0)] + place - places_[from].first[space]] = now();
    }
  }

  [[gnu::cold]] void require_all_awaited() {
    for (std::size_t s = 0; s < given_.size(); ++s) {
      if (given_[s] == awaited_[s]) continue;
      at(index_of(program_.signals[s].giver), 0);
      refuse("gives signal ", s, " ", given_[s], " times in a step, of which ", awaited_[s],
             " are awaited");
    }
  }

  Program const& program_;
  std::size_t units_;     // microbatches, or their slices
  std::size_t rank_ = 0;  // of the instruction at hand
  std::size_t index_ = 0;
  Instruction const* in_ = nullptr;

 private:
  List<Slot> slots_;
  FixedArray<CellSlots> places_;         // [cells]
  List<std::uint32_t> known_;            // [ranks][ranks] instructions known to be ended
  List<std::uint32_t> given_, awaited_;  // [signals]
  List<std::size_t> first_give_;         // [signals + 1] into:
  List<std::uint32_t> give_at_;          // instructions that the giver has ended by then
  List<std::size_t> first_taken_;        // [cuts][backward, forward] into:
  List<std::uint32_t> taken_;            // instructions that the taker of rows has ended by then
};

}  // namespace stagger::detail
