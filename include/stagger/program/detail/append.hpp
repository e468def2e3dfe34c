// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How passes append instructions, waits and signals to a rank.

#include <cstddef>
#include <cstdint>

#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// Has the next instruction of a rank wait until a signal was given `count` times.
inline void add_wait(RankProgram& rank, Instruction& in, std::uint32_t signal, std::size_t count) {
  rank.waits.push_back({signal, static_cast<std::uint32_t>(count)});
  ++in.waits;
}

/// @pre fewer than three signals so far
inline void add_give(Instruction& in, std::uint32_t signal) {
  in.give[in.gives++] = static_cast<std::uint16_t>(signal);
}

/// Appends an instruction, and as many `pass` behind it as its signals take.
[[gnu::cold]] inline void append(RankProgram& rank, Instruction in,
                                 List<std::uint16_t> const& gives) {
  std::size_t given = 0;
  do {
    for (in.gives = 0; in.gives < in.give.size() && given < gives.size(); ++in.gives)
      in.give[in.gives] = gives[given++];
    rank.code.push_back(in);
    in.op = Op::pass;
    in.waits = 0;
  } while (given < gives.size());
}

}  // namespace stagger::detail
