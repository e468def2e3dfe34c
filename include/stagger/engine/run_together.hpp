// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Several steps or streams at once: workers that train one model.

#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/step.hpp>

namespace stagger {

/// Carries several steps or streams through at once: those on virtual clocks on the calling thread,
/// in the order of their time; each other one on a thread of its own, one of them on the calling one
/// if there is nothing else to do there. All have ended when it returns.
/// @return  [steps] metrics of each
/// @throws  what the first of those ends with that fail by themselves, not since another failed
inline std::vector<Metrics> run_together(std::vector<Step> steps) {
  std::size_t const count = steps.size();
  std::vector<Metrics> metrics(count);
  std::vector<std::exception_ptr> failures;  // in the order in which steps failed
  failures.reserve(count);
  std::mutex mutex;
  auto const failed = [&] {
    std::lock_guard const lock(mutex);
    failures.push_back(std::current_exception());
  };
  auto const carry_out = [&](std::size_t i) noexcept {
    try {
      metrics[i] = run(std::move(steps[i]));
    } catch (...) {
      failed();
    }
  };
  std::vector<std::size_t> timed;  // that have begun and not ended
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < count; ++i) (steps[i].shares_time() ? timed : others).push_back(i);
  std::vector<std::thread> threads;
  threads.reserve(others.size());
  std::size_t const apart = timed.empty() ? 1 : 0;
  for (std::size_t k = apart; k < others.size(); ++k) {
    try {
      threads.emplace_back(carry_out, others[k]);
    } catch (...) {  // no further thread
      failed();
    }
  }
  if (timed.empty() && !others.empty()) carry_out(others[0]);
  std::erase_if(timed, [&](std::size_t i) {
    try {
      steps[i].begin();
      return false;
    } catch (...) {
      failed();
      return true;
    }
  });
  while (!timed.empty())
    std::erase_if(timed, [&](std::size_t i) {
      if (!steps[i].drive_together()) return false;
      try {
        metrics[i] = steps[i].await_resume();
      } catch (...) {
        failed();
      }
      return true;
    });
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr chosen;
  for (std::exception_ptr const& failure : failures) {
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
