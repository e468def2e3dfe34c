// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The state of a machine whose ranks have separate memories: each end of an edge has slots
///         of its own, and parameters lie where they are used.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_ops.hpp>

namespace stagger::detail {

/// The machine's side of a back end with several memories. The back end moves values from one
/// memory to another, and asks here where they lie.
struct DistributedState {
  Machine& machine;

  [[nodiscard]] Program const& program() const noexcept { return *machine.run.program; }
  [[nodiscard]] std::size_t rank_of(std::size_t cell) const noexcept {
    return static_cast<std::size_t>(program().cells[cell].rank);
  }
  [[nodiscard]] std::size_t after(std::size_t cell) const noexcept {
    return static_cast<std::size_t>(program().cells[cell].after);
  }
  /// The cell of the first owner of the same stage, who adds up gradients and updates.
  [[nodiscard]] std::size_t first_owner(std::size_t cell) const noexcept {
    while (cell > 0 && program().cells[cell - 1].stage == program().cells[cell].stage) --cell;
    return cell;
  }

  /// The sender's slots for the edge after a cell, separate from those of the receiver.
  struct OwnSlots {
    Slots y;   // outputs for the next stage
    Slots dx;  // gradients of the next stage's input, returned by it
  };

  /// Gives both ends of the edge after a cell slots of their own. Allocates only what earlier
  /// programs did not need.
  [[gnu::cold]] void part(std::size_t cell, OwnSlots& own) const {
    auto& sender = machine.run.cells[cell].layers.back();
    SlotType const& type = *sender.ops->output;
    grow(own.y, type, program().cells[after(cell)].x_slots);
    sender.y = places(own.y, type);
    if (!program().training) return;
    grow(own.dx, type, program().cells[cell].dy_slots);
    machine.run.cells[after(cell)].dx = places(own.dx, type);
  }

  [[nodiscard]] SlotType const& type_behind(std::size_t cell) const noexcept {
    return *machine.run.cells[cell].layers.back().ops->output;
  }
  /// Where the sender of a value writes it, and where its receiver reads it.
  [[nodiscard]] void* given(std::size_t cell, bool forward, std::size_t slot) const noexcept {
    return forward ? machine.run.cells[cell].layers.back().y[slot]
                   : machine.run.cells[after(cell)].dx[slot];
  }
  [[nodiscard]] void* taken(std::size_t cell, bool forward, std::size_t slot) const noexcept {
    return forward ? machine.run.cells[after(cell)].x[slot]
                   : machine.run.cells[cell].layers.back().dy[slot];
  }

  // The slots of a row edge, between cells of differently replicated stages.

  /// Slots for the rows that are sent over it in one direction.
  struct OwnRows {
    Slots given;  // if the sender sends only some rows of a value
    Slots taken;
  };

  /// Gives each end of a row edge its own slots. Allocates only what earlier programs did not need.
  [[gnu::cold]] void part(RowEdge edge, bool forward, OwnRows& own) const {
    Cell const& from = program().cells[edge.from];
    Cell const& to = program().cells[edge.to];
    SlotType const& type = type_behind(edge.from);
    std::size_t const slots = forward ? from.y_slots : to.dx_slots;
    grow(own.given, type, slots);
    grow(own.taken, type, slots);
    std::size_t const receiver = forward ? edge.to : edge.from;
    std::size_t const sender = forward ? edge.from : edge.to;
    ReplicaRun& run = *machine.run.replica_run;
    for (RowSource& source : forward ? run.inputs : run.gradients)
      if (source.cell == receiver && source.maker == sender)
        source = {receiver, sender, places(own.taken, type), true};
  }
  /// How many rows of a microbatch are sent over it.
  [[nodiscard]] std::size_t rows_across(RowEdge edge, std::size_t microbatch) const noexcept {
    return rows_of(edge.from, microbatch).common(rows_of(edge.to, microbatch)).count();
  }
  /// What the sender sends: its value, or a copy of some rows, which is enqueued.
  [[nodiscard]] void* given(RowEdge edge, bool forward, std::size_t slot, std::size_t microbatch,
                            OwnRows const& own) const {
    void* const value =
        forward ? machine.run.cells[edge.from].back->y[slot] : machine.run.cells[edge.to].dx[slot];
    RowRange const rows = rows_of(forward ? edge.from : edge.to, microbatch);
    RowRange const both = rows.common(rows_of(forward ? edge.to : edge.from, microbatch));
    SlotType const& type = type_behind(edge.from);
    std::size_t const each = rows_for_each(type, value, rows.count());
    if (both.count() == rows.count() || each == 0) return value;
    take_rows(type, own.given[slot], value, rows, both, each);
    return own.given[slot];
  }
  [[nodiscard]] RowRange rows_of(std::size_t cell, std::size_t microbatch) const noexcept {
    return machine.run.replica_run->cells[cell].rows[microbatch];
  }

  /// From now on the owners of a stage, whose memories are separate, update their own values; each
  /// then has the sum of all gradients. The first one adds up squares.
  /// @param cell  of the first owner
  [[gnu::cold]] void update_apart(std::size_t first) const {
    int const stage = program().cells[first].stage;
    for (std::size_t c = first; c < program().cells.size() && program().cells[c].stage == stage;
         ++c)
      each_layer(c, [&](std::size_t l, GradientCopy* copy) {
        auto& end_of_step = machine.run.end_of_step[rank_of(c)];
        drop(end_of_step.layers, [&](auto const& one) { return one.layer == l; });
        drop(end_of_step.squares, [&](auto const& one) { return one.layer == l; });
        drop(end_of_step.clear, [&](auto const* one) { return one == copy; });
        if (copy != nullptr) return copy->hold_states(parameters(l).stored());
        end_of_step.layers.push_back({l, {}});
        for (std::size_t p = 0; p < machine.model.parameters[l].count(); ++p)
          end_of_step.squares.push_back({l, p});
      });
  }
  /// The update of an owner who is not the first.
  void update(std::size_t cell) const noexcept {
    each_layer(cell, [&](std::size_t l, GradientCopy* copy) {
      if (copy == nullptr) return;
      UpdateStep step;
      step.number = machine.model.steps + 1;
      step.copy = copy;
      machine.model.optimizer.update(machine.model.optimizer.optimizer, parameters(l), step);
    });
  }

  /// Moves the parameters of a cell, first owners first.
  /// @param memory  of the cell's rank
  /// @param owner   the memory of the owner that has the stage's values; a cell may have its own
  [[gnu::cold]] void settle(std::size_t cell, ParameterMemory const* memory,
                            ParameterMemory const* owner) const {
    each_layer(cell, [&](std::size_t l, GradientCopy* copy) {
      parameters(l).move_to(owner);
      if (copy != nullptr) copy->move_to(parameters(l), parameters(l).stored(), memory);
    });
  }

  /// Visits the layers of a cell with their number and, for an owner that is not the first, its
  /// copy.
  template <class Visit> void each_layer(std::size_t cell, Visit visit) const {
    std::size_t const owner = cell - first_owner(cell);
    int const stage = program().cells[cell].stage;
    IndexRange const layers = machine.model.layers_of(stage);
    for (std::size_t const l : layers)
      visit(l, owner == 0 ? nullptr : &machine.run.owned_by(stage, owner).copies[l - layers.first]);
  }
  [[nodiscard]] LayerParameters& parameters(std::size_t layer) const noexcept {
    return machine.model.parameters[layer];
  }

  template <class T, class Which> static void drop(List<T>& list, Which which) {
    List<T> kept;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (!which(list[i])) kept.push_back(list[i]);
    list = std::move(kept);
  }

  /// Restores the parameters of a rank that a failed step has changed.
  [[gnu::cold]] void undo(std::size_t rank) const {
    if (!program().training) return;
    for (std::size_t c = 0; c < program().cells.size(); ++c) {
      if (rank_of(c) != rank) continue;
      each_layer(c, [&](std::size_t l, GradientCopy* copy) {
        if (copy != nullptr) return copy->zero();
        machine.model.parameters[l].zero_gradients();
        if (!program().flushes) machine.model.parameters[l].restore();
      });
    }
  }
};

}  // namespace stagger::detail
