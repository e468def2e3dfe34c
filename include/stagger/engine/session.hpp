// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The interface through which `Trainer` uses a machine and its back end. It depends on
///         neither, so that a device can be compiled once for many translation units.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/traffic.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::detail {

/// A function of parameters, its type erased.
struct ParameterVisit {
  void* self = nullptr;
  void (*call)(void* self, ParameterState const&) = nullptr;
};

/// In which process parameters were visited.
enum class Visited : std::uint8_t {
  here,
  elsewhere,  ///< in another process
  not_spread  ///< not visited: this process has all of them
};

/// How many microbatches a caller gives.
struct BatchCounts {
  std::size_t inputs = 0;
  std::size_t beside = 0;  // targets or outputs, one for each input
  std::size_t said = 0;    // Batch::microbatches; 0: not said
  bool outputs = false;    // `beside` counts outputs, which every process receives
};

/// A machine on a back end: one step at a time. What reads or changes it between steps holds it
/// meanwhile, so that a thread that comes at the same moment is refused.
class Session : public StepOwner {
 public:
  /// Holds a session as long as it lives.
  class Hold {
   public:
    /// @throws Error  bad_configuration while a step runs, or something else holds it
    explicit Hold(Session& session) : session_(&session) { session.take(Use::call); }
    Hold(Hold const&) = delete;
    Hold& operator=(Hold const&) = delete;
    ~Hold() { session_->leave(); }
    [[nodiscard]] Session* operator->() const noexcept { return session_; }

   private:
    Session* session_;
  };

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(ranks_); }
  [[nodiscard]] virtual Machine& machine() noexcept = 0;
  [[nodiscard]] virtual int stages() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t steps() const noexcept = 0;
  virtual void resume(std::int64_t steps) = 0;
  virtual void record(bool on) noexcept = 0;
  /// Waits until parameters have the values that they keep until the next step.
  virtual void settle_parameters() = 0;
  /// If parameters are distributed over processes, visits all of them in process `to`; otherwise
  /// only gathers them.
  virtual Visited visit_parameters(int to, ParameterVisit const& visit) = 0;
  virtual void gather_parameters(int to) = 0;

  /// The program for this many microbatches; it is laid out on the first call.
  /// @throws Error  bad_configuration for 0, or for a number that the schedule does not allow
  virtual std::shared_ptr<Program const> program(std::size_t microbatches, bool training) = 0;
  /// The training program, which is kept until the next call.
  [[nodiscard]] Program const& shown_program(std::size_t microbatches) {
    return *(shown_ = program(microbatches, true));
  }
  /// Makes the training program for this many microbatches the next one to run.
  virtual void make_ready(std::size_t microbatches) = 0;

  /// @throws Error  bad_configuration while a step runs, or something holds the session
  void require_idle() const {
    if (Use const use = use_.load(std::memory_order_acquire); use != Use::none) refuse(use);
  }

  /// Finds the program of a requested step. If other processes take part, they are told of an
  /// error.
  /// @param counts  what the caller gives
  /// @param name    of what is given beside the inputs, for errors
  virtual void choose(Request& request, BatchCounts const& counts, char const* name,
                      bool training) = 0;

 protected:
  /// What a session is used for.
  enum class Use : std::uint8_t { none, step, call };

  ~Session() = default;
  /// @throws Error  bad_configuration if it is in use
  [[gnu::cold]] void take(Use use) {
    Use now = Use::none;
    if (!use_.compare_exchange_strong(now, use)) refuse(now);
  }
  void leave() noexcept { use_.store(Use::none, std::memory_order_release); }
  /// A requested step will not begin. Called while it is held.
  virtual void refused(std::exception_ptr const& why) noexcept = 0;

  std::size_t ranks_ = 0;       // ranks that compute
  std::uint32_t requests_ = 0;  // requested steps and preparations, begun or not

 private:
  [[noreturn]] [[gnu::cold]] static void refuse(Use use) {
    raise(Errc::bad_configuration,
          use == Use::step ? "a step of this pipeline is still running"
                           : "another call of this pipeline has not returned yet",
          "; take one step after the other, or make a pipeline for each thread");
  }

  std::atomic<Use> use_{Use::none};
  std::shared_ptr<Program const> shown_;
};

/// Queries of a trainer. A template, so that a program compiles only those that it uses.
/// @tparam M  Machine
template <class M> struct MachineFacts {
  static void append_states(M& machine, std::vector<ParameterState>& states, bool own);
  static List<ParameterShape> shapes(M& machine);
  static Memory memory(M& machine);
  static Traffic traffic(M& machine, int ranks);
  static std::vector<std::uint64_t> staleness(M& machine, std::optional<int> worker);
  /// When each action of the last step started and ended, by rank.
  /// @param ranks  that compute
  /// @param sums   whether of the reducers instead of the ranks that compute
  static schedule::Timeline timeline(M& machine, int ranks, bool sums);
  static std::vector<int> peak_in_flight(M& machine, int ranks);
  static std::string failed_at(M& machine);
};
#ifdef STAGGER_SEPARATE_COMPILATION
extern template struct MachineFacts<Machine>;
#endif

template <class Device> class SessionOn;

/// Checks that a pipeline and a device fit together, and makes the session.
/// @param setup   gets the division among groups, and on a virtual clock a link that takes time
/// @throws Error  bad_configuration for numbers that do not fit together; names them and numbers
///                that would
template <class Device>
[[nodiscard, gnu::cold]] std::shared_ptr<Session> make_session(Device const& device,
                                                               List<Layer> layers, Setup& setup);

}  // namespace stagger::detail
