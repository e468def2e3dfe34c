// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the engine calls of the part that exchanges parameters with a server.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <stagger/engine/detail/step_part.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// The exchange of parameters with a server, for the loaded program.
class Exchange : public StepPart {
 public:
  /// Called after `load` by a back end of several processes.
  /// @param ranks  [ranks] whether this process runs the rank
  virtual void runs(bool const* ranks) = 0;

  // For a device with memory of its own, which the host cannot read. It enqueues what a push sends,
  // and a copy of that to the host; when the copy is there, `execute` pushes it.

  /// What makes that in the current step.
  enum class Makes : std::uint8_t {
    gradients,  ///< nothing: they are pushed as they are, and are zeros once all ranks have finished
    kernel,     ///< a kernel of the optimizer, which needs the norm of all gradients
    update,     ///< likewise, and nothing is pushed: the step can no longer fail
  };
  [[nodiscard]] virtual Makes makes() const noexcept { return Makes::gradients; }
  /// Enqueues it, and the copy.
  virtual void make(Machine&, Instruction const& /*push*/) {}

  /// A step is about to begin: of an error that keeps it from that, the others know nothing yet.
  virtual void comes() noexcept = 0;
  /// The worker takes no further step because of an error outside of its steps: the others are told
  /// as of a step that fails, unless they know of one.
  /// @param again  also if they do: some have begun since
  virtual void fail_between(std::exception_ptr const& why, bool again) noexcept = 0;
  /// A program that only waits for weights of an earlier step; null if the server has sent them.
  /// @param program  of that step
  [[nodiscard]] virtual std::shared_ptr<Program const> late_answers(Program const&) const {
    return nullptr;
  }
  /// Waits for such weights of the stages of this process on the calling thread, without a program.
  virtual void await_late_answers() {}
  /// The worker's number at the server.
  [[nodiscard]] virtual int worker() const noexcept = 0;
  /// [k] minibatches whose weights lacked k pushes of a worker, as Trainer::staleness().
  /// @param worker  empty: any, of which they lacked most
  /// @throws Error  bad_configuration for a worker that the server has not
  [[nodiscard]] virtual std::span<std::uint64_t const> staleness(
      std::optional<int> worker) const = 0;
  /// What the worker waits for, as text for the error of a stall.
  [[nodiscard]] virtual std::string waits_for() const = 0;
};

}  // namespace stagger::detail
