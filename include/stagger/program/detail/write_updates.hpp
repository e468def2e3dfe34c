// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The calls by which instructions that change weights are written among the others.

#include <cstddef>
#include <cstdint>

#include <stagger/program/program.hpp>

namespace stagger::detail {

/// Writes what stages that update alone, or exchange parameters with a server, do between the
/// actions of a table. Virtual, so that other pipelines do not compile it.
class UpdateWriter {
 public:
  virtual ~UpdateWriter() = default;
  /// Says in the program what the instructions will be. Called first.
  virtual void describe(Program& program) const = 0;
  /// Before the forward of a unit on cell `c`.
  virtual void before_forward(RankProgram& rank, std::size_t c, std::uint32_t unit) = 0;
  /// After the action of cell `c` at `position`.
  virtual void after_action(RankProgram& rank, std::size_t c, std::uint32_t position) = 0;
  /// After all instructions of a rank.
  virtual void end_rank(RankProgram& rank, int self) = 0;
};

}  // namespace stagger::detail
