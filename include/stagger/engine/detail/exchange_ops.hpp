// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The calls by which the engine exchanges parameters with a server. They are virtual, so
///         that a pipeline without a server compiles none of what they do.

#include <cstdint>
#include <exception>
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
  /// Carries out `apply`, `push` or `pull`.
  virtual void execute(Machine&, Instruction const&) = 0;
  /// @param why  the step failed, or null
  virtual void end_step(Machine&, std::exception_ptr why) = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const = 0;
  /// What the worker waits for, for the message of a stall.
  [[nodiscard]] virtual std::string waits_for() const = 0;
};

/// How a back end receives signals that no rank gives, from any thread while a step runs.
struct OutsideSignals {
  void* self = nullptr;
  void (*give)(void* self, std::uint32_t signal, std::uint32_t count) noexcept = nullptr;
  void (*fail)(void* self, std::exception_ptr why) noexcept = nullptr;
};

}  // namespace stagger::detail
