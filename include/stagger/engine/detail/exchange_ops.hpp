// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The calls by which the engine exchanges parameters with a server. They are virtual, so
///         that a pipeline without a server compiles none of what they do.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include <stagger/program/program.hpp>

namespace stagger::detail {

class Machine;

/// The machine's part of an exchange, of the loaded program.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void load(Machine&) = 0;
  /// Called after `load` by a back end of several processes. @param ranks  [ranks] that this one
  /// runs
  virtual void runs(bool const* ranks) = 0;
  virtual void begin_step() = 0;
  /// Carries out `apply`, `push` or `pull`. @return whether anything goes to the server or comes
  /// from it
  virtual bool execute(Machine&, Instruction const&) = 0;
  /// @param why  the step failed, or null
  virtual void end_step(Machine&, std::exception_ptr why) = 0;
  /// Whether weights are still to come that a step before has made.
  [[nodiscard]] virtual bool under_way() const { return false; }
  [[nodiscard]] virtual std::uint64_t bytes() const = 0;
  /// Its number among those of the server.
  [[nodiscard]] virtual int worker() const noexcept = 0;
  /// [k] minibatches whose weights lacked k pushes of another worker, as Trainer::staleness().
  [[nodiscard]] virtual std::span<std::uint64_t const> staleness() const noexcept = 0;
  /// What the worker waits for, for the message of a stall.
  [[nodiscard]] virtual std::string waits_for() const = 0;
};

/// How a back end receives signals that no rank gives, from any thread, from before a step begins
/// to its end.
struct OutsideSignals {
  void* self = nullptr;
  void (*give)(void* self, std::uint32_t signal, std::uint32_t count) noexcept = nullptr;
  void (*fail)(void* self, std::exception_ptr why) noexcept = nullptr;
  /// Before a step: the back end itself resets only those that ranks give.
  void clear(Program const& program) const noexcept {
    for (std::size_t c = 0; c < program.cells.size(); ++c) give(self, program.outside_signal(c), 0);
  }
};

}  // namespace stagger::detail
