// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The number of slots that messages need if every F, I and W takes the same time.

#include <cstddef>
#include <cstdint>

#include <stagger/core/algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/detail/slots.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// When each compute action of a rank starts and ends, in units of one F, I or W.
struct RankTimes {
  Positions start;  // [compute actions of the row]
  Positions end;
};

/// Plays a program on ranks that are all equally fast: F, I and W take one unit each, B two,
/// messages none; no rank waits for a free slot.
/// @return [ranks]; empty if the ranks deadlock
/// @complexity linear in the number of instructions and waits
[[nodiscard]] [[gnu::cold]] inline FixedArray<RankTimes> unit_times(Program const& program) {
  List<std::uint32_t> now(program.ranks.size());
  FixedArray<RankTimes> times(program.ranks.size());
  FixedArray<Positions> given(program.signals.size());  // times of each signal
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
/// @param written   [microbatches] positions in the producer's row
/// @param writes    [positions] start of each
/// @param released  [microbatches] positions in the consumer's row
/// @param releases  [positions] time of each
[[nodiscard]] [[gnu::cold]] inline std::uint32_t used_at_once(Positions const& written,
                                                              Positions const& writes,
                                                              Positions const& released,
                                                              Positions const& releases) {
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
