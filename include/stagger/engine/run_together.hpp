// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps of several pipelines at once: workers that train one model, and what each of them
///         exchanges with their parameter server.

#include <atomic>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/engine/step.hpp>
#ifndef STAGGER_SEPARATE_COMPILATION
#include <stagger/engine/detail/exchange/overlapped_exchange.hpp>
#include <stagger/engine/detail/exchange/step_exchange.hpp>
#include <stagger/engine/detail/exchange/stream_exchange.hpp>
#include <stagger/engine/detail/gradient_groups.hpp>
#endif

namespace stagger {

/// The steps of one pipeline, one after the other: a single step, or the steps that a function
/// returns. The function is called with null for the first step, and with the metrics of the
/// previous step as soon as that has ended, independently of other pipelines. It returns an empty
/// optional after the last step. If it throws, the pipeline has failed: its parameter server tells
/// the other workers, as of a step that fails, also those of this run that begin a step later. Of a
/// function that throws when it is first called, nothing says whose it is, so that workers of other
/// programs are not told.
///
/// @code
///     run_together(std::vector<Steps>{a.step(batch), [&, m = 0](Metrics const* before) mutable {
///       if (before != nullptr) std::printf("%g\n", before->loss);
///       return m < count ? std::optional(b.step(batches[m++])) : std::nullopt;
///     }});
/// @endcode
class Steps {
 public:
  Steps(Step step)
      : Steps([step = std::move(step)](Metrics const* before) mutable {
          return before == nullptr ? std::optional(std::move(step)) : std::nullopt;
        }) {}
  /// @param next  called on the thread that calls `run_together`, and on the thread that runs the
  ///              pipeline's steps
  template <class Next>
    requires std::is_invocable_r_v<std::optional<Step>, Next&, Metrics const*>
  Steps(Next next)
      : next_(std::make_shared<Next>(std::move(next))),
        call_([](void* erased, Metrics const* before) -> std::optional<Step> {
          return (*static_cast<Next*>(erased))(before);
        }) {}

  /// The step after the one with these metrics, or the first one.
  [[nodiscard]] std::optional<Step> operator()(Metrics const* before) const {
    return call_(next_.get(), before);
  }

 private:
  std::shared_ptr<void> next_;
  std::optional<Step> (*call_)(void* next, Metrics const* before);
};

namespace detail {

#ifdef STAGGER_SEPARATE_COMPILATION
class LocalExchange;
class OverlappedExchange;
class StepExchange;
class StreamExchange;
template <class Made> std::shared_ptr<PolicyPart const> exchange_policy();
template <class> std::shared_ptr<PolicyPart const> gradient_group_policy();
extern template MakePart exchange_policy<LocalExchange>;
extern template MakePart exchange_policy<OverlappedExchange>;
extern template MakePart exchange_policy<StepExchange>;
extern template MakePart exchange_policy<StreamExchange>;
extern template MakePart gradient_group_policy<WithServer>;
#endif

template <> struct ExchangeTable<WithServer> {
  /// @tparam groups  whether gradients are pushed in groups
  template <class Staleness, bool groups>
  static void extend(std::vector<std::shared_ptr<PolicyPart const>>& parts) {
    using Stepping = std::conditional_t<sends_late<Staleness>, OverlappedExchange, StepExchange>;
    using Exchanges =
        std::conditional_t<AveragingPolicy<Staleness>, LocalExchange,
                           std::conditional_t<Staleness::synchronous, Stepping, StreamExchange>>;
    if constexpr (groups) parts.push_back(gradient_group_policy<WithServer>());
    parts.push_back(exchange_policy<Exchanges>());
  }
};

/// The pipelines that run together, and the progress of each.
class Together {
 public:
  explicit Together(std::vector<Steps> next)
      : next_(std::move(next)),
        metrics_(next_.size()),
        steps_(next_.size()),
        owners_(next_.size()),
        since_(next_.size()),
        heard_(next_.size()) {
    failures_.reserve(next_.size());
  }

  std::vector<Metrics> run() {
    std::vector<std::size_t> timed;  // whose steps have begun and not ended
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < next_.size(); ++i)
      if (advance(i, nullptr)) (steps_[i]->shares_time() ? timed : others).push_back(i);
    if (!failures_.empty()) rethrow();  // others would wait for one that does not begin
    std::vector<std::thread> threads;
    threads.reserve(others.size());
    std::size_t const apart = timed.empty() ? 1 : 0;
    for (std::size_t k = apart; k < others.size(); ++k)
      guarded(others[k], [&] { threads.emplace_back([this, i = others[k]] { run_all(i); }); });
    if (timed.empty() && !others.empty()) run_all(others[0]);
    auto const begins = [&](std::size_t i) { return guarded(i, [&] { begin(i, *steps_[i]); }); };
    std::erase_if(timed, [&](std::size_t i) { return !begins(i); });
    while (!timed.empty())
      std::erase_if(timed, [&](std::size_t i) {
        if (!steps_[i]->drive_together()) return false;
        return !guarded(i, [&] { metrics_[i] = steps_[i]->await_resume(); }) ||
               !advance(i, &metrics_[i]) || !begins(i);
      });
    for (std::thread& thread : threads) thread.join();
    rethrow();
    return std::move(metrics_);
  }

 private:
  struct Failure {
    std::size_t pipeline;
    std::exception_ptr why;
  };
  /// @return whether the body did not throw; otherwise the pipeline has failed
  template <class Body> bool guarded(std::size_t i, Body body) noexcept {
    try {
      body();
      return true;
    } catch (...) {
      Failure const failure{i, std::current_exception()};
      {
        std::lock_guard const lock(mutex_);
        failures_.push_back(failure);
      }
      tell(failure, begun_.load() != since_[i]);
      return false;
    }
  }
  /// Asks for a pipeline's next step.
  /// @return whether there is one
  bool advance(std::size_t i, Metrics const* before) noexcept {
    return guarded(i,
                   [&] {
                     steps_[i] = next_[i](before);
                     if (steps_[i]) owners_[i] = steps_[i]->owner();
                   }) &&
           steps_[i].has_value();
  }
  /// Carries out all steps of a pipeline on the calling thread.
  void run_all(std::size_t i) noexcept {
    do {
      if (!guarded(i, [&] {
            Step step = std::move(*steps_[i]);
            begin(i, step);
            step.owner()->drive();
            metrics_[i] = step.await_resume();
          }))
        return;
    } while (advance(i, &metrics_[i]));
  }
  /// Begins a step. A server tells those of a failure who have begun, so that a pipeline that has
  /// failed fails once more for one that begins later: either this function knows of its failure, or
  /// it sees that this step has begun.
  void begin(std::size_t i, Step& step) {
    step.begin();
    since_[i] = ++begun_;
    for (std::size_t& k = heard_[i];; ++k) {
      std::unique_lock lock(mutex_);
      if (k == failures_.size()) return;
      Failure const before = failures_[k];
      lock.unlock();
      tell(before, true);
    }
  }
  /// @param again  also if the other workers have been told
  void tell(Failure const& failure, bool again) noexcept {
    std::lock_guard const lock(telling_);
    auto const& owner = owners_[failure.pipeline];
    if (owner != nullptr) owner->fail_between(failure.why, again);
  }
  /// Throws the first error of a pipeline that did not fail because of another one; if all did, the
  /// first. One that waits for ever may wait for a pipeline that failed before.
  void rethrow() const {
    for (Failure const& failure : failures_) {
      try {
        std::rethrow_exception(failure.why);
      } catch (Error const& error) {
        bool const waited = error.code() == Errc::deadline && failure.why != failures_.front().why;
        if (error.code() != Errc::peer_failed && !waited) throw;
      }
    }
    if (!failures_.empty()) std::rethrow_exception(failures_.front().why);
  }

  std::vector<Steps> next_;
  std::vector<Metrics> metrics_;                    // [pipelines] of the last step
  std::vector<std::optional<Step>> steps_;          // [pipelines] current step
  std::vector<std::shared_ptr<StepOwner>> owners_;  // [pipelines] of their steps; null: none so far
  std::atomic<std::size_t> begun_{0};               // steps
  std::vector<std::size_t> since_;                  // [pipelines] of them, when its own had begun
  std::vector<std::size_t> heard_;                  // [pipelines] failures told to its steps
  std::mutex telling_;
  std::mutex mutex_;               // guards the next member
  std::vector<Failure> failures_;  // in the order in which pipelines failed
};

}  // namespace detail

/// Runs the steps of several pipelines at the same time: those on virtual clocks on the calling
/// thread, in the order of their time; each other pipeline on a thread of its own, or one of them
/// on the calling thread if that has nothing else to do. All have ended when it returns. If a
/// function throws instead of returning a first step, none begins.
/// @return  [pipelines] metrics of the last step of each
/// @throws  the first error of a pipeline that did not fail because of another one
[[gnu::cold]] inline std::vector<Metrics> run_together(std::vector<Steps> pipelines) {
  return detail::Together(std::move(pipelines)).run();
}

/// Likewise.
[[gnu::cold]] inline std::vector<Metrics> run_together(std::vector<Step> steps) {
  return run_together(
      std::vector<Steps>(std::move_iterator(steps.begin()), std::move_iterator(steps.end())));
}

/// Likewise: run_together(a.stream(batch_a), b.stream(batch_b)).
template <class... More> std::vector<Metrics> run_together(Steps first, More... more) {
  std::vector<Steps> pipelines{std::move(first)};
  (pipelines.push_back(std::move(more)), ...);
  return run_together(std::move(pipelines));
}

}  // namespace stagger
