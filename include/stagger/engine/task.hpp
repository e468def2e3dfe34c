// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   User coroutines: a lazy task, and `run`, which waits for one from ordinary code.

#include <stagger/core/requirements.hpp>

#include <coroutine>
#include <cstdint>
#include <exception>
#include <optional>
#include <semaphore>
#include <utility>

namespace stagger {

namespace detail {

/// Something that a thread can run from start to end: a step.
struct Drivable {
  virtual void drive() = 0;  ///< runs it on the calling thread
  /// Runs it on other threads, then resumes `then`.
  /// @return false if it is done already; `then` is not resumed in that case
  virtual bool start(std::coroutine_handle<> then) = 0;
  /// For steps that share a virtual time: runs all that have begun until one of them ends, in
  /// the order of that time. @return whether this one has ended
  virtual bool drive_together() {
    drive();
    return true;
  }
  /// Ends a step that has begun, whose coroutine is gone: cancels it and waits for it.
  /// @param started  whether `start` has returned true for it
  /// @throws  the error of the step
  virtual void abandon(bool started) = 0;

 protected:
  ~Drivable() = default;
};

class Runner;

/// A step that a coroutine awaits, inside of which it lives. A coroutine that is destroyed before
/// the step has ended ends it.
struct Pending {
  enum class State : std::uint8_t { idle, queued, started };

  Pending() = default;
  // Nobody awaits a copy. One that is awaited is neither assigned to nor moved.
  Pending(Pending const&) noexcept {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): nothing is assigned.
  Pending& operator=(Pending const&) noexcept { return *this; }
  ~Pending() {
    if (state != State::idle) leave();
  }

  Drivable* step = nullptr;
  std::coroutine_handle<> then{};
  Pending* next = nullptr;
  Runner* runner = nullptr;  // in whose queue it is
  State state = State::idle;

 private:
  [[gnu::cold]] void leave() noexcept;
};

/// The loop inside `run`: runs, on its own thread, the steps that are awaited by the task or by
/// coroutines that the task has started.
class Runner {
 public:
  Runner() : outer_(std::exchange(current_, this)) {}
  Runner(Runner const&) = delete;
  Runner& operator=(Runner const&) = delete;
  ~Runner() {
    current_ = outer_;
    for (Pending* p = first_; p != nullptr; p = p->next) p->runner = nullptr;  // after an exception
  }

  /// The innermost runner of this thread, or null.
  [[nodiscard]] static Runner* current() noexcept { return current_; }

  void enqueue(Pending& step) noexcept {
    step.next = nullptr;
    step.runner = this;
    step.state = Pending::State::queued;
    (last_ == nullptr ? first_ : last_->next) = &step;
    last_ = &step;
  }

  void remove(Pending const& step) noexcept {
    Pending* before = nullptr;
    for (Pending* p = first_; p != nullptr; before = p, p = p->next) {
      if (p != &step) continue;
      (before == nullptr ? first_ : before->next) = p->next;
      if (last_ == p) last_ = before;
      return;
    }
  }

  /// Called by any thread when the task has ended.
  void finish() noexcept { ended_.release(); }

  /// Returns when the task has ended and no step is left: a step that waits here has begun, so its
  /// pipeline would stay busy for ever.
  void loop(std::coroutine_handle<> task) {
    task.resume();
    while (first_ != nullptr) {
      Pending& step = *first_;  // it is destroyed with the coroutine
      first_ = step.next;
      if (first_ == nullptr) last_ = nullptr;
      if (step.step->drive_together())
        step.then.resume();
      else
        enqueue(step);
    }
    ended_.acquire();  // something else may resume the task on another thread
  }

 private:
  static inline thread_local Runner* current_ = nullptr;
  Runner* outer_;
  Pending* first_ = nullptr;
  Pending* last_ = nullptr;
  std::binary_semaphore ended_{0};
};

inline void Pending::leave() noexcept {
  if (runner != nullptr) runner->remove(*this);
  try {
    step->abandon(state == State::started);
  } catch (...) {  // nobody asks how it ended
  }
}

template <class T> struct TaskResult {
  std::optional<T> value;
  std::exception_ptr error;
  void return_value(T result) { value.emplace(std::move(result)); }
  T take() {
    if (error) std::rethrow_exception(error);
    return std::move(*value);
  }
};
template <> struct TaskResult<void> {
  std::exception_ptr error;
  void return_void() noexcept {}
  void take() {
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace detail

/// A coroutine that starts when it is awaited, or given to `run`:
///
///     Task<double> fit(auto& train, auto const& batches) {
///       double loss = 0;
///       for (auto const& batch : batches) {
///         Metrics const metrics = co_await train.step(batch);  // g++ 12 wants the type named
///         loss = metrics.loss;
///       }
///       co_return loss;
///     }
///     double loss = run(fit(train, batches));
///
/// Exceptions are thrown where it is awaited.
template <class T = void> class [[nodiscard]] Task {
 public:
  struct promise_type : detail::TaskResult<T> {
    std::coroutine_handle<> awaiting{};
    detail::Runner* runner = nullptr;

    Task get_return_object() {
      return Task{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct Final {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
          promise_type& promise = self.promise();
          if (promise.awaiting) return promise.awaiting;
          if (promise.runner != nullptr) promise.runner->finish();
          return std::noop_coroutine();
        }
        void await_resume() noexcept {}
      };
      return Final{};
    }
    void unhandled_exception() noexcept { this->error = std::current_exception(); }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().awaiting = awaiting;
    return handle_;
  }
  T await_resume() { return handle_.promise().take(); }

 private:
  template <class U> friend U run(Task<U> task);
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

/// Runs a task to its end on the calling thread. Steps that it awaits use this thread as one of
/// theirs. So do steps of coroutines that the task has started; all of them end before this
/// returns.
/// @throws what the task throws
template <class T> T run(Task<T> task) {
  detail::Runner runner;
  task.handle_.promise().runner = &runner;
  runner.loop(task.handle_);
  return task.handle_.promise().take();
}

}  // namespace stagger
