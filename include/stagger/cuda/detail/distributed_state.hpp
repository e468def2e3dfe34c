// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The state of a machine whose ranks have separate memories: parameters lie where they are
///         used, and owners of a stage update values of their own.

#include <cstddef>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::cuda::detail {

using stagger::detail::ByteRange;
using stagger::detail::each_stage;
using stagger::detail::GradientCopy;
using stagger::detail::Machine;
using stagger::detail::ParameterMemory;

/// The machine's side of a back end with several memories: its cells, and the parameters of their
/// owners.
struct DistributedState {
  Machine& machine;

  [[nodiscard]] Program const& program() const noexcept { return *machine.run.program; }
  [[nodiscard]] std::size_t rank_of(std::size_t cell) const noexcept {
    return static_cast<std::size_t>(program().cells[cell].rank);
  }
  [[nodiscard]] std::size_t after(std::size_t cell) const noexcept {
    return static_cast<std::size_t>(program().cells[cell].after);
  }
  /// Whether the program updates a cell's stage before all ranks have finished.
  [[nodiscard]] bool updates_early(std::size_t cell) const noexcept {
    return program().training && (!program().flushes || program().cells[cell].alone);
  }
  /// The cell of the first owner of the same stage, who adds up gradients and updates.
  [[nodiscard]] std::size_t first_owner(std::size_t cell) const noexcept {
    while (cell > 0 && program().cells[cell - 1].stage == program().cells[cell].stage) --cell;
    return cell;
  }

  /// Whether an update depends on the squares of all gradients.
  [[nodiscard]] bool adds_squares() const noexcept {
    auto const& options = machine.options();
    return options.clip_norm.has_value() || options.non_finite != NonFinite::ignore;
  }
  /// The part of a layer that a cell updates, if owners with separate memories share the optimizer's
  /// state out.
  [[nodiscard]] ByteRange part(std::size_t cell, std::size_t layer) const noexcept {
    if (!machine.shards()) return {};
    auto const owners = stagger::detail::cells_of(program(), program().cells[cell].stage);
    return parameters(layer).part(cell - owners.first, owners.size());
  }
  /// If the optimizer's state is shared out, gives a cell that of what it updates.
  /// @param apart  whether the owners of the stage form a replica group; else the first has all
  [[gnu::cold]] void hold_states(std::size_t cell, bool apart) const {
    each_layer(cell, [&](std::size_t l, GradientCopy* copy) {
      auto& layer = parameters(l);
      ByteRange const held = apart ? part(cell, l) : ByteRange{0, layer.bytes_of_values()};
      bool const own_memory = copy != nullptr && !copy->values().empty();
      if (!own_memory || apart)
        static_cast<void>(layer.hold_states(held, own_memory ? copy : nullptr));
    });
  }

  /// From now on the owners of a stage, whose memories are separate, update their own values, or a
  /// part of them; each then has the sums that it needs. The first one adds up squares.
  /// @param cells  of the stage
  [[gnu::cold]] void update_apart(IndexRange cells) const {
    for (std::size_t const c : cells)
      each_layer(c, [&](std::size_t l, GradientCopy* copy) {
        auto& end_of_step = machine.run.end_of_step[rank_of(c)];
        drop(end_of_step.layers, [&](auto const& one) { return one.layer == l; });
        drop(end_of_step.squares, [&](auto const& one) { return one.layer == l; });
        drop(end_of_step.clear, [&](auto const* one) { return one == copy; });
        if (copy != nullptr && !machine.shards()) copy->hold_states(parameters(l).stored());
        if (copy != nullptr) return;
        end_of_step.layers.push_back({l, part(c, l)});
        auto const count = machine.model.counted(l) ? machine.model.parameters[l].count() : 0;
        for (std::size_t p = 0; p < count; ++p) end_of_step.squares.push_back({l, p});
      });
  }
  /// Members of a group have the same losses, of which those of the first one count.
  /// @param losses  [replicas of the last stage][microbatches]
  void leave_out_uncounted(double* losses) const noexcept {
    auto const& parts = machine.options().replicas.parts();
    for (std::size_t r = 0; machine.run.replica_run != nullptr && r < parts.size(); ++r)
      for (int m = 0; !machine.run.replica_run->ranks[r].counts && m < program().microbatches; ++m)
        losses[parts[r].replica * program().microbatches + m] = 0;
  }
  /// The update of an owner who is not the first. The first one clears the gradients of what others
  /// update.
  void update(std::size_t cell) const noexcept {
    each_layer(cell, [&](std::size_t l, GradientCopy* copy) {
      stagger::detail::UpdateStep step;
      step.range = part(cell, l);
      if (copy == nullptr) {
        parameters(l).zero_gradients({0, step.range.first});
        return parameters(l).zero_gradients({step.range.last});
      }
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
    bool const hands_in = program().training && program().groups.empty();
    each_layer(cell, [&](std::size_t l, GradientCopy* copy) {
      parameters(l).move_to(owner);
      if (copy != nullptr) copy->move_to(parameters(l), parameters(l).stored(), memory, hands_in);
    });
  }

  /// Visits the layers of a cell with their number and, for an owner that is not the first, its
  /// copy.
  template <class Visit> void each_layer(std::size_t cell, Visit visit) const {
    std::size_t const owner = cell - first_owner(cell);
    int const stage = program().cells[cell].stage;
    IndexRange const layers = machine.model.layers_of(stage);
    for (std::size_t const l : layers)
      visit(l, owner == 0 ? nullptr : &machine.run.storage[stage][owner].copies[l - layers.first]);
  }
  [[nodiscard]] stagger::detail::LayerParameters& parameters(std::size_t layer) const noexcept {
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
        if (updates_early(c)) machine.model.parameters[l].restore();
      });
    }
  }
};

}  // namespace stagger::cuda::detail
