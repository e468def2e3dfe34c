// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What `Trainer` hands out: a step that has been asked for and not yet been taken.

#include <coroutine>
#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include <stagger/engine/request.hpp>
#include <stagger/engine/task.hpp>

namespace stagger {

/// What a step, or an evaluation, tells of itself.
struct Metrics {
  double loss = 0;   ///< mean over all terms of the minibatch
  double terms = 0;  ///< how many terms that were
  double gradient_norm =
      0;  ///< 2-norm of all gradients before clipping; 0 unless Options::clip_norm is set
};

/// The microbatches of one minibatch. Sizes may differ from one microbatch to the next.
template <class InputType, class TargetType> struct Batch {
  std::vector<InputType> inputs;    ///< [microbatches]
  std::vector<TargetType> targets;  ///< [microbatches]
};

namespace detail {

struct StepOwner : Drivable {
  virtual void begin(Request const& request, std::stop_token stop) = 0;  // throws if it is busy
  virtual Metrics end() = 0;  // throws what went wrong in the run

 protected:
  ~StepOwner() = default;
};

}  // namespace detail

/// A step that runs when it is given to `run`, or awaited by a coroutine. Dropping it does nothing.
///
/// What it was made from (batch, outputs) must stay until it is done. It ends with the metrics, or
/// with the first exception of any stage, Error(deadline) or Error(cancelled); parameters are then
/// those of the last finished step.
///
/// @cancellation  by the stop token given with the batch: no further action starts; those that run
/// finish
class [[nodiscard]] Step {
 public:
  /// For engines.
  Step(std::shared_ptr<detail::StepOwner> owner, detail::Request const& request,
       std::stop_token stop)
      : owner_(std::move(owner)), request_(request), stop_(std::move(stop)) {}

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> then) {
    auto* const runner = detail::Runner::current();
    if (runner == nullptr) return start(then);
    owner_->begin(request_, stop_);
    pending_.step = owner_.get();
    pending_.then = then;
    runner->enqueue(pending_);
    return true;
  }
  Metrics await_resume() { return owner_->end(); }

  /// For bridges into other executors: runs on the engine's own threads and resumes there.
  /// @return false if the step is done already; `then` is not resumed in that case
  bool start(std::coroutine_handle<> then) {
    owner_->begin(request_, stop_);
    return owner_->start(then);
  }

  /// The token that can cancel the step, and a way to put another in its place before the step
  /// begins.
  [[nodiscard]] std::stop_token const& stop_token() const noexcept { return stop_; }
  void stop_token(std::stop_token stop) noexcept { stop_ = std::move(stop); }

 private:
  friend Metrics run(Step step);
  std::shared_ptr<detail::StepOwner> owner_;
  detail::Request request_;
  std::stop_token stop_;
  detail::Pending pending_;
};

/// Carries a step through on the calling thread, which works as one of the pipeline's threads.
/// @throws  what the step ends with
inline Metrics run(Step step) {
  step.owner_->begin(step.request_, step.stop_);
  step.owner_->drive();
  return step.owner_->end();
}

}  // namespace stagger
