// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Waiting for GPUs that may never answer, and for what they were given by NCCL.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <stagger/cuda/error.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/nccl/detail/links.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::nccl::detail {

/// Lets the host wait for its GPUs as long as anything moves, looking at them and at NCCL.
class WaitPolicy {
 public:
  WaitPolicy(stagger::detail::Machine const& machine, GpuSet& gpu_set, Links& links)
      : machine_(machine), gpu_set_(gpu_set), links_(links) {}

  /// Waits until `done()`; the deadline begins anew whenever the devices have moved.
  /// @param turn      of the iteration that is waited for
  /// @param replayed  a graph tells nothing of its parts
  /// @param within_s  for `done()` to come true once NCCL has met an error
  /// @return what a device or NCCL failed with, or Error(deadline); null: nothing
  template <class Done>
  [[nodiscard]] std::exception_ptr wait(std::size_t turn, bool replayed, Done done,
                                        double within_s = 0) noexcept {
    try {
      double const deadline_s = machine_.options().deadline_s;
      auto const start = Clock::now();
      auto moved = start;
      auto met = start;
      std::exception_ptr failure;
      std::uint64_t before = 0;
      for (; !done(); std::this_thread::sleep_for(std::chrono::microseconds(50))) {
        auto const now = Clock::now();
        while (now - start < std::chrono::microseconds(500) &&
               Clock::now() - now < std::chrono::microseconds(20))
          std::this_thread::yield();
        if (failure && seconds(now - met) >= within_s) return failure;
        if (!failure) {
          failure = look();
          met = now;
          if (failure) continue;
        }
        if (auto const progress = replayed ? 0 : links_.look(turn, at_); progress != before) {
          before = progress;
          moved = now;
        } else if (seconds(now - moved) > deadline_s) {
          raise(Errc::deadline, stall_text(replayed));
        }
      }
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  /// Lets what is under way come to its end after an abort.
  /// @return false: the devices may still be at it
  template <class Idle> [[nodiscard]] [[gnu::cold]] bool let_end(Idle idle) noexcept {
    try {
      for (auto const start = Clock::now(); !idle();
           std::this_thread::sleep_for(std::chrono::microseconds(50)))
        if (seconds(Clock::now() - start) > grace_s) return false;
      return true;
    } catch (...) {
      return false;
    }
  }

  static constexpr double grace_s = 0.5;

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration time) noexcept {
    return std::chrono::duration<double>(time).count();
  }

  [[nodiscard]] std::exception_ptr look() noexcept {
    try {
      gpu_set_.look();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  [[nodiscard]] [[gnu::cold]] std::string stall_text(bool replayed) const {
    auto const& program = machine_.program();
    if (replayed)
      return text("the GPUs did not finish a replayed step within ", machine_.options().deadline_s,
                  " s; raise Options::deadline_s if a step may take that long");
    std::vector<std::uint32_t> given(program.signals.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < at_[r]; ++i)
        for (unsigned g = 0; g < program.ranks[r].code[i].gives; ++g)
          ++given[program.ranks[r].code[i].give[g]];
    return text("the GPUs did not move for ", machine_.options().deadline_s,
                " s: ", stagger::detail::describe_stall(program, at_, given),
                "; raise Options::deadline_s if an action may take that long");
  }

  stagger::detail::Machine const& machine_;
  GpuSet& gpu_set_;
  Links& links_;
  std::vector<std::size_t> at_;  // [ranks] instructions that are known to be done
};

/// The same failure, with the step that it ended.
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr of_step(std::exception_ptr const& failure,
                                                              std::int64_t step) noexcept {
  try {
    try {
      std::rethrow_exception(failure);
    } catch (cuda::Error const& error) {
      throw cuda::Error(error.result(), text("step ", step, ": ", error.what()));
    } catch (Error const& error) {
      throw Error(error.result(), text("step ", step, ": ", error.what()));
    } catch (stagger::Error const& error) {
      raise(error.code(), "step ", step, ": ", error.what());
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace stagger::nccl::detail
