// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The memory of a pipeline, predicted from the slots of its program and the sizes of its
///         layers' values.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/alignment.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/model/context.hpp>
#include <stagger/parameters/layer_shape.hpp>
#include <stagger/program/program.hpp>

namespace stagger {

/// The memory of one layer's objects for a microbatch, in bytes.
struct LayerBytes {
  std::uint64_t input = 0;
  std::uint64_t input_gradient = 0;  ///< of the first layer, too, though nothing reads it
  std::uint64_t output = 0;
  std::uint64_t output_gradient = 0;
  std::uint64_t saved = 0;          ///< after its backward
  std::uint64_t saved_forward = 0;  ///< after its forward
  std::uint64_t scratch = 0;        ///< the most that forward or a whole backward take at once
  std::uint64_t parameters = 0;     ///< values; gradients and each state are as large
  /// [parameters] the first byte of each in the layer's values, from 0; only predicted_parameters
  /// asks, where the optimizer is not element_wise
  std::vector<std::size_t> first_bytes{};
};

/// The same of a model; measured by `Profiler::footprint` for microbatches of this many rows.
struct Footprint {
  std::uint64_t target = 0;  ///< that the loss compares with
  std::vector<LayerBytes> layers{};
};

namespace detail {

/// The most scratch memory that one action has taken. A context has one block for all of it once
/// the next action takes anything.
[[nodiscard]] inline std::uint64_t scratch_of(Context& used) {
  if (used.scratch_bytes() == 0) return 0;
  used.release_scratch();
  static_cast<void>(used.scratch<std::byte>(0));
  return used.scratch_bytes();
}

/// Counts the bytes of slots, each as large as its largest value.
class SlotBytes {
 public:
  explicit SlotBytes(std::uint32_t count) : bytes_(count) {}
  void use(std::size_t slot, std::uint64_t bytes) { bytes_[slot] = std::max(bytes_[slot], bytes); }
  [[nodiscard]] std::uint64_t sum() const noexcept {
    std::uint64_t sum = 0;
    for (std::uint64_t const b : bytes_) sum += b;
    return sum;
  }

 private:
  std::vector<std::uint64_t> bytes_;
};

[[nodiscard]] inline IndexRange layers_of(std::span<int const> cuts, int stage,
                                          std::size_t layers) {
  auto const s = static_cast<std::size_t>(stage);
  auto const end_of = [&](std::size_t i) { return static_cast<std::size_t>(cuts[i]); };
  return {s == 0 ? 0 : end_of(s - 1), s < cuts.size() ? end_of(s) : layers};
}

/// One cell of a training program, with `rows(microbatch)` of its own.
template <class RowsOf, class FootprintOf>
void add_cell(Memory& memory, std::uint64_t& scratch, Program const& program, std::size_t number,
              IndexRange layers, RowsOf&& rows, FootprintOf&& footprint) {
  auto const [first, end] = layers;
  Cell const& cell = program.cells[number];
  SlotBytes x(cell.first() ? 1 : cell.x_slots), y(cell.last() ? cell.kept_slots : cell.y_slots);
  SlotBytes dy(cell.dy_slots), dx(cell.gathers_input ? cell.dx_slots : 0), repeated(1);
  std::size_t const inner = end - first - 1;
  std::vector<SlotBytes> inner_y(inner, SlotBytes(cell.kept_slots));
  std::vector<SlotBytes> inner_dy(inner, SlotBytes(cell.inner_slots));
  std::vector<SlotBytes> saved(end - first, SlotBytes(cell.kept_slots));
  bool const recomputes =
      std::any_of(program.ranks[cell.rank].code.begin(), program.ranks[cell.rank].code.end(),
                  [](Instruction const& in) { return repeats(in.op); });
  for (Instruction const& in : program.ranks[cell.rank].code) {
    if (in.cell != number || !runs_layers(in.op)) continue;
    Footprint const& of = footprint(rows(in.microbatch));
    auto const layer = [&](std::size_t l) -> LayerBytes const& { return of.layers[l]; };
    for (std::size_t l = first; l < end; ++l) scratch = std::max(scratch, layer(l).scratch);
    if (is_forward(in.op)) {
      bool const again = repeats(in.op);
      if (!cell.first()) x.use(in.x, layer(first).input);
      for (std::size_t i = 0; i < inner; ++i) inner_y[i].use(in.kept, layer(first + i).output);
      for (std::size_t i = 0; i < saved.size(); ++i)
        saved[i].use(in.kept, recomputes && !again ? layer(first + i).saved_forward
                                                   : layer(first + i).saved);
      if (cell.last())
        y.use(in.kept, layer(end - 1).output);
      else if (again)
        repeated.use(0, layer(end - 1).output);
      else if (cell.y_slots != 0)
        y.use(in.y, layer(end - 1).output);
      continue;
    }
    if (!gives_input_gradient(in.op)) continue;
    dy.use(in.dy, layer(end - 1).output_gradient);
    for (std::size_t i = 0; i < inner; ++i)
      inner_dy[i].use(in.inner, layer(first + i).output_gradient);
    if (cell.first())
      x.use(0, layer(first).input_gradient);
    else if (cell.gathers_input)
      dx.use(cell.depth == 0 ? 0 : in.dx, layer(first).input_gradient);
  }
  memory.activations += x.sum() + y.sum() + repeated.sum();
  for (auto const& s : inner_y) memory.activations += s.sum();
  for (auto const& s : saved) memory.activations += s.sum();
  memory.gradients += dy.sum() + dx.sum();
  for (auto const& s : inner_dy) memory.gradients += s.sum();
}

}  // namespace detail

/// Predicts what `Trainer::memory` returns after two steps of a training program. It is exact to
/// the byte for stages that use the same memory in every step.
///
/// @code
///     Planned const run = planned(plan);
///     Program const program =
///         lay_out(run.schedule.table({.ranks = stages, .microbatches = run.microbatches}),
///                 {.recompute = run.options.recompute, .spare_slots = run.options.spare_slots,
///                  .replicas = &run.options.replicas});
///     Memory const memory = predicted_memory(program, run.cuts.first_layers,
///                                            optimizer::AdamW::states, rows, footprint);
/// @endcode
/// @param program    with a flush and whole backwards
/// @param cuts       [stages - 1] first layer of each stage after the first
/// @param states     of the optimizer, for each parameter
/// @param rows       [microbatches] of the model's input
/// @param footprint  Footprint const&(std::size_t rows)
/// @throws Error     bad_configuration for cuts or rows that do not fit the program
template <class FootprintOf>
[[nodiscard]] Memory predicted_memory(Program const& program, std::span<int const> cuts, int states,
                                      std::span<std::size_t const> rows, FootprintOf&& footprint) {
  if (std::cmp_not_equal(cuts.size() + 1, program.stages) ||
      std::cmp_not_equal(rows.size(), program.microbatches))
    raise(Errc::bad_configuration, cuts.size(), " cuts and ", rows.size(),
          " microbatches do not belong to a program of ", program.stages, " stages and ",
          program.microbatches, " microbatches; give those it was laid out for");
  Memory memory;
  std::vector<std::uint64_t> scratch(program.ranks.size());
  for (std::size_t c = 0; c < program.cells.size(); ++c) {
    Cell const& cell = program.cells[c];
    auto const rank = static_cast<std::size_t>(cell.rank);
    auto const own_rows = [&](std::size_t m) {
      return detail::rows_of(rows[m], cell.rows).count();
    };
    Footprint const& any = footprint(own_rows(0));
    IndexRange const layers = detail::layers_of(cuts, cell.stage, any.layers.size());
    bool const owner = is_first_holder(program.cells, c);
    auto const kept = static_cast<std::uint64_t>(states);
    // What is updated within a step is saved before it, and may have several versions.
    std::uint64_t const early = cell.alone ? kept + cell.versions : 0;
    for (std::size_t const l : layers) {  // further owners have their own gradients
      memory.parameters += any.layers[l].parameters * (owner ? 2 + kept + early : 1);
      memory.optimizer_state += owner ? any.layers[l].parameters * kept : 0;
    }
    detail::add_cell(memory, scratch[rank], program, c, layers, own_rows, footprint);
    if (!cell.gathers_target) continue;
    detail::SlotBytes target(1);  // its own rows
    for (Instruction const& in : program.ranks[rank].code)
      if (gives_output(in.op) && in.cell == c)
        target.use(0, footprint(own_rows(in.microbatch)).target);
    memory.activations += target.sum();
  }
  for (std::uint64_t const bytes : scratch) memory.scratch += bytes;
  return memory;
}

/// Predicts what one of several processes has for parameters: `Memory::parameters` and
/// `optimizer_state` of `Trainer::memory` there, and as `scratch` what arrives of other processes'
/// gradients: of each further owner of a layer the part that is added up there.
/// @param cuts    [stages - 1] first layer of each stage after the first
/// @param states  of the optimizer, for each parameter
/// @param ranks   that the process runs
/// Likewise the first two for one of several GPUs.
/// @param shards  AllReduce::shard_optimizer
/// @param element_wise  of the optimizer: whether ranks may share a parameter out
/// @param undoes  whether a failed step undoes updates of parts, as in processes; false on GPUs
[[nodiscard]] inline Memory predicted_parameters(Program const& program, std::span<int const> cuts,
                                                 int states, std::span<int const> ranks,
                                                 Footprint const& footprint, bool shards = false,
                                                 bool element_wise = true, bool undoes = true) {
  Memory memory;
  auto const part_of = [&](std::size_t l, std::size_t part, std::size_t parts) {
    LayerBytes const& of = footprint.layers[l];
    if (element_wise) return detail::LayerShape::part_of(of.parameters, part, parts);
    if (of.parameters != 0 && of.first_bytes.empty())
      raise(
          Errc::bad_configuration, "layer ", l, " of the footprint has ", of.parameters,
          " bytes of parameters, but LayerBytes::first_bytes does not say where each begins, which "
          "an optimizer that is not element_wise needs; let stagger::footprint make it");
    int turn = 0;
    for (std::size_t before = 0; before < l; ++before)
      turn += footprint.layers[before].first_bytes.empty() ? 0 : 1;
    return detail::LayerShape::part_of(of.first_bytes, of.parameters, turn, part, parts);
  };
  auto const kept = static_cast<std::uint64_t>(states);
  detail::each_stage(program, [&](int stage, IndexRange cells) {
    auto const is_here = [&](std::size_t c) {
      return std::find(ranks.begin(), ranks.end(), program.cells[c].rank) != ranks.end();
    };
    for (std::size_t const l : detail::layers_of(cuts, stage, footprint.layers.size())) {
      std::uint64_t const values = footprint.layers[l].parameters;
      std::uint64_t owners = 0;
      detail::ByteRange part{0, 0};
      for (std::size_t const c : cells) {
        if (!is_here(c)) continue;
        ++owners;
        part = part.with(part_of(l, c - cells.first, cells.size()));
      }
      if (owners == 0) continue;
      Cell const& cell = program.cells[cells.first];
      // What is updated within a step, or in parts, is saved before it.
      std::uint64_t const early = cell.alone ? (kept + cell.versions) * values : 0;
      std::uint64_t const updated = shards ? part.size() : values;
      memory.parameters += values * (1 + owners) + kept * updated + early;
      if (shards && undoes) memory.parameters += (1 + kept) * updated;
      memory.optimizer_state += kept * updated;
      // Without groups of gradients the first owner adds up all of them.
      std::uint64_t const added = !program.groups.empty() ? part.size()
                                  : is_here(cells.first)  ? values
                                                          : 0;
      memory.scratch += (cells.size() - owners) * added;
    }
  });
  return memory;
}

}  // namespace stagger
