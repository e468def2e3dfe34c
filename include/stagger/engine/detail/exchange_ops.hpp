// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the engine does for a worker that trains with others through a parameter server, by
///         address: a pipeline without one is compiled without it.

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
  /// Of a back end of several processes, behind `load`. @param ranks  [ranks] that this one runs
  virtual void runs(bool const* ranks) = 0;
  virtual void begin_step() = 0;
  /// Carries out `apply`, `push` or `pull`.
  virtual void execute(Machine&, Instruction const&) = 0;
  /// @param why  the step failed, or null
  virtual void end_step(Machine&, std::exception_ptr why) = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const = 0;
  /// Whom the worker waits for.
  [[nodiscard]] virtual std::string waits_for() const = 0;
};

/// How a back end takes signals that no rank gives: any thread, while a step runs.
struct OutsideSignals {
  void* self = nullptr;
  void (*give)(void* self, std::uint32_t signal, std::uint32_t count) noexcept = nullptr;
  void (*fail)(void* self, std::exception_ptr why) noexcept = nullptr;
};

}  // namespace stagger::detail
