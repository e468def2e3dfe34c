// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A machine whose ranks lie in memories apart from each other: each end of an edge has
/// slots of its own, and parameters lie where they are used.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::detail {

/// The machine's side of a back end with several memories. What goes from one to another is its
/// own: it asks here where that lies.
struct Islands {
  Machine& machine;

  [[nodiscard]] Program const& program() const noexcept { return *machine.program_; }
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

  /// Slots of the giver's own for the edge behind a cell.
  struct OwnSlots {
    Slots y;   // outputs on their way to the next stage
    Slots dx;  // gradients on their way back, of the next stage's input
  };

  /// Parts the ends of the edge behind a cell. Allocates only what earlier programs did not need.
  [[gnu::cold]] void part(std::size_t cell, OwnSlots& own) const {
    auto& giver = machine.cells_[cell].layers.back();
    SlotType const& type = *giver.ops->output;
    Machine::grow(own.y, type, program().cells[after(cell)].x_slots);
    giver.y = Machine::places(own.y, type);
    if (!program().training) return;
    Machine::grow(own.dx, type, program().cells[cell].dy_slots);
    machine.cells_[after(cell)].dx = Machine::places(own.dx, type);
  }

  [[nodiscard]] SlotType const& type_behind(std::size_t cell) const noexcept {
    return *machine.cells_[cell].layers.back().ops->output;
  }
  /// Where the giver of a value writes it, and where its taker reads it.
  [[nodiscard]] void* given(std::size_t cell, bool forward, std::size_t slot) const noexcept {
    return forward ? machine.cells_[cell].layers.back().y[slot]
                   : machine.cells_[after(cell)].dx[slot];
  }
  [[nodiscard]] void* taken(std::size_t cell, bool forward, std::size_t slot) const noexcept {
    return forward ? machine.cells_[after(cell)].x[slot]
                   : machine.cells_[cell].layers.back().dy[slot];
  }

  /// Moves the parameters of a cell, first owners first.
  /// @param memory  of the cell's rank
  /// @param home    of the stage's values, unless the cell has its own
  [[gnu::cold]] void settle(std::size_t cell, ParameterMemory const* memory,
                            ParameterMemory const* home) const {
    each_layer(cell, [&](std::size_t l, LayerParameters::Share* share) {
      machine.parameters_[l].move_to(home);
      if (share != nullptr) share->move_to(machine.parameters_[l], memory);
    });
  }

  /// Visits the layers of a cell: number, and the share of an owner who is not the first.
  template <class Visit> void each_layer(std::size_t cell, Visit visit) const {
    std::size_t const owner = cell - first_owner(cell);
    auto const stage = static_cast<std::size_t>(program().cells[cell].stage);
    auto* storage = &machine.storage_[stage];
    for (std::size_t o = owner; o != 0; --o) storage = storage->next.get();
    for (std::size_t l = machine.first_layer_[stage]; l < machine.first_layer_[stage + 1]; ++l)
      visit(l, owner == 0 ? nullptr : &storage->shares[l - machine.first_layer_[stage]]);
  }
  [[nodiscard]] LayerParameters& parameters(std::size_t layer) const noexcept {
    return machine.parameters_[layer];
  }

  /// What a rank does once the gradients of all owners of its stages are there.
  /// @param sums  [parameters] of squares, in the rank's memory; null: nobody clips
  void finish(std::size_t rank, double* sums) const {
    auto const& duties = machine.duties_[rank];
    for (auto const& addition : duties.add) addition.to->add(*addition.from);
    if (sums == nullptr) return;
    for (auto const& one : duties.squares) {
      std::size_t before = 0;
      for (std::size_t l = 0; l < one.layer; ++l) before += machine.parameters_[l].count();
      machine.parameters_[one.layer].sum_squares(one.parameter, sums + before);
    }
  }

  /// Brings back what a failed step has changed of a rank's parameters.
  [[gnu::cold]] void undo(std::size_t rank) const {
    if (!program().training) return;
    for (std::size_t c = 0; c < program().cells.size(); ++c) {
      if (rank_of(c) != rank) continue;
      each_layer(c, [&](std::size_t l, LayerParameters::Share* share) {
        if (share != nullptr) return share->zero();
        machine.parameters_[l].zero_gradients();
        if (!program().flushes) machine.parameters_[l].restore();
      });
    }
  }
};

}  // namespace stagger::detail
