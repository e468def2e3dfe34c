// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What `Trainer` asks of a machine on a back end. Neither is seen from here, so that a
/// device can be compiled once for many translation units.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/program/program.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::detail {

/// A function of parameters, its type erased.
struct ParameterVisit {
  void* self = nullptr;
  void (*call)(void* self, ParameterState const&) = nullptr;
};

/// A machine on a back end: one step at a time.
class Session : public StepOwner {
 public:
  [[nodiscard]] int positions() const noexcept { return positions_; }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(ranks_); }
  [[nodiscard]] virtual Machine& machine() noexcept = 0;
  [[nodiscard]] virtual int stages() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t steps() const noexcept = 0;
  virtual void resume(std::int64_t steps) noexcept = 0;
  virtual void record(bool on) noexcept = 0;
  virtual void append_states(std::vector<ParameterState>& states, bool own) = 0;
  virtual void append_shapes(List<ParameterShape>& shapes) = 0;
  virtual bool visit_parameters(int to, ParameterVisit const& visit) = 0;
  virtual void gather_parameters(int to) = 0;
  [[nodiscard]] virtual Memory memory() const = 0;

  /// When each action of the last step started and ended, by rank.
  /// @param sums  of the ranks that add up gradients beside those that compute
  [[nodiscard]] virtual schedule::Timeline timeline(bool sums) const = 0;
  [[nodiscard]] virtual std::vector<int> peak_in_flight() const = 0;

  /// The program for so many microbatches, each cut as the schedule says; lays it out when it is
  /// asked for the first time.
  /// @throws Error  bad_configuration for none, or for a number that the schedule does not allow
  virtual std::shared_ptr<Program const> program(std::size_t microbatches, bool training) = 0;
  /// Makes the training program for so many microbatches the next one to run.
  virtual void make_ready(std::size_t microbatches) = 0;

  /// @throws Error  bad_configuration while a step runs
  virtual void require_idle() const = 0;

  /// Chooses the program of a step that was asked for. Where other processes take it too, they are
  /// told of an error.
  /// @param beside  objects that are given beside the inputs, one for each
  /// @param name    what they are
  [[gnu::cold]] void choose(Request& request, std::size_t inputs, std::size_t beside,
                            char const* name, bool training) {
    require_idle();
    request.number = ++requests_;
    try {
      if (inputs != 0 && inputs != beside)
        raise(Errc::bad_configuration, inputs,
              inputs == 1 ? " input needs as many " : " inputs need as many ", name, ", not ",
              beside);
      request.program = program(inputs, training);
    } catch (...) {
      refused(std::current_exception());
      throw;
    }
  }

 protected:
  ~Session() = default;
  /// A step that was asked for will not begin.
  virtual void refused(std::exception_ptr const& why) noexcept = 0;

  int positions_ = 0;           // rows of the schedule's table
  std::size_t ranks_ = 0;       // that compute
  std::uint32_t requests_ = 0;  // steps and preparations, begun or not
};

template <class Device> class SessionOn;

/// Checks that a pipeline and a device fit together, and makes it ready to run.
/// @throws Error  bad_configuration for numbers that do not fit, naming them and what would
template <class Device>
[[nodiscard, gnu::cold]] std::shared_ptr<Session> make_session(Device const& device,
                                                               List<Layer> layers,
                                                               Setup const& setup);

}  // namespace stagger::detail
