// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A chain of layers that a group shares, as a table.

#include <cstddef>
#include <span>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

namespace stagger::report {

[[nodiscard]] constexpr char const* name(partition::Cut cut) noexcept {
  constexpr char const* names[] = {"", "modulo", "fan", "shard", "collect", "sum", "total"};
  return names[static_cast<std::size_t>(cut)];
}
[[nodiscard]] constexpr char const* name(SplitBy by) noexcept {
  constexpr char const* names[] = {"-", "outputs", "inputs"};
  return names[static_cast<std::size_t>(by)];
}

/// A line for each layer, with what is exchanged in front of it: what the chain is for one member.
/// @param rows  of each member in a local batch
[[nodiscard]] inline std::string table(partition::SplitPlan const& plan,
                                       std::span<partition::LayerFeatures const> layers, int member,
                                       std::size_t rows) {
  using namespace partition;
  TextTable lines({"layer", "exchange", "sent forward", "sent backward", "features", "split by",
                   "operations/element", "parameters"});
  auto const count = [](std::size_t number) {
    return number == 0 ? std::string("-") : std::to_string(number);
  };
  for (std::size_t l = 0; l <= plan.layers.size(); ++l) {
    Elements const sent = elements_sent(plan, l, member, rows);
    if (l == plan.layers.size()) {
      lines.add({"loss", name(plan.end), count(sent.forward), count(sent.backward)});
      break;
    }
    LayerFeatures const& layer = layers[l];
    PlannedLayer const& planned = plan.layers[l];
    bool const known = layer.inputs != 0;
    lines.add({std::to_string(l), name(planned.cut), count(sent.forward), count(sent.backward),
               known ? text(layer.inputs, " -> ", layer.outputs) : count(planned.features),
               name(planned.by),
               known ? format_fixed(operations_per_element(layer.inputs, layer.outputs), 1) : "-",
               count(parameters_of(planned, layer, member, plan.members))});
  }
  return lines.str();
}

}  // namespace stagger::report
