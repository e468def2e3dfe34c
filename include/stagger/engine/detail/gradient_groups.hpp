// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Gradient groups: parts of a stage's last backward, and what adds up gradients of
///         replicated stages while others still run.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/engine/detail/gradient_group_part.hpp>
#include <stagger/engine/detail/grouping_decision.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/program/shared_checks.hpp>

namespace stagger::detail {

class GradientGroups final : public GradientGroupPart {
 public:
  /// @param whole  whether gradients are added up at each update of a stage, and none in groups
  explicit GradientGroups(bool whole) : whole_(whole) {}

  /// Divides the work at the end of a step: each holder of a stage updates its part of every layer,
  /// and adds up the squares of whole parameters, in proportion to its share of the bytes.
  [[gnu::cold]] void load(Machine& machine) override {
    if (parts_updated_.size() == 0)
      parts_updated_ = FixedArray<std::atomic<std::uint32_t>>(machine.model.stages());
    if (machine.run.program->groups.empty()) return;
    for (auto& end_of_step : machine.run.end_of_step) {
      end_of_step.add.clear();
      end_of_step.squares.clear();
      end_of_step.layers.clear();
    }
    each_stage(*machine.run.program, [&](int stage, IndexRange cells) {
      if (machine.run.program->cells[cells.first].alone) return;  // `apply` updates it
      std::size_t const holders = cells.size();
      auto const end_of_step = [&](std::size_t holder) -> EndOfStep& {
        return machine.run.end_of_step[machine.run.program->cells[cells.first + holder].rank];
      };
      IndexRange const layers = machine.model.layers_of(stage);
      std::size_t const total = 1 + machine.model.bytes_of(layers);
      std::size_t before = 0;
      for (std::size_t const l : layers) {
        auto const& parameters = machine.model.parameters[l];
        for (std::size_t holder = 0; holder < holders; ++holder)
          end_of_step(holder).layers.push_back({l, parameters.part(holder, holders)});
        for (std::size_t p = 0; p < parameters.count(); ++p) {
          if (!machine.model.counted(l)) break;
          std::size_t const bytes = parameters.value_bytes(p);
          bool const in_parts = machine.model.shards_on_host();
          for (std::size_t holder = 0; in_parts && holder < holders; ++holder) {
            ByteRange const part = parameters.part(holder, holders);
            if (parameters.overlaps(p, part)) end_of_step(holder).squares.push_back({l, p, part});
          }
          if (!in_parts)
            end_of_step((before + bytes / 2) * holders / total).squares.push_back({l, p});
          before += bytes;
        }
      }
    });
  }

  void begin_step(Machine& machine) override {
    for (auto& parts : parts_updated_) parts.store(0, std::memory_order_relaxed);
    if (!whole_) GroupingDecision::begin_step(machine);
  }
  void end_step(Machine& machine, std::exception_ptr const& why) override {
    if (!why && !whole_) GroupingDecision::end_step(machine);
  }
  [[nodiscard]] List<GradientGroup> const* groups(Machine& machine) override {
    return whole_ ? nullptr : GroupingDecision::current_groups(machine);
  }

  /// Carries out a part of a last backward, a sum of gradients, or a part of an update.
  bool execute(Machine& machine, RankState& rank, Instruction const& in,
               Clock const& clock) override {
    if (in.updates_part()) return update_part(machine, rank, in), true;
    if (!has_group(in.op)) return false;
    IndexRange const layers = machine.model.layers_of(machine.run.program->groups[in.group]);
    std::size_t const first = machine.model.layers_of(in.stage).first;
    double const start_s = clock();
    if (computes_part(in.op))
      run_backward_part(rank, machine.run.cells[in.cell], in, layers.first - first,
                        layers.last - first);
    if (computes_part(in.op) && machine.traffic.uneven()) machine.traffic.made(rank, in);
    for (std::size_t l = layers.last; reduces(in.op) && l-- > layers.first;)
      add_up(machine.model.parameters[l], machine.run.storage[in.stage], l - first, in);
    if (clock.read != nullptr) note(machine, rank, in, start_s, clock());
    return true;
  }

  /// Adds up a part of layer `i` of a stage, in the order of owners. If an owner's gradients lie
  /// where the sum will be, those before it are added up where the first one's are, and then to it:
  /// a + b has the bits of b + a.
  static void add_up(LayerParameters& sum, List<CellStorage> const& owners, std::size_t i,
                     Instruction const& in) {
    ByteRange const part = sum.part(in.part(), in.parts());
    auto const lies_there = [](GradientCopy const& copy) {
      return copy.kept().of == KeptGradients::Of::first;
    };
    GradientCopy const* to = nullptr;
    for (std::size_t o = 1; o < owners.size(); ++o)
      if (lies_there(owners[o].copies[i])) to = &owners[o].copies[i];
    std::array<GradientCopy const*, LayerParameters::most_copies> copies;
    std::size_t count = 0;
    auto const add = [&] { sum.add({copies.data(), std::exchange(count, 0)}, part, to); };
    for (unsigned o = 1; o < in.parts(); ++o) {
      GradientCopy const& copy = owners[o].copies[i];
      if (lies_there(copy)) {
        add();
        to = nullptr;
      }
      if (count == copies.size()) add();
      copies[count++] = &copy;
    }
    add();
  }

  /// Adds up a part of each layer of a stage, and updates it. All ranks that hold the stage do so
  /// at the same time, between two signals of each.
  void update_part(Machine& machine, RankState& rank, Instruction const& in) {
    IndexRange const layers = machine.model.layers_of(in.stage);
    auto& owners = machine.run.storage[in.stage];
    for (std::size_t l = layers.last; l-- > layers.first;)
      add_up(machine.model.parameters[l], owners, l - layers.first, in);
    bool const drops = !StepEnd{machine.model, machine.run}.finite(layers, rank.number, &in);
    UpdateStep step = machine.model.update_step(in, machine.program().counted_updates());
    for (std::size_t const l : layers) {
      LayerParameters& layer = machine.model.parameters[l];
      step.range = layer.part(in.part(), in.parts());
      machine.gradients_complete({l, l + 1}, step.range);
      machine.model.apply(layer, step, drops);
      for (std::size_t o = 1; o < in.parts(); ++o)
        owners[o].copies[l - layers.first].zero(step.range);
    }
    // The last one forgets which parameters have gradients: all others have asked.
    std::atomic<std::uint32_t>& updated = parts_updated_[in.stage];
    if (updated.fetch_add(1, std::memory_order_acq_rel) + 1 != in.parts()) return;
    updated.store(0, std::memory_order_relaxed);
    for (std::size_t const l : layers) machine.model.parameters[l].clear_added();
  }

  /// Records when a part of a last backward, or a sum, ran, for the choice of groups and the
  /// timeline.
  void note(Machine& machine, RankState& rank, Instruction const& in, double start_s,
            double end_s) override {
    GradientGroup const& group = machine.run.program->groups[in.group];
    bool const whole =
        machine.model.layers_of(group).last == machine.model.layers_of(in.stage).last;
    GroupingRun& run = machine.run.grouping_run;
    bool const first = is_first_holder(machine.run.program->cells, in.cell);
    if (run.taking && run.warmed_up && first) {
      std::size_t const at = run.steps * run.groups.size() + in.group;
      (reduces(in.op) ? run.sum_s : run.backward_s)[at] = end_s - start_s;
    }
    if (!rank.record) return;
    schedule::Span span;
    span.start_s = start_s;
    span.end_s = end_s;
    span.action = action_of(in);
    if (reduces(in.op) || whole || !(rank.spans.back().action == span.action))
      rank.spans.push_back(span);
    else
      rank.spans.back().end_s =
          span.end_s;  // parts of a backward with nothing between count as one
    if (computes_part(in.op) && group.lowest == 0 && rank.cells[in.cell].opens) --rank.in_flight;
  }

 private:
  bool whole_;
  FixedArray<std::atomic<std::uint32_t>> parts_updated_;  // [stages] of the current update
};

/// What adds gradient groups to a pipeline.
class GradientGroupPolicy : public PolicyPart {
 public:
  [[nodiscard]] SharedPasses const* passes() const noexcept override { return &shared_passes; }
  [[gnu::cold]] void extend(Machine& machine, Setup const& setup) const override {
    if (machine.gradient_groups() == nullptr)
      machine.set_gradient_groups(
          &machine.add(std::make_unique<GradientGroups>(static_cast<bool>(setup.staleness))));
  }
};

template <class> std::shared_ptr<PolicyPart const> gradient_group_policy() {
  return std::make_shared<GradientGroupPolicy>();
}

}  // namespace stagger::detail
