// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A step that has been requested from a `Trainer` and not yet been taken.

#include <stagger/core/requirements.hpp>

#include <coroutine>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/stop_token.hpp>
#include <stagger/engine/detail/request.hpp>
#include <stagger/engine/task.hpp>

namespace stagger {

/// The results of a step or of an evaluation.
struct Metrics {
  double loss = 0;   ///< mean over all terms of the minibatch
  double terms = 0;  ///< the number of terms
  double gradient_norm =
      0;            ///< 2-norm of all gradients before clipping; 0 unless Options::clip_norm is set
  int skipped = 0;  ///< updates left out, as NonFinite::skip says: 1 in a step without its update
};

/// The microbatches of one minibatch. Sizes may differ from one microbatch to the next.
///
/// Over several processes (mpi::Processes) a process may leave out what its ranks do not read:
/// inputs are read by the first stage, targets by the last one.
template <class InputType, class TargetType> struct Batch {
  std::vector<InputType> inputs;    ///< [microbatches]
  std::vector<TargetType> targets;  ///< [microbatches]
  std::size_t microbatches = 0;     ///< their number, where inputs and targets are both left out
};

class Ticket;

namespace detail {

/// An entry in the ring of steps in flight, with the ticket of its step, unless that was dropped.
struct TicketPlace {
  Ticket* ticket = nullptr;
};

struct StepOwner : Drivable {
  virtual void begin(Request const& request, stagger::stop_token stop) = 0;  // throws if it is busy
  virtual Metrics end() = 0;  // throws the error of the run

  /// Begins a step and returns while a device runs it. If no device runs ahead, carries it out.
  /// @return  the step's entry; null: it is done, with `metrics`
  virtual TicketPlace* enqueue(Request const& request, stagger::stop_token stop, Metrics& metrics) {
    begin(request, std::move(stop));
    drive();
    metrics = end();
    return nullptr;
  }
  /// Whether its steps may run on one virtual clock with those of other pipelines.
  [[nodiscard]] virtual bool shares_time() const noexcept { return false; }
  /// Its next step, with which others exchange parameters, will not come, because of an error.
  /// @param again  also if they have been told: some have begun since
  virtual void fail_between(std::exception_ptr const& /*why*/, bool /*again*/) noexcept {}
  /// Waits for the step of an entry and all earlier ones; null: for all of them.
  virtual void settle(TicketPlace const*) {}
  /// Notes which steps are done, without waiting.
  virtual void poll() {}
  /// A ticket was dropped that nobody had asked for the error of its step.
  virtual void untold(std::exception_ptr) noexcept {}

 protected:
  ~StepOwner() = default;
};

}  // namespace detail

/// A step that runs when it is given to `run`, or awaited by a coroutine. Dropping it does nothing.
///
/// It keeps a batch that was given as a temporary, or moved. One that was given by name, and the
/// outputs, must stay valid until it is done. It ends with its metrics, or with the first exception
/// of any stage, Error(deadline) or Error(cancelled); parameters are then those of the last
/// finished step.
///
/// A coroutine may be destroyed while it awaits a step, unless it is being resumed: the step is
/// cancelled, and the destructor waits for the actions that run. A stage must not destroy the
/// coroutine that awaits its own step.
///
/// @cancellation  by the stop token given with the batch: no further action starts; those that run
/// finish
class [[nodiscard(
    "stagger: a step does nothing until it is run: run(train.step(batch)), or co_await it")]] Step {
 public:
  /// For engines.
  Step(std::shared_ptr<detail::StepOwner> owner, detail::Request const& request,
       stagger::stop_token stop)
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
  Metrics await_resume() {
    pending_.state = detail::Pending::State::idle;
    return owner_->end();
  }

  /// For bridges into other executors: runs on the engine's own threads and resumes there.
  /// @return false if the step is done already; `then` is not resumed in that case
  bool start(std::coroutine_handle<> then) {
    owner_->begin(request_, stop_);
    pending_.step = owner_.get();
    pending_.runner = nullptr;
    pending_.state = detail::Pending::State::started;  // before another thread may resume `then`
    try {
      if (owner_->start(then)) return true;  // this object may be gone
    } catch (...) {
      pending_.state = detail::Pending::State::idle;
      throw;
    }
    pending_.state = detail::Pending::State::idle;
    return false;
  }

  /// For `run_together`: these begin a step and run it together with others; `await_resume` ends
  /// it.
  [[nodiscard]] bool shares_time() const noexcept { return owner_->shares_time(); }
  void begin() { owner_->begin(request_, stop_); }
  [[nodiscard]] bool drive_together() { return owner_->drive_together(); }
  /// Likewise, to tell the others if no further step of its pipeline comes.
  [[nodiscard]] std::shared_ptr<detail::StepOwner> const& owner() const noexcept { return owner_; }

  /// The token that can cancel the step; it can be replaced before the step begins.
  [[nodiscard]] stagger::stop_token const& stop_token() const noexcept { return stop_; }
  void stop_token(stagger::stop_token stop) noexcept { stop_ = std::move(stop); }

  /// For engines: keeps what the request points to.
  Step&& keep(std::shared_ptr<void const> batch) && noexcept {
    request_.kept = std::move(batch);
    return std::move(*this);
  }

  // Members that only the Metrics returned by `run` have; a program that uses them on a step gets
  // an error that says so. For clang they are variables, since it converts a function before it
  // checks it; for g++ functions, since it repeats the error three times for a variable.
#define STAGGER_OF_METRICS(name)                                   \
  __attribute__((                                                  \
      unavailable("stagger: a step that was not run has no " #name \
                  ": run it first, as in run(train.step(batch))." #name))) static double
#ifdef __clang__
  STAGGER_OF_METRICS(loss) const loss;
  STAGGER_OF_METRICS(terms) const terms;
  STAGGER_OF_METRICS(gradient_norm) const gradient_norm;
  STAGGER_OF_METRICS(skipped) const skipped;
#else
  STAGGER_OF_METRICS(loss) loss();
  STAGGER_OF_METRICS(terms) terms();
  STAGGER_OF_METRICS(gradient_norm) gradient_norm();
  STAGGER_OF_METRICS(skipped) skipped();
#endif
#undef STAGGER_OF_METRICS

 private:
  friend Metrics run(Step step);
  friend Ticket enqueue(Step step);
  std::shared_ptr<detail::StepOwner> owner_;
  detail::Request request_;
  stagger::stop_token stop_;
  detail::Pending pending_;
};

/// Runs a step to its end; the calling thread works as one of the pipeline's threads.
/// @throws  the error with which the step ends
inline Metrics run(Step step) {
  step.owner_->begin(step.request_, step.stop_);
  step.owner_->drive();
  return step.owner_->end();
}

/// A step that a device may still run, made by `enqueue`. Use it on the thread that takes the
/// pipeline's steps. Dropping it does not wait; an error that nobody asked its ticket for is thrown
/// by the next step, or by `Trainer::settle`.
class [[nodiscard]] Ticket {
 public:
  /// A ticket that belongs to no step.
  Ticket() = default;
  Ticket(Ticket&& other) noexcept { take(other); }
  Ticket& operator=(Ticket&& other) noexcept {
    if (this != &other) {
      leave();
      take(other);
    }
    return *this;
  }
  ~Ticket() { leave(); }

  /// Whether the step is done, successfully or not. Does not wait.
  [[nodiscard]] bool done() {
    if (place_ != nullptr) owner_->poll();
    return place_ == nullptr;
  }

  /// Waits until the step and all earlier ones are done; then the batch may change.
  void wait() {
    if (place_ != nullptr) owner_->settle(place_);
  }

  /// Waits for the step and returns its metrics; may be called repeatedly.
  /// @throws  the error with which the step ended
  Metrics metrics() {
    wait();
    told_ = true;
    if (failure_) std::rethrow_exception(failure_);
    return metrics_;
  }

  /// For engines.
  void resolve(Metrics const& metrics, std::exception_ptr failure) noexcept {
    metrics_ = metrics;
    failure_ = std::move(failure);
    place_ = nullptr;
  }

 private:
  friend Ticket enqueue(Step step);
  void take(Ticket& other) noexcept {
    owner_ = std::move(other.owner_);
    place_ = std::exchange(other.place_, nullptr);
    metrics_ = other.metrics_;
    failure_ = std::exchange(other.failure_, nullptr);
    told_ = other.told_;
    if (place_ != nullptr) place_->ticket = this;
  }
  void leave() noexcept {
    if (place_ != nullptr) place_->ticket = nullptr;
    place_ = nullptr;
    if (failure_ && !told_) owner_->untold(std::move(failure_));
  }

  std::shared_ptr<detail::StepOwner> owner_;
  detail::TicketPlace* place_ = nullptr;  // null: done
  Metrics metrics_;
  std::exception_ptr failure_;
  bool told_ = false;  // `metrics` was asked for
};

/// Starts a step on a device and returns while the device runs it. At most a fixed number of steps
/// is in flight, such as `cuda::Gpus::ahead`. Steps are carried out in the order in which they were
/// enqueued. The batch must not change until the step's ticket is done. On devices that do not run
/// ahead, such as host threads, the step is done when this returns.
///
/// @code
///     Ticket last;
///     for (auto const& batch : batches) last = enqueue(train.step(batch));
///     std::printf("%g\n", last.metrics().loss);   // waits; not asking does not
/// @endcode
///
/// @throws  the reason why the step could not be enqueued; the error of an earlier step that
///          was not reported yet
inline Ticket enqueue(Step step) {
  Ticket ticket;
  ticket.place_ = step.owner_->enqueue(step.request_, step.stop_, ticket.metrics_);
  if (ticket.place_ != nullptr) ticket.place_->ticket = &ticket;
  ticket.owner_ = std::move(step.owner_);
  return ticket;
}

}  // namespace stagger
