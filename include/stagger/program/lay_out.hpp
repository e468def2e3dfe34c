// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lowering of a table to a program, pass by pass.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/detail/slots.hpp>
#include <stagger/program/detail/write_instructions.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

namespace detail {

/// The pass that drops signals for which no rank waits.
[[gnu::cold]] inline void drop_unawaited(Program& program) {
  List<std::uint32_t> awaited(program.signals.size());
  for (auto const& rank : program.ranks)
    for (Wait const& wait : rank.waits)
      awaited[wait.signal] = std::max(awaited[wait.signal], wait.count);
  List<std::uint32_t> given(program.signals.size());
  for (auto& rank : program.ranks)
    for (auto& in : rank.code) {
      std::uint8_t kept = 0;
      for (std::uint8_t g = 0; g < in.signal_count; ++g)
        if (++given[in.signal[g]] <= awaited[in.signal[g]]) in.signal[kept++] = in.signal[g];
      in.signal_count = kept;
    }
}

}  // namespace detail

/// Lowers a verified table to a program that cannot deadlock; it adds slots until that holds.
///
/// The passes: `read_table` and `connect` (cells, and the edges between them), `versions_of`,
/// `assign_slots`, `InstructionWriter`, `group_gradients` where gradients are added up during
/// backward, `drop_unawaited`.
/// @param table   legal by `schedule::verify`
/// @throws Error  bad_schedule for a table that the engine cannot run
/// @complexity    linear in the number of actions
[[nodiscard]] [[gnu::cold]] inline Program lay_out(schedule::Table const& table,
                                                   LayOutOptions const& options = {}) {
  detail::Dataflow flow = detail::read_table(table, options.replicas, options.sections != nullptr);
  if (options.sections != nullptr)
    options.connect_sections(flow, *options.sections);
  else
    detail::connect(flow);
  StalenessModel const& staleness = options.staleness;
  FixedArray<detail::Versions> versions;
  if (staleness.passes != nullptr)
    versions = staleness.passes->versions(flow, staleness, options.groups != nullptr);
  bool const recompute = options.recompute && flow.training;
  detail::SlotCounts counts(flow.cells.size(), options.spare_slots);
  auto const write = [&] {
    auto const slots = detail::assign_slots(flow, counts, recompute);
    return detail::InstructionWriter(table, flow, slots, versions, recompute, staleness).write();
  };
  if (!options.spare_slots) counts.minimum = detail::slot_demand(write(), flow);
  Program program = write();
  for (auto blocked = play(program); !blocked.empty(); blocked = play(program)) {
    // Adds slots while ranks deadlock. This ends, since the table itself does not deadlock.
    bool more = false;
    for (Blocked const& rank : blocked)
      more = detail::add_slot(flow, counts, rank.wait.signal) || more;
    if (!more)
      raise(Errc::bad_schedule,
            "the table's ranks wait for each other for ever; schedule::verify names the first");
    program = write();
  }
  if (options.groups != nullptr)
    program = options.shared->group_gradients(program, *options.groups, options.grouping);
  detail::drop_unawaited(program);
  return program;
}

}  // namespace stagger
