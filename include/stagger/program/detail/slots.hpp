// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pass that gives every value a slot.

#include <cstddef>
#include <cstdint>
#include <optional>

#include <stagger/core/algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// How many slots messages get.
struct SlotCounts {
  List<std::uint32_t> spare;    // slots beyond those that the receiver occupies; see `index`
  List<std::uint32_t> minimum;  // least total number of slots; see `index`
  SlotCounts(std::size_t cells, std::optional<std::uint32_t> spare_slots)
      : spare(2 * cells, spare_slots.value_or(1)), minimum(2 * cells) {}

  /// The index for cell c: 2 c for its x, or for its dx if other cells gather that; 2 c + 1 for dy,
  /// or y. Replicas use the count of the first of them, since one slot number stands for the values
  /// of all.
  [[nodiscard]] static std::size_t index(Dataflow const& flow, DirectedEdge const& e) {
    if (!e.by_rows) return 2 * e.receiver + (e.forward ? 0 : 1);
    auto const replica = static_cast<std::size_t>(flow.cells[e.sender].replica);
    std::size_t const first = flow.alike.empty() ? e.sender - replica : flow.alike[e.sender];
    return 2 * first + (e.forward ? 1 : 0);
  }
};

struct SlotPlan {
  FixedArray<Messages> x, dy, kept, inner;  // [cells]
  FixedArray<Messages> y, dx;               // [cells] only of cells from which others gather

  [[nodiscard]] Messages& of(DirectedEdge const& e) {
    return e.by_rows ? (e.forward ? y : dx)[e.sender] : (e.forward ? x : dy)[e.receiver];
  }
  [[nodiscard]] Messages const& of(DirectedEdge const& e) const {
    return const_cast<SlotPlan*>(this)->of(e);
  }
};

/// @param recompute  whether F runs again before its backward
[[nodiscard]] [[gnu::cold]] inline SlotPlan assign_slots(Dataflow const& flow,
                                                         SlotCounts const& counts, bool recompute) {
  std::size_t const cells = flow.cells.size();
  SlotPlan plan;
  for (auto* messages : {&plan.x, &plan.dy, &plan.kept, &plan.inner})
    *messages = FixedArray<Messages>(cells);
  if (!flow.row_edges.empty()) {
    plan.y = FixedArray<Messages>(cells);
    plan.dx = FixedArray<Messages>(cells);
  }
  for (std::size_t c = 0; c < cells; ++c) {
    CellUse const& use = flow.uses[c];
    std::size_t const length = flow.length_at(c);
    auto const own = [&](Positions const& from) {
      return Messages(from, length, use.end, length, most_alive(from, use.end, length));
    };
    plan.kept[c] = own(recompute ? use.gradient : use.forward);
    if (flow.cells[c].gathers_input) plan.x[c] = own(use.forward);
    if (flow.training) plan.inner[c] = own(use.gradient);
    if (flow.training && flow.cells[c].after == Cell::none) plan.dy[c] = own(use.gradient);
    for (DirectedEdge const& e : flow.received[c]) {
      if (!e.forward && !flow.training) continue;
      std::size_t const count = SlotCounts::index(flow, e);
      std::uint32_t wanted = std::max(1 + counts.spare[count], counts.minimum[count]);
      if (!e.by_rows && flow.crosses(e))
        wanted = std::max(most_alive(flow.used(e), use.end, length) + counts.spare[count],
                          counts.minimum[count]);
      else if (!e.by_rows)
        wanted = most_alive(flow.made(e), use.end, length);
      else if (flow.cells[e.sender].position == flow.cells[c].position)
        // Here a rank may be the only one that takes its values, and no signal keeps it from
        // overwriting them. So there is a slot for each that is made before it is taken.
        wanted = std::max(wanted, most_alive(flow.made(e), flow.used(e), length));
      plan.of(e) = Messages(flow.made(e), flow.length_at(e.sender),
                            e.by_rows ? flow.used(e) : use.end, length, wanted);
    }
  }
  return plan;
}

/// Adds a slot for the messages whose sender waits for the given signal.
/// @return whether the signal says that a slot is free, so that another slot can help
[[gnu::cold]] inline bool add_slot(Dataflow const& flow, SlotCounts& counts, std::uint32_t signal) {
  for (auto const& edges : flow.sent)
    for (DirectedEdge const& e : edges)
      if (signal == free_signal(e)) return ++counts.spare[SlotCounts::index(flow, e)] <= flow.units;
  return false;
}

}  // namespace stagger::detail
