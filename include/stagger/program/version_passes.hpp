// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The passes over programs whose stages update alone, or exchange parameters with a server.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/check_versions.hpp>
#include <stagger/program/detail/write_lone_updates.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

/// The pass that fixes which weights each microbatch sees.
[[nodiscard]] [[gnu::cold]] inline FixedArray<Versions> versions_of(Dataflow const& flow,
                                                                    StalenessModel const& staleness,
                                                                    bool sums) {
  if (!flow.training) return {};
  bool const exchanges = staleness.exchanges();
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

template <class Model> VersionPasses const* version_passes() noexcept {
  static constexpr VersionPasses passes{
      &versions_of,
      [](Dataflow const& flow, FixedArray<Versions> const& versions,
         Model const& model) -> std::unique_ptr<UpdateWriter> {
        return std::make_unique<LoneUpdateWriter<Model>>(flow, versions, model);
      },
      [](CheckState const& state, Model const& model) -> std::unique_ptr<VersionCheck> {
        return std::make_unique<HeldVersionCheck<Model>>(state, model);
      }};
  return &passes;
}

/// For a program whose answers may arrive in the next step: a program that only waits for them. It
/// is not checked, since it has nothing that `check_program` looks at: no action of a table, no
/// slot, and no wait of one rank for another.
[[nodiscard]] [[gnu::cold]] inline Program only_answers(Program program) {
  program.training = false;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    RankProgram rank;
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      if (program.cells[c].rank != static_cast<int>(r)) continue;
      Instruction pull = instruction_on(program.cells, c, Op::pull);
      rank.add_wait(pull, program.outside_signal(c), 1);
      rank.code.push_back(pull);
    }
    program.ranks[r] = std::move(rank);
  }
  return program;
}

}  // namespace stagger::detail
