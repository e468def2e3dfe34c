// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Several steps or streams at once: workers that train one model.

#include <cstddef>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/step.hpp>

namespace stagger {

/// Carries several steps or streams through at once, each on a thread of its own, one of them on
/// the calling one. All have ended when it returns.
/// @return  [steps] metrics of each
/// @throws  what the first of those ends with that fail by themselves, not since another failed
inline std::vector<Metrics> run_together(std::vector<Step> steps) {
  std::size_t const count = steps.size();
  std::vector<Metrics> metrics(count);
  std::vector<std::exception_ptr> failures(count);
  auto const carry_out = [&](std::size_t i) noexcept {
    try {
      metrics[i] = run(std::move(steps[i]));
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (std::size_t i = 1; i < count; ++i) {
    try {
      threads.emplace_back(carry_out, i);
    } catch (...) {  // no further thread
      failures[i] = std::current_exception();
    }
  }
  if (count != 0) carry_out(0);
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr chosen;
  for (std::exception_ptr const& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (Error const& error) {
      if (error.code() == Errc::peer_failed) {  // some other one says why
        if (!chosen) chosen = failure;
        continue;
      }
      throw;
    }
  }
  if (chosen) std::rethrow_exception(chosen);
  return metrics;
}

/// Likewise: run_together(a.stream(batch_a), b.stream(batch_b)).
template <class... More> std::vector<Metrics> run_together(Step first, More... more) {
  std::vector<Step> steps;
  steps.push_back(std::move(first));
  (steps.push_back(std::move(more)), ...);
  return run_together(std::move(steps));
}

}  // namespace stagger
