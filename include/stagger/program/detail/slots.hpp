// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pass that gives every value a slot, and the number of slots that messages need if
///         every F, I and W takes the same time.

#include <cstddef>
#include <cstdint>
#include <optional>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/play.hpp>
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
  FixedArray<Messages> y, dx;               // [cells] of those from which others gather

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
  for (auto* messages : {&plan.x, &plan.dy, &plan.kept, &plan.inner, &plan.y, &plan.dx})
    *messages = FixedArray<Messages>(cells);
  for (std::size_t c = 0; c < cells; ++c) {
    CellUse const& use = flow.uses[c];
    std::size_t const length = flow.length_at(c);
    auto const own = [&](RowIndices const& from) {
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

/// When each compute action of a rank starts and ends, in units of one F, I or W.
struct RankTimes {
  RowIndices start;  // [compute actions of the row]
  RowIndices end;
};

/// Plays a program on ranks that are all equally fast: F, I and W take one unit each, B two,
/// messages none; no rank waits for a free slot.
/// @return [ranks]; empty if the ranks deadlock
/// @complexity linear in the number of instructions and waits
[[nodiscard]] [[gnu::cold]] inline FixedArray<RankTimes> unit_times(Program const& program) {
  List<std::uint32_t> now(program.ranks.size());
  FixedArray<RankTimes> times(program.ranks.size());
  FixedArray<RowIndices> given(program.signals.size());  // times of each signal
  Player player(program, PlayedWaits::messages);
  while (player.next()) {
    Instruction const& in = player.instruction();
    std::uint32_t& clock = now[player.rank()];
    RankTimes& own = times[player.rank()];
    for (Wait const& wait : player.waits())
      if (program.signals[wait.signal].edge >= 0 && wait.count != 0)
        clock = std::max(clock, given[wait.signal][wait.count - 1]);
    if (in_table(in.op)) own.start.push_back(clock);
    bool const whole_backward = gives_input_gradient(in.op) && gives_weight_gradient(in.op);
    if (computes(in.op)) clock += whole_backward ? 2 : 1;
    if (in_table(in.op)) own.end.push_back(clock);
    for (unsigned g = 0; g < in.signal_count; ++g) given[in.signal[g]].push_back(clock);
  }
  if (!player.blocked().empty()) return {};
  return times;
}

/// How many slots messages use at the same time, each from the start of the action that writes it
/// to its release.
/// @param written   [microbatches] indices in the producer's row
/// @param writes    [indices] start of each
/// @param released  [microbatches] indices in the consumer's row
/// @param releases  [indices] time of each
[[nodiscard]] [[gnu::cold]] inline std::uint32_t used_at_once(RowIndices const& written,
                                                              RowIndices const& writes,
                                                              RowIndices const& released,
                                                              RowIndices const& releases) {
  auto const order = in_order(written, writes.size());
  auto const freed = in_order(released, releases.size());
  std::size_t most = 0;
  std::size_t free = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    while (free < k && releases[released[freed[free]]] <= writes[written[order[k]]]) ++free;
    most = std::max(most, k + 1 - free);
  }
  return static_cast<std::uint32_t>(most);
}

/// The number of slots with which no rank waits for a free one if all ranks are equally fast.
/// @return in the form of SlotCounts::minimum
[[nodiscard]] [[gnu::cold]] inline List<std::uint32_t> slot_demand(Program const& program,
                                                                   Dataflow const& flow) {
  List<std::uint32_t> slots(flow.cells.size() * 2);
  auto const times = unit_times(program);
  if (times.size() == 0) return slots;
  for (auto const& edges : flow.sent)
    for (DirectedEdge const& e : edges) {
      if (!flow.crosses(e) || (!e.forward && !flow.training)) continue;
      RankTimes const& sender = times[flow.cells[e.sender].rank];
      RankTimes const& receiver = times[flow.cells[e.receiver].rank];
      std::uint32_t const used =  // rows are gathered before the action that needs them
          e.by_rows
              ? used_at_once(flow.made(e), sender.start, flow.used(e), receiver.start)
              : used_at_once(flow.made(e), sender.start, flow.uses[e.receiver].end, receiver.end);
      auto& most = slots[SlotCounts::index(flow, e)];
      most = std::max(most, used);
    }
  return slots;
}

}  // namespace stagger::detail
