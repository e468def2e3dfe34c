// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the engine does for replicated stages, by address: a pipeline without them is
/// compiled without it.

#include <cstddef>
#include <cstdint>

#include <stagger/engine/options.hpp>
#include <stagger/engine/program.hpp>

namespace stagger::detail {

class Layout;
class Machine;
struct RankState;
struct ReplicaRun;

struct ReplicaOps {
  // of the layout
  void (*link)(Layout&);
  void (*assign_slots)(Layout&);
  void (*emit_before)(Layout&, RankProgram&, Instruction&);  // before a compute instruction
  void (*emit)(Layout&, RankProgram&, Instruction&);         // the instruction, and what it gives
  void (*name_signals)(Layout const&, Program&);
  bool (*make_room)(Layout&, std::uint32_t signal);
  // of the machine
  void (*load)(Machine&);
  void (*begin_step)(Machine&);
  void (*end_step)(Machine&);
  void (*execute)(Machine&, RankState&, Instruction const&);
  void (*destroy)(ReplicaRun*) noexcept;
  /// Refuses replicas that do not fit the schedule.
  void (*require)(Replicas const&, int positions, bool synchronous);
};

}  // namespace stagger::detail
