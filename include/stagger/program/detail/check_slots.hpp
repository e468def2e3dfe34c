// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check of slots: whether they may be read and overwritten.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_state.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// Plays the reads and writes of slots, and the messages that announce what was written. A rank has
/// a message only if it has waited for precisely that message, since the message may still be in
/// transit when its sender is known to have gone on. Where cells take rows of values, RowCheck
/// (shared_checks.hpp) replaces it.
class SlotCheck {
 public:
  /// @param recompute  whether F keeps nothing, and runs again before its backward
  [[gnu::cold]] SlotCheck(CheckState const& state, bool recompute)
      : state_(state),
        recompute_(recompute),
        made_(2 * state.program.cells.size()),
        first_slot_(spaces * state.program.cells.size() + 1) {
    std::uint32_t* next = first_slot_.data();
    for (Cell const& cell : state.program.cells) {
      std::uint32_t const counts[spaces] = {cell.x_slots,     cell.kept_slots, cell.dy_slots,
                                            cell.inner_slots, cell.y_slots,    cell.dx_slots};
      for (std::uint32_t const count : counts) {
        next[1] = next[0] + count;
        ++next;
      }
    }
    slots_ = FixedArray<Slot>(first_slot_.back());
  }
  SlotCheck(SlotCheck const&) = delete;
  SlotCheck& operator=(SlotCheck const&) = delete;
  virtual ~SlotCheck() = default;

  [[gnu::cold]] void gather(Instruction const& in) {
    bool const forward = is_forward(in.op);
    if (!forward || cell(in.cell).depth != 0) read_rows(in.cell, forward ? in.y : in.dx, forward);
    write_own(forward ? space_x : space_dy, in.cell, forward ? in.x : in.dy);
  }

  [[gnu::cold]] void read_input(Instruction const& in) {
    Cell const& own = cell(in.cell);
    if (own.first()) return;
    Slot const& slot = read(space_x, in.cell, in.x);
    if (crosses(own.before)) require_message(slot, own.before, EdgeSignal::forward_full);
  }

  [[gnu::cold]] void keep(Instruction const& in) {
    Slot& slot = write_own(space_kept, in.cell, in.kept);
    if (recompute_ && gives_output(in.op)) slot.unit = nothing;
  }
  [[gnu::cold]] void read_kept(Instruction const& in) { read(space_kept, in.cell, in.kept); }

  [[gnu::cold]] void write_output(Instruction const& in) {
    Cell const& own = cell(in.cell);
    if (own.after != Cell::none)
      write(space_x, own.after, in.y, cell(own.after).rank, count_message(in.cell, true, true));
    else if (own.gathers_gradient)
      write_for_rows(space_y, in.cell, in.y, true, true);
  }

  /// @param whole  whether the instruction is the last of those that make the gradient
  [[gnu::cold]] void write_gradients(Instruction const& in, bool whole) {
    Cell const& own = cell(in.cell);
    if (own.last()) write_own(space_dy, in.cell, in.dy);
    write_own(space_inner, in.cell, in.inner);
    if (own.before != Cell::none)
      write(space_dy, own.before, in.dx, cell(own.before).rank,
            count_message(in.cell, false, whole));
    else if (own.gathers_input && own.depth != 0)
      write_for_rows(space_dx, in.cell, in.dx, false, whole);
  }
  [[gnu::cold]] void read_gradients(Instruction const& in) {
    Slot const& slot = read(space_dy, in.cell, in.dy);
    if (crosses(cell(in.cell).after)) require_message(slot, in.cell, EdgeSignal::backward_full);
    read(space_inner, in.cell, in.inner);
  }

  /// A value is announced by the instruction that makes it, or a `pass` after it.
  [[gnu::cold]] void require_announced(std::size_t signal) const {
    std::size_t const edge = signal / signals_per_edge;
    bool const forward =
        static_cast<EdgeSignal>(signal % signals_per_edge) == EdgeSignal::forward_full;
    auto const& cells = state_.program.cells;
    std::size_t maker = edge;
    if (edge >= cells.size())
      maker = forward ? state_.program.row_edges[edge - cells.size()].from
                      : state_.program.row_edges[edge - cells.size()].to;
    else if (!forward)
      maker = static_cast<std::size_t>(cells[edge].after);
    if (state_.in->cell != maker || state_.given(signal) != made_[2 * maker + (forward ? 1 : 0)])
      state_.refuse("announces a value to rank ", state_.program.signals[signal].receiver,
                    " that it has not just made, or announces it twice");
  }

 protected:
  static constexpr std::uint32_t nothing = 0xffffffff;
  enum Space : int { space_x, space_kept, space_dy, space_inner, space_y, space_dx, spaces };
  [[nodiscard]] static char const* name_of(Space space) noexcept {
    constexpr char const* names[] = {"inputs",          "kept values",      "output gradients",
                                     "inner gradients", "gathered outputs", "gathered gradients"};
    return names[space];
  }

  /// A slot: it holds the value of one microbatch after another.
  struct Slot {
    std::uint32_t unit = nothing;  // microbatch whose value it holds
    std::uint32_t number = 0;      // number of the message over its edge
    std::uint32_t read = 0;        // instructions that its reader will have ended then; 0: none
  };

  [[nodiscard]] Cell const& cell(int c) const { return state_.program.cells[c]; }
  [[nodiscard]] bool crosses(int to) const {
    return to != Cell::none && cell(to).rank != state_.rank;
  }

  [[nodiscard]] Slot& slot_at(Space space, int c, std::size_t number) {
    std::uint32_t const* const first = &first_slot_[spaces * c + space];
    if (number >= first[1] - first[0]) [[unlikely]]
      state_.refuse("uses slot ", number, " of ", name_of(space), ", of which cell ", c, " has ",
                    first[1] - first[0]);
    return slots_[first[0] + number];
  }

  void require_value(Slot const& slot, Space space, std::size_t number) const {
    if (slot.unit != state_.in->microbatch) [[unlikely]]
      state_.refuse("reads slot ", number, " of ", name_of(space),
                    ", which then does not hold its value");
  }
  Slot const& read(Space space, int c, std::size_t number) {
    Slot& slot = slot_at(space, c, number);
    require_value(slot, space, number);
    slot.read = state_.now();
    return slot;
  }
  /// Requires that the rank has waited for the message with the value in a slot.
  void require_message(Slot const& slot, std::integral auto edge, EdgeSignal full) const {
    if (state_.awaited(signal_of(edge, full)) <= slot.number) [[unlikely]]
      state_.refuse("does not wait for the message of ",
                    full == EdgeSignal::forward_full ? "its input" : "its gradient");
  }

  /// @param reader  the rank that read what lay there
  [[gnu::cold]] Slot& write(Space space, int c, std::size_t number, int reader,
                            std::uint32_t message = 0) {
    Slot& slot = slot_at(space, c, number);
    if (slot.unit != nothing && !state_.knows(reader, slot.read)) [[unlikely]]
      state_.refuse("overwrites slot ", number, " of ", name_of(space), " of cell ", c,
                    " while microbatch ", slot.unit, " may be read there");
    slot = {state_.in->microbatch, message, 0};
    return slot;
  }
  [[gnu::cold]] Slot& write_own(Space space, int c, std::size_t number) {
    return write(space, c, number, state_.rank);
  }

  void require_given(std::integral auto edge, bool forward, std::uint32_t messages) const {
    EdgeSignal const full = forward ? EdgeSignal::forward_full : EdgeSignal::backward_full;
    if (state_.given(signal_of(edge, full)) != messages) [[unlikely]]
      state_.refuse("makes the next value before the last one is announced");
  }
  /// Counts a message, and requires that the one before it was announced.
  /// @return its number
  [[gnu::cold]] std::uint32_t count_message(int c, bool forward, bool whole) {
    std::uint32_t& made = made_[2 * c + (forward ? 1 : 0)];
    std::uint32_t const number = made;
    int const next = forward ? cell(c).after : cell(c).before;
    if (crosses(next)) require_given(forward ? c : next, forward, number);
    require_rows_given(c, forward, number);
    if (whole) ++made;
    return number;
  }

  /// Writes a value of which other cells take rows.
  virtual void write_for_rows(Space, int, std::size_t, [[maybe_unused]] bool forward,
                              [[maybe_unused]] bool whole) {
    state_.refuse("makes a value of which nobody takes rows");
  }
  virtual void read_rows(int, std::size_t, [[maybe_unused]] bool forward) {
    state_.refuse("gathers rows, although no rank sends it any");
  }
  /// Requires that this many values were announced to the cells that take rows of them.
  virtual void require_rows_given(int, [[maybe_unused]] bool forward,
                                  [[maybe_unused]] std::uint32_t messages) const {}

  CheckState const& state_;

 private:
  bool recompute_;
  List<std::uint32_t> made_;        // [cells][backward, forward] values for other cells
  List<std::uint32_t> first_slot_;  // [cells][spaces] into:
  FixedArray<Slot> slots_;
};

}  // namespace stagger::detail
