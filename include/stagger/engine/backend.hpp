// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end of a device: what the engine calls, and the interpreter that calls it back.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/stall.hpp>
#include <stagger/program/describe.hpp>

namespace stagger {

namespace detail {

/// What `advance` asks of a back end that runs instructions one by one. Signals are counters that start a step at 0; only one rank
/// gives each.
template <class B>
concept Interpreter = requires(B& backend, RankState& rank, Wait const& wait, std::uint32_t signal,
                               Instruction const& in) {
  { backend.ready(wait) } -> std::same_as<bool>;  // was the signal given that often?
  {
    backend.give(rank, signal)
  } -> std::same_as<void>;  // once more, after everything the rank did so far
  { backend.execute(rank, in) } -> std::same_as<void>;  // carries out one instruction
  { backend.stopping() } -> std::same_as<bool>;         // has the step failed?
  {
    B::timed
  } -> std::convertible_to<bool>;  // does an instruction take time after it has been carried out?
};

/// Why a rank came back from `advance`.
enum class Progress : std::uint8_t {
  blocked,   ///< `blocked_on` was not given yet
  elapsing,  ///< timed back ends: the instruction's time must pass
  finished,  ///< the end of the program
  stopped,   ///< the step has failed
};

/// Runs a rank until it must wait: the interpreter. An ordinary function, so that what it needs
/// stays in registers; the coroutine around it (`walk`) waits.
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
    for (unsigned g = 0; g < in->gives; ++g) backend.give(rank, in->give[g]);
    if constexpr (B::timed) rank.executed = false;
    rank.next.store(++in, std::memory_order_relaxed);
  }
}

/// `advance`, with what a stage throws handed to the back end.
template <Interpreter B> Progress go_on(B& backend, RankState& rank) noexcept {
  try {
    return advance(backend, rank);
  } catch (...) {
    backend.fail(std::current_exception());
    return Progress::stopped;
  }
}

/// Carries out one instruction, of any kind.
/// @param clock  tells the time while steps are recorded; none where the device has its own
[[gnu::always_inline]] inline void carry_out(Machine& machine, RankState& rank,
                                             Instruction const& in, Clock clock = {}) {
  if (!computes(in.op)) [[unlikely]]
    machine.execute_end(rank, in, clock);
  else if (rank.record && clock.read != nullptr)
    run_recorded(rank, in, clock);
  else
    run_compute(rank, in);
}

/// The coroutine of one rank: one frame for the life of the engine, created suspended. It walks
/// program after program; between two steps, and wherever the rank must wait, it hands control back
/// to its caller.
class Walk {
 public:
  struct promise_type {
    Walk get_return_object() {
      return Walk{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(Progress progress) noexcept {
      latest = progress;
      return {};
    }
    void return_void() noexcept {}
    void unhandled_exception() noexcept {}  // go_on catches everything
    Progress latest = Progress::finished;
  };

  Walk(Walk&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Walk& operator=(Walk&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Walk() {
    if (handle_) handle_.destroy();
  }

  /// Goes on until the rank must wait, and says why.
  Progress resume() {
    handle_.resume();
    return handle_.promise().latest;
  }

 private:
  explicit Walk(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

/// Makes the coroutine of a rank.
template <Interpreter B> Walk walk(B& backend, RankState& rank) {
  for (;;) co_yield go_on(backend, rank);
}

}  // namespace detail

/// What a back end is written with.
namespace engine {
using detail::carry_out;
using detail::Clock;
using detail::describe;
using detail::go_on;
using detail::Machine;
using detail::Progress;
using detail::RankState;
using detail::StallDetector;
}  // namespace engine
}  // namespace stagger
