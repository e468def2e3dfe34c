// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end of a device: what the engine calls beside the functions of every back end
///         (engine/device.hpp), and the interpreter that calls it back.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/stall.hpp>
#include <stagger/program/describe.hpp>

namespace stagger {

namespace detail {

class ParameterLink;    // parameters/parameter_link.hpp
struct ParameterVisit;  // engine/session.hpp

/// DeviceTraits::runs_ahead: a back end that can have several steps in flight, each in one of the
/// `slots()` of a ring, which are numbered from 0.
template <class B>
concept RunsAhead = requires(B& backend, B const& seen, std::size_t slot, double* losses) {
  { seen.runs_ahead() } -> std::same_as<bool>;       // in its current mode; asked at each step
  { seen.slots() } -> std::same_as<std::size_t>;     // asked once
  backend.enqueue(slot);                             // in place of `drive`: does not wait
  { backend.finished(slot) } -> std::same_as<bool>;  // asked before each step that is enqueued
  {
    backend.await(slot, std::int64_t{})                    // once for each step, in their order
  } noexcept -> std::same_as<std::exception_ptr>;          // why it failed, or null
  { seen.results(slot, losses) } -> std::same_as<double>;  // after await: the gradients' norm
  { seen.skipped(slot) } -> std::same_as<int>;             // likewise: updates left out
  seen.require_present();  // before each step: throws if the device is lost
};

/// DeviceTraits::starts_together: a back end of several processes, which begin each numbered
/// request together.
template <class B>
concept StartsTogether = requires(B& backend, B const& seen, std::exception_ptr why,
                                  StepArguments& arguments, double* terms) {
  backend.open(std::uint32_t{}, true);         // first of all in a request; true: no step follows
  backend.complete(arguments, terms);          // adds what only the others know, or throws
  { backend.give_up(why) } noexcept;           // this process cannot go on; the others are told
  { seen.must_load() } -> std::same_as<bool>;  // whether the others may have loaded another program
};

/// DeviceTraits::shares_time: a back end whose steps may share one virtual time with those of
/// others, on one thread.
template <class B>
concept SharesTime = requires(B& backend) {
  { backend.begin() } noexcept;                        // the step takes part from now on
  { backend.drive_together() } -> std::same_as<bool>;  // goes on until some step ends
};
/// The same back end also gives a link to a parameter server that takes such time.
template <class B, class Device>
concept Carries = requires(Device const& device, std::shared_ptr<ParameterLink> const& link) {
  { B::carry(device, link) } -> std::convertible_to<std::shared_ptr<ParameterLink>>;
};

/// DeviceTraits::gathers_parameters: a back end that must fetch parameters before they are read on
/// the host.
template <class B>
concept GathersParameters = requires(B& backend) {
  backend.gather_parameters(0);  // to this process; below 0: to all
};

/// DeviceTraits::holds_own_stages: a back end of processes that hold the parameters of their own
/// ranks alone.
template <class B>
concept VisitsParameters = requires(B& backend, ParameterVisit const& visit) {
  // Calls `visit` for each parameter in process 0; whether that is this one.
  { backend.visit_parameters(0, visit) } -> std::same_as<bool>;
};

/// What `go_on` requires of a back end that runs instructions one by one. Signals are counters
/// that are 0 at the beginning of a step; each is given by only one rank.
template <class B>
concept Interpreter = requires(B& backend, RankState& rank, Wait const& wait, std::uint32_t signal,
                               Instruction const& in, std::exception_ptr why) {
  { backend.ready(wait) } -> std::same_as<bool>;  // whether the signal was given that often
  {
    backend.give(rank, signal)
  } -> std::same_as<void>;  // gives it once more, after all that the rank has done
  { backend.execute(rank, in) } -> std::same_as<void>;  // carries out one instruction
  { backend.stopping() } -> std::same_as<bool>;         // whether the step has failed
  { backend.fail(why) } noexcept;                       // ends the step
  {
    B::timed
  } -> std::convertible_to<bool>;  // whether an instruction takes time after it was carried out
};

/// Why a rank came back from `advance`.
enum class Progress : std::uint8_t {
  blocked,   ///< `blocked_on` was not given yet
  elapsing,  ///< timed back ends: the instruction's time must pass
  finished,  ///< the end of the program
  stopped,   ///< the step has failed
};

/// The interpreter: runs a rank until it must wait. It is called again when the rank can go on.
template <Interpreter B> Progress advance(B& backend, RankState& rank) {
  Instruction const* in = rank.next.load(std::memory_order_relaxed);
  for (;;) {
    if (in == rank.end) return Progress::finished;
    if (backend.stopping()) return Progress::stopped;
    if (!B::timed || !rank.executed) {
      Wait const* wait = rank.wait;
      for (unsigned n = in->waits; n != 0; --n, ++wait) {
        if (backend.ready(*wait)) continue;
        rank.blocked_on = *wait;
        return Progress::blocked;
      }
      rank.wait = wait;
      backend.execute(rank, *in);
      if constexpr (B::timed) {
        rank.executed = true;
        return Progress::elapsing;
      }
    }
    unsigned const signal_count = in->signal_count;  // read once: `give` may write to any memory
    for (unsigned g = 0; g != signal_count; ++g) backend.give(rank, in->signal[g]);
    if constexpr (B::timed) rank.executed = false;
    rank.next.store(++in, std::memory_order_relaxed);
  }
}

/// The compiler error for a back end that calls `go_on` without what it needs.
template <class B> struct NotAnInterpreter {
  static constexpr bool ready = requires(B& backend, Wait const& wait) {
    { backend.ready(wait) } -> std::same_as<bool>;
  };
  static constexpr bool give = requires(B& backend, RankState& rank) {
    { backend.give(rank, std::uint32_t{}) } -> std::same_as<void>;
  };
  static constexpr bool execute = requires(B& backend, RankState& rank, Instruction const& in) {
    { backend.execute(rank, in) } -> std::same_as<void>;
  };
  static constexpr bool stopping = requires(B& backend) {
    { backend.stopping() } -> std::same_as<bool>;
  };
  static constexpr bool fail = requires(B& backend, std::exception_ptr why) {
    { backend.fail(why) } noexcept;
  };
  static_assert(ready,
                "stagger: not a Backend for go_on: it needs 'bool ready(Wait const&)', whether the "
                "signal was given that often");
  static_assert(!ready || give,
                "stagger: not a Backend for go_on: it needs 'void give(RankState&, std::uint32_t "
                "signal)'");
  static_assert(!ready || !give || execute,
                "stagger: not a Backend for go_on: it needs 'void execute(RankState&, Instruction "
                "const&)'");
  static_assert(!ready || !give || !execute || stopping,
                "stagger: not a Backend for go_on: it needs 'bool stopping()', whether the step "
                "has failed");
  static_assert(!ready || !give || !execute || !stopping || fail,
                "stagger: not a Backend for go_on: it needs 'void fail(std::exception_ptr why) "
                "noexcept'");
  static_assert(!ready || !give || !execute || !stopping || !fail,
                "stagger: not a Backend for go_on: it needs 'static constexpr bool timed', false "
                "if an instruction is done once execute returns");
};

/// Notes the exception that is being handled, if a layer or the loss threw it in an instruction of
/// the rank; null: in the one that comes next. Called where `carry_out` and `advance` throw.
[[gnu::cold]] [[gnu::noinline]] inline void note_thrown(RankState& rank,
                                                        Instruction const* in = nullptr) noexcept {
  if (in == nullptr) in = rank.next.load(std::memory_order_relaxed);
  if (in == rank.end || !runs_layers(in->op)) return;
  rank.thrown = std::current_exception();
  rank.thrown_in = in;
}

/// `advance`, which notes what it throws.
template <Interpreter B> Progress advance_noted(B& backend, RankState& rank) {
  try {
    return advance(backend, rank);
  } catch (...) {
    note_thrown(rank);
    throw;
  }
}

/// `advance`, which passes exceptions of stages to the back end.
template <class B> Progress go_on(B& backend, RankState& rank) noexcept {
  if constexpr (Interpreter<B>) {
    try {
      return advance(backend, rank);
    } catch (...) {
      note_thrown(rank);
      backend.fail(std::current_exception());
    }
  } else {
    static_cast<void>(NotAnInterpreter<B>{});  // its static_assert says what is wrong
  }
  return Progress::stopped;
}

/// Carries out a compute instruction of a rank whose actions are recorded or counted.
[[gnu::cold]] [[gnu::noinline]] inline void run_watched(Machine& machine, RankState& rank,
                                                        Instruction const& in, Clock clock) {
  bool const timed = rank.record && clock.read != nullptr;
  double const start_s = timed ? clock() : 0;
  run_compute(rank, in);
  if (timed) record(rank, in, start_s, clock());
  if (machine.traffic.uneven()) machine.traffic.made(rank, in);
}

/// Carries out one instruction, of any kind.
/// @param clock  tells the time while steps are recorded; empty if the device measures times itself
[[gnu::always_inline]] inline void carry_out(Machine& machine, RankState& rank,
                                             Instruction const& in, Clock clock = {}) {
  if (!computes(in.op)) [[unlikely]]
    machine.execute_end(rank, in, clock);
  else if (rank.watched)
    run_watched(machine, rank, in, clock);
  else
    run_compute(rank, in);
}

/// What each rank that has not finished waits for.
/// @param given  [signals] how often each signal was given
[[nodiscard]] [[gnu::cold]] inline std::string describe_stall(
    Machine const& machine, std::span<std::uint32_t const> given) {
  List<std::size_t> at;
  for (auto const& rank : machine.ranks())
    at.push_back(static_cast<std::size_t>(rank.next.load(std::memory_order_relaxed) - rank.begin));
  return describe_stall(machine.program(), at, given, machine.waits_for());
}

}  // namespace detail

/// The names that a back end needs.
namespace engine {
using detail::Carries;
using detail::carry_out;
using detail::Clock;
using detail::describe;
using detail::GathersParameters;
using detail::go_on;
using detail::Machine;
using detail::ParameterVisit;
using detail::Progress;
using detail::RankState;
using detail::RunsAhead;
using detail::SharesTime;
using detail::StallDetector;
using detail::StartsTogether;
using detail::VisitsParameters;
}  // namespace engine
}  // namespace stagger
