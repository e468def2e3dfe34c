// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One instruction of any kind, but an update.

#include <stagger/engine/machine.hpp>

namespace stagger::cuda::detail {

/// @param clock  of the host, if it is the host that does the work; else events tell the times
inline void carry_out(stagger::detail::Machine& machine, stagger::detail::RankState& rank,
                      Instruction const& in, stagger::detail::Clock clock = {}) {
  if (!computes(in.op))
    machine.execute_end(rank, in, clock);
  else if (rank.record && clock.read != nullptr)
    stagger::detail::run_recorded(rank, in, clock);
  else
    stagger::detail::run_compute(rank, in);
}

}  // namespace stagger::cuda::detail
