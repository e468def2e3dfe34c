// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pass that gives every value a slot.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// How many slots messages between ranks get beyond those that their receiver occupies.
struct SlotCounts {
  List<std::uint32_t> spare;    // [2 * cell: x, or dx that others gather; 2 * cell + 1: dy, or y]
  List<std::uint32_t> minimum;  // likewise, in all
  SlotCounts(std::size_t cells, std::optional<std::uint32_t> spare_slots)
      : spare(2 * cells, spare_slots.value_or(1)), minimum(2 * cells) {}
};

/// The slots of all values.
struct SlotPlan {
  FixedArray<Messages> x, dy, kept, inner;  // [cells]
  FixedArray<Messages> y, dx;               // [cells] of those that others gather from; else none
};

/// @param recompute  whether F runs again before its backward
[[nodiscard]] [[gnu::cold]] inline SlotPlan assign_slots(Dataflow const& flow,
                                                         SlotCounts const& counts, bool recompute) {
  auto const& cells = flow.cells;
  SlotPlan plan;
  for (auto* messages : {&plan.x, &plan.dy, &plan.kept, &plan.inner})
    *messages = FixedArray<Messages>(cells.size());
  for (std::size_t c = 0; c < cells.size(); ++c) {
    CellUse const& use = flow.uses[c];
    std::size_t const length = flow.length_at(c);
    auto const own = [&](Positions const& from) {
      return Messages(from, length, use.end, length, most_alive(from, use.end, length));
    };
    auto const received = [&](std::size_t sender, Positions const& written, Positions const& read,
                              std::size_t count) {
      if (cells[sender].rank == cells[c].rank) return own(written);
      std::uint32_t const wanted = most_alive(read, use.end, length) + counts.spare[count];
      return Messages(written, flow.length_at(sender), use.end, length,
                      std::max(wanted, counts.minimum[count]));
    };
    if (cells[c].before != Cell::none) {
      auto const before = static_cast<std::size_t>(cells[c].before);
      plan.x[c] = received(before, flow.uses[before].forward, use.forward, 2 * c);
    } else if (cells[c].gathers_input) {
      plan.x[c] = own(use.forward);
    }
    plan.kept[c] = own(recompute ? use.gradient : use.forward);
    if (!flow.training) continue;
    plan.inner[c] = own(use.gradient);
    if (cells[c].after != Cell::none) {
      auto const after = static_cast<std::size_t>(cells[c].after);
      plan.dy[c] = received(after, flow.uses[after].gradient, use.gradient, 2 * c + 1);
    } else {
      plan.dy[c] = own(use.gradient);
    }
  }
  if (flow.cuts.empty()) return plan;
  plan.y = FixedArray<Messages>(cells.size());
  plan.dx = FixedArray<Messages>(cells.size());
  for (Cut const& cut : flow.cuts) {
    CellUse const& from = flow.uses[cut.from];
    CellUse const& to = flow.uses[cut.to];
    auto const wanted = [&](std::size_t count) {
      return std::max(1 + counts.spare[count], counts.minimum[count]);
    };
    plan.y[cut.from] =
        Messages(from.forward, flow.length_at(cut.from), to.forward, flow.length_at(cut.to),
                 wanted(2 * first_replica(cells, cut.from) + 1));
    if (flow.training)
      plan.dx[cut.to] =
          Messages(to.gradient, flow.length_at(cut.to), from.gradient, flow.length_at(cut.from),
                   wanted(2 * first_replica(cells, cut.to)));
  }
  return plan;
}

/// Adds a slot for the messages whose sender waits for a signal.
/// @return whether the signal says that a slot is free, and more of them can help
[[gnu::cold]] inline bool add_slot(Dataflow const& flow, SlotCounts& counts, std::uint32_t signal) {
  std::size_t const edge = signal / signals_per_edge;
  bool const cut = edge >= flow.cells.size();
  if (edge >= flow.cells.size() + flow.cuts.size()) return false;
  std::size_t count = 0;
  switch (static_cast<EdgeSignal>(signal % signals_per_edge)) {
    case EdgeSignal::forward_free:
      count = cut ? 2 * first_replica(flow.cells, flow.cuts[edge - flow.cells.size()].from) + 1
                  : 2 * static_cast<std::size_t>(flow.cells[edge].after);
      break;
    case EdgeSignal::backward_free:
      count = cut ? 2 * first_replica(flow.cells, flow.cuts[edge - flow.cells.size()].to)
                  : 2 * edge + 1;
      break;
    default:
      return false;
  }
  return ++counts.spare[count] <= flow.units;
}

}  // namespace stagger::detail
