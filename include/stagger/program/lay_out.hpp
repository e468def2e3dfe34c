// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lowering of a table to a program, pass by pass.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/detail/slot_demand.hpp>
#include <stagger/program/detail/slots.hpp>
#include <stagger/program/detail/write_instructions.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

namespace detail {

/// The pass that fixes which weights each microbatch sees.
/// @param sums   whether the gradients of several owners are added up while backward runs
/// @return       [cells] without updates where a cell updates with the others; none where all do
/// @throws Error bad_schedule for a table that does not fit the staleness model
[[nodiscard]] [[gnu::cold]] inline FixedArray<Versions> versions_of(Dataflow const& flow,
                                                                    StalenessModel const& staleness,
                                                                    bool sums) {
  bool const exchanges = staleness.push_minibatches != 0;
  if (!flow.training || !(staleness || exchanges)) return {};
  for (std::size_t c = 1; c < flow.cells.size(); ++c) {
    bool const alone = staleness && staleness.alone(flow.cells[c].depth);
    if (!is_first_holder(flow.cells, c) && (alone || (exchanges && !sums)))
      raise(Errc::bad_schedule, "stage ", flow.cells[c].stage, " has several owners, ",
            alone ? "which must update together; use a schedule that flushes"
                  : "but each worker makes one push of it; give each position 1 replica by "
                    "Options::replicas, or use a schedule that runs each stage on one rank");
  }
  if (!staleness) return {};
  if (staleness.microbatches < 1 || flow.units % static_cast<unsigned>(staleness.microbatches) != 0)
    raise(Errc::bad_schedule, flow.units, " microbatches are no whole number of minibatches of ",
          staleness.microbatches, "; give a multiple of it");
  FixedArray<Versions> versions(flow.cells.size());
  for (std::size_t c = 0; c < flow.cells.size(); ++c)
    if (staleness.alone(flow.cells[c].depth))
      versions[c] = staleness.fix(staleness, {flow.cells[c].stage, flow.uses[c].forward,
                                              flow.uses[c].end, flow.length_at(c)});
  return versions;
}

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
  auto const versions = detail::versions_of(flow, options.staleness, options.groups != nullptr);
  bool const recompute = options.recompute && flow.training;
  detail::SlotCounts counts(flow.cells.size(), options.spare_slots);
  auto const write = [&] {
    auto const slots = detail::assign_slots(flow, counts, recompute);
    return detail::InstructionWriter(table, flow, slots, versions, recompute, options.staleness)
        .write();
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
    program = options.group_gradients(program, *options.groups, options.chain_squares,
                                      options.sums_by_library);
  detail::drop_unawaited(program);
  return program;
}

namespace detail {

/// For a program whose answers may arrive in the next step: a program that only waits for them.
[[nodiscard]] [[gnu::cold]] inline Program only_answers(Program program) {
  program.training = false;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    RankProgram rank;
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      if (program.cells[c].rank != static_cast<int>(r)) continue;
      Instruction pull;
      pull.op = Op::pull;
      pull.stage = static_cast<std::uint16_t>(program.cells[c].stage);
      pull.cell = static_cast<std::uint16_t>(c);
      rank.add_wait(pull, program.outside_signal(c), 1);
      rank.code.push_back(pull);
    }
    program.ranks[r] = std::move(rank);
  }
  return program;
}

}  // namespace detail
}  // namespace stagger
