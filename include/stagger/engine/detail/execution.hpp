// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The execution of the loaded program: values in slots, the stages on their ranks, and the
///         work of each rank at the end of a step.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/model_state.hpp>
#include <stagger/engine/detail/rank.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/engine/replica_ops.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

struct LayerStorage {
  Slots y, saved, dy;
};
/// The memory of one owner of a stage.
struct CellStorage {
  List<Layer> layer_copies;         // of every owner but the first
  FixedArray<GradientCopy> copies;  // likewise
  FixedArray<LayerStorage> layers;
  Slots x;  // of the first stage: one object for its input's gradient, which is not read
  Slots repeated_output;
  Slots dx;  // if the stage before gathers it
};
struct Addition {
  LayerParameters* to;
  GradientCopy const* from;
};
/// Parameters of a layer, or a part of them.
struct LayerPart {
  std::size_t layer = 0;
  ByteRange range;
};
struct Square {
  std::size_t layer = 0;
  std::size_t parameter = 0;
  ByteRange range = {};  // part of the layer, if other ranks add up the rest
};
/// What a rank does at the end of a step.
struct EndOfStep {
  List<Addition> add;      // in the order of owners
  List<Square> squares;    // the gradients whose squares it adds up
  List<LayerPart> layers;  // the layers that it updates
  List<GradientCopy*> clear;
  bool updated = false;  // it has updated them, and their former values are saved
};

inline Places places(Slots const& slots, SlotType const& type) {
  return {static_cast<std::byte*>(slots.count() == 0 ? nullptr : slots[0]), type.stride};
}

struct Execution {
  explicit Execution(ModelState const& model) : storage(model.stages()) {
    for (int s = 0; std::cmp_less(s, storage.size()); ++s) storage_of(model, s, 0);
  }

  /// Makes the slots of a program and points every rank at them. Allocates only what earlier
  /// programs did not need.
  [[gnu::cold]] void load(ModelState& model, Program const& next) {
    program = &next;
    // Checked one by one, since an earlier load may have run out of memory between them.
    if (ranks.size() != next.ranks.size()) ranks = FixedArray<RankState>(next.ranks.size());
    if (end_of_step.size() != ranks.size()) end_of_step = FixedArray<EndOfStep>(ranks.size());
    for (auto& of : end_of_step) {
      of.add.clear();
      of.layers.clear();
      of.squares.clear();
      of.clear.clear();
    }
    if (cells.size() != next.cells.size()) cells = FixedArray<StageRun>(next.cells.size());
    std::size_t owner = 0;  // number among the owners of a stage
    for (std::size_t c = 0; c < cells.size(); ++c) {
      owner = is_first_holder(next.cells, c) ? 0 : owner + 1;
      make_cell(model, next.cells[c], owner, cells[c]);
      cells[c].front = &cells[c].layers.front();
      cells[c].back = &cells[c].layers.back();
    }
    for (std::size_t c = 0; c < cells.size(); ++c) {
      int const before = next.cells[c].before;
      if (before == Cell::none) continue;
      auto& producer = cells[before].layers.back();
      producer.y = cells[c].x;
      cells[c].dx = producer.dy;
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      auto& rank = ranks[r];
      rank.number = static_cast<int>(r);
      rank.cells = cells.data();
      rank.begin = next.ranks[r].code.data();
      rank.end = rank.begin + next.ranks[r].code.size();
      if (model.options.record) rank.spans.reserve(next.ranks[r].code.size());
    }
  }

  /// The copy that has an owner's gradients of layer `i` of a stage; null: they are in the memory
  /// of the sums.
  template <std::integral I>
  [[nodiscard]] GradientCopy const* copy_of(I stage, std::size_t owner, std::size_t i) const {
    for (std::size_t o = 1; o < storage[stage].size(); ++o) {
      GradientCopy const& copy = storage[stage][o].copies[i];
      if (owner == (copy.kept().of == KeptGradients::Of::first ? 0 : o)) return &copy;
    }
    return nullptr;
  }

  /// Takes over what the caller has written into copies of parameters.
  [[gnu::cold]] void take_back(ModelState& model) {
    if (model.grouped != nullptr) model.grouped->ops->put_back(model);
    for (auto& layer : model.parameters) layer.take_back();
    for (std::size_t s = 0; s < storage.size(); ++s)
      for (auto& owner : storage[s])
        for (std::size_t i = 0; i < owner.copies.size(); ++i)
          owner.copies[i].take_values(model.parameters[model.first_layer[s] + i].stored());
  }

  /// Calls `visit(parameters)` for each layer that the program updates before all ranks have
  /// finished.
  template <class Visit> void each_updated_early(ModelState& model, Visit visit) const {
    for (Cell const& cell : program->cells)
      for (std::size_t const l : model.layers_of(cell.stage))
        if (program->training && (cell.alone || !program->flushes)) visit(model.parameters[l]);
  }

  [[gnu::cold]] void zero_gradients(ModelState& model) noexcept {
    for (auto& layer : model.parameters) layer.zero_gradients();
    for (auto& owners : storage)
      for (auto& owner : owners)
        for (auto& copy : owner.copies) copy.zero();
  }

  /// The factor that scales all gradients down to Options::clip_norm, once each rank has finished.
  /// @param rank  that asks
  [[nodiscard]] double gradient_scale(ModelState const& model, int rank) noexcept {
    if (!model.options.clip_norm || model.memory != nullptr) return 1;
    double const norm = model.gradient_norm();
    if (rank == reporter) gradient_norm = norm;
    return norm > *model.options.clip_norm ? *model.options.clip_norm / norm : 1;
  }

  /// Adds the memory of values and contexts.
  [[gnu::cold]] void add_memory(Memory& memory) const {
    for (auto const& owners : storage)
      for (auto const& owner : owners) {
        for (auto const& copy : owner.copies)
          (copy.kept().arrive() ? memory.scratch : memory.parameters) += copy.bytes();
        memory.activations += owner.x.bytes() + owner.repeated_output.bytes();
        for (auto const& layer : owner.layers) {
          memory.activations += layer.y.bytes() + layer.saved.bytes();
          memory.gradients += layer.dy.bytes();
        }
        memory.gradients += owner.dx.bytes();
      }
    for (auto const& rank : ranks) memory.scratch += rank.context.scratch_bytes();
  }

  FixedArray<List<CellStorage>> storage;  // [stages][owners]
  Program const* program = nullptr;
  FixedArray<RankState> ranks;
  FixedArray<StageRun> cells;         // of the program
  FixedArray<EndOfStep> end_of_step;  // [ranks]
  ReplicaRun* replica_run = nullptr;
  GroupingRun grouping_run;
  GroupingChoice grouping;
  GroupingPeers grouping_peers;
  StepArguments arguments;
  double gradient_norm = 0;
  int reporter = 0;  // the rank that writes it

 private:
  /// The memory of an owner of a stage, made unless an earlier program needed it.
  [[gnu::cold]] CellStorage& storage_of(ModelState const& model, int stage, std::size_t owner) {
    auto& owners = storage[stage];
    IndexRange const layers = model.layers_of(stage);
    while (owners.size() <= owner) {
      CellStorage made;
      made.layers = FixedArray<LayerStorage>(layers.size());
      if (!owners.empty()) made.copies = FixedArray<GradientCopy>(layers.size());
      for (std::size_t i = 0; i < made.copies.size(); ++i) {
        made.layer_copies.push_back(model.layers[layers.first + i]);
        auto const& parameters = model.parameters[layers.first + i];
        made.copies[i].of(parameters, parameters.views(), parameters.stored());
      }
      owners.push_back(std::move(made));
    }
    return owners[owner];
  }

  [[gnu::cold]] void make_cell(ModelState& model, Cell const& need, std::size_t owner,
                               StageRun& cell) {
    CellStorage& own = storage_of(model, need.stage, owner);
    cell.layers.clear();
    cell.repeated_output = nullptr;
    EndOfStep& at_end = end_of_step[need.rank];
    cell.first = need.first();
    cell.last = need.last();
    cell.opens = need.opens;
    for (std::size_t i = 0; i < own.layers.size(); ++i) {
      std::size_t const l = model.layers_of(need.stage).first + i;
      LayerStorage& values = own.layers[i];
      LayerRun run;
      run.object = owner == 0 ? model.layers[l].object() : own.layer_copies[i].object();
      run.ops = &model.layers[l].ops();
      if (owner == 0) model.parameters[l].reserve_versions(need.versions);
      run.parameter_count = model.parameters[l].count();
      run.parameters = owner == 0 ? model.parameters[l].views() : own.copies[i].views();
      run.number = model.number(l);
      bool const final_layer = i + 1 == own.layers.size();
      values.saved.provide(*run.ops->saved, need.kept_slots);
      if (!final_layer || cell.last)
        values.y.provide(*run.ops->output, need.kept_slots);
      else
        values.y.provide(*run.ops->output, need.y_slots);  // 0 if their reader has the slots
      values.dy.provide(*run.ops->output, final_layer ? need.dy_slots : need.inner_slots);
      if (final_layer && !cell.last && model.options.recompute)
        own.repeated_output.provide(*run.ops->output, 1);
      run.y = places(values.y, *run.ops->output);
      run.saved = places(values.saved, *run.ops->saved);
      run.dy = places(values.dy, *run.ops->output);
      cell.layers.push_back(run);
      if (need.alone) continue;  // `apply` updates it
      if (owner == 0) {
        for (std::size_t p = 0; model.counted(l) && p < model.parameters[l].count(); ++p)
          at_end.squares.push_back({l, p});
        at_end.layers.push_back({l, {}});
      } else {
        at_end.clear.push_back(&own.copies[i]);
        end_of_step[program->cells[cells_of(*program, need.stage).first].rank].add.push_back(
            {&model.parameters[l], &own.copies[i]});
      }
    }
    SlotType const& input = *cell.layers.front().ops->input;
    own.x.provide(input, cell.first ? 1 : need.x_slots);
    (cell.first ? cell.dx : cell.x) = places(own.x, input);
    if (need.gathers_input) {
      own.dx.provide(input, need.dx_slots);
      cell.dx = places(own.dx, input);
    }
    if (own.repeated_output.count() != 0) cell.repeated_output = own.repeated_output[0];
  }
};

}  // namespace stagger::detail
