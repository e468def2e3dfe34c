// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The costs of a pipeline's actions in virtual time.

#include <cstddef>
#include <cstdint>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/schedule/costs.hpp>

namespace stagger::sim::detail {

/// The costs that a device gives, for the instructions of a machine.
/// @tparam Device  VirtualClock, whose header includes this one
template <class Device> class ActionCosts {
 public:
  /// @throws Error  for costs and times that are negative, not finite or not one for each stage or
  ///                layer, or a jitter out of range
  [[gnu::cold]] ActionCosts(Device const& device, stagger::detail::Machine& machine)
      : device_(device), machine_(machine) {
    schedule::require_costs(device.costs, machine.model.table_stages());
    if (!(device.jitter >= 0 && device.jitter < 1))
      raise(Errc::bad_configuration, "a jitter of ", device.jitter,
            " could make time run backwards; use 0 <= jitter < 1");
    auto const layers = machine.model.model_layers();
    auto const& backward_s = device.layer_backward_s;
    if (!backward_s.empty() && backward_s.size() != layers)
      raise(Errc::bad_configuration, backward_s.size(), " backward times were given for ", layers,
            " layers; give one for each, or none");
    for (std::size_t l = 0; l < backward_s.size(); ++l)
      collective::detail::require_cost(text("layer_backward_s of layer ", l).c_str(),
                                       backward_s[l]);
    collective::detail::require_cost("sum.startup_s", device.sum.startup_s);
    collective::detail::require_cost("sum.per_byte_s", device.sum.per_byte_s);
    collective::detail::require_cost("exchange.startup_s", device.exchange.startup_s);
    collective::detail::require_cost("exchange.per_byte_s", device.exchange.per_byte_s);
  }

  /// Seconds of a message from stage `edge` of the program, or a section of it, to the next one.
  [[nodiscard]] double transfer_s(int edge) const {
    auto const* const grouped = machine_.model.grouped;
    if (grouped == nullptr) return device_.costs.of(edge).transfer_s;
    int const stage = grouped->stage_at[edge];
    return stage == grouped->stage_at[edge + 1] ? 0 : device_.costs.of(stage).transfer_s;
  }

  /// Seconds of an instruction of a rank; 0 if it neither computes nor adds up nor takes anything
  /// from other members of a group.
  [[nodiscard]] double seconds(stagger::detail::RankState const& rank,
                               Instruction const& in) const {
    if (gathers_values(in.op)) return exchange_s(in);
    bool const sums = reduces(in.op) || in.updates_part();
    if (!computes(in.op) && !has_group(in.op) && !sums) return 0;
    double cost_s = has_group(in.op) || sums ? group_cost(in) : action_s(costs_of(in), in.op);
    RowShare const& rows = machine_.program().cells[in.cell].rows;
    if (!sums)
      cost_s *= work_of(in.stage) * static_cast<double>(rows.own) / static_cast<double>(rows.total);
    if (device_.jitter == 0) return cost_s;
    std::uint64_t const x =
        random_bits(device_.seed, {static_cast<std::uint64_t>(machine_.steps()),
                                   static_cast<std::uint64_t>(rank.number),
                                   static_cast<std::uint64_t>(&in - rank.begin)});
    double const unit = static_cast<double>(x >> 11U) * 0x1p-53;  // [0, 1)
    return cost_s * (1 - device_.jitter + 2 * device_.jitter * unit);
  }

 private:
  [[nodiscard]] schedule::StageCosts const& costs_of(Instruction const& in) const {
    return device_.costs.of(machine_.model.table_stage(in.stage));
  }
  /// Seconds of a whole action.
  [[nodiscard]] static double action_s(schedule::StageCosts const& costs, Op op) noexcept {
    double sum_s = 0;
    if (is_forward(op)) sum_s += costs.forward_s;
    if (gives_input_gradient(op)) sum_s += costs.backward_input_s;
    if (gives_weight_gradient(op)) sum_s += costs.backward_weight_s;
    return sum_s;
  }

  /// Seconds in which a rank gathers what it takes from the other members of its group.
  [[nodiscard]] double exchange_s(Instruction const& in) const {
    auto const* const grouped = machine_.model.grouped;
    if (grouped == nullptr || device_.exchange == collective::CostLine{}) return 0;
    struct Sum {
      collective::CostLine const& line;
      double seconds = 0;
    } sum{device_.exchange};
    grouped->each_message(machine_, in, &sum, [](void* self, int, std::uint64_t bytes) {
      auto& to = *static_cast<Sum*>(self);
      to.seconds += to.line.seconds(bytes);
    });
    return sum.seconds;
  }

  /// The share that a stage of the program has in the work of its stage of the table, for equal
  /// rows.
  [[nodiscard]] double work_of(int stage) const {
    auto const* const grouped = machine_.model.grouped;
    if (grouped == nullptr) return 1;
    double own = 0;
    double all = 0;
    int known = -1;  // layers of the model that were counted
    for (int s = 0; s < machine_.stages(); ++s) {
      if (grouped->table_stage[s] != grouped->table_stage[stage]) continue;
      for (std::size_t const l : machine_.model.layers_of(s)) {
        auto const& entry = grouped->layers[l];
        if (s == stage) own += entry.work * weight_of(l);
        if (entry.number <= known || entry.work == 0) continue;
        known = entry.number;
        all += weight_of(l);
      }
    }
    return all > 0 ? own / all : 0;
  }
  /// The time of a layer relative to the others.
  [[nodiscard]] double weight_of(std::size_t layer) const {
    auto const& backward_s = device_.layer_backward_s;
    if (backward_s.empty()) return 1;
    auto const number = static_cast<std::size_t>(machine_.model.number(layer));
    return number < backward_s.size() ? backward_s[number] : 0;
  }

  /// Seconds of a part of a backward, or of a sum, also where an update takes it at once.
  [[nodiscard]] double group_cost(Instruction const& in) const {
    auto const& costs = costs_of(in);
    auto const& model = machine_.model;
    IndexRange const stage = model.layers_of(in.stage);
    IndexRange const group =
        has_group(in.op) ? model.layers_of(machine_.program().groups[in.group]) : stage;
    if (reduces(in.op) || in.updates_part()) {
      std::uint64_t const bytes = model.bytes_of(group);
      if (bytes == 0 && in.updates_part()) return 0;
      if (device_.sum != collective::CostLine{}) return device_.sum.seconds(bytes);
      return bytes == 0 ? 0
                        : costs.reduce_s * static_cast<double>(bytes) /
                              static_cast<double>(model.bytes_of(stage));
    }
    auto const weight = [&](IndexRange layers) {
      double sum = 0;
      for (std::size_t const l : layers) sum += weight_of(l);
      return sum;
    };
    double const all = weight(stage);
    return all > 0 ? action_s(costs, in.op) * weight(group) / all : 0;
  }

  Device device_;
  stagger::detail::Machine& machine_;
};

}  // namespace stagger::sim::detail
