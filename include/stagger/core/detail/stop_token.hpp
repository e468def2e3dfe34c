// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   stop_token, stop_source and stop_callback with the meaning of C++20, [thread.stoptoken],
///         for standard libraries that lack them.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace stagger::detail::stopping {

/// The state that a source, its tokens and its callbacks share.
class State {
 public:
  /// A callback that may be in the list of a state.
  class Entry {
   public:
    Entry(Entry const&) = delete;
    Entry& operator=(Entry const&) = delete;

   protected:
    explicit Entry(void (*run)(Entry&) noexcept) noexcept : run_(run) {}
    ~Entry() = default;

   private:
    friend class State;
    void (*run_)(Entry&) noexcept;
    Entry* next_ = nullptr;
    Entry* previous_ = nullptr;
  };

  [[nodiscard]] bool requested() const noexcept {
    return requested_.load(std::memory_order_acquire);
  }
  /// Whether a stop was requested, or a source is left that can request one.
  [[nodiscard]] bool possible() const noexcept {
    return requested() || sources_.load(std::memory_order_acquire) != 0;
  }
  void add_source() noexcept { sources_.fetch_add(1, std::memory_order_relaxed); }
  void remove_source() noexcept { sources_.fetch_sub(1, std::memory_order_release); }

  /// Runs the callbacks here, one after the other, unless stopping was requested before.
  bool request() noexcept {
    std::unique_lock lock(mutex_);
    if (requested_.load(std::memory_order_relaxed)) return false;
    requested_.store(true, std::memory_order_release);
    requester_ = std::this_thread::get_id();
    while (first_ != nullptr) {
      running_ = first_;
      unlink(*running_);
      Entry& entry = *running_;
      lock.unlock();
      entry.run_(entry);  // may destroy itself
      lock.lock();
      running_ = nullptr;
      finished_.notify_all();
    }
    return true;
  }

  /// @returns false if stopping was requested already, so that the callback is to run at once
  bool add(Entry& entry) {
    std::lock_guard const lock(mutex_);
    if (requested_.load(std::memory_order_relaxed)) return false;
    entry.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &entry;
    first_ = &entry;
    return true;
  }

  /// Afterwards the callback is not running, unless it calls this function itself.
  void remove(Entry& entry) noexcept {
    std::unique_lock lock(mutex_);
    if (&entry == first_ || entry.previous_ != nullptr)
      unlink(entry);
    else if (requester_ != std::this_thread::get_id())
      finished_.wait(lock, [&] { return running_ != &entry; });
  }

 private:
  void unlink(Entry& entry) noexcept {
    (entry.previous_ != nullptr ? entry.previous_->next_ : first_) = entry.next_;
    if (entry.next_ != nullptr) entry.next_->previous_ = entry.previous_;
    entry.next_ = entry.previous_ = nullptr;
  }

  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<bool> requested_{false};
  std::atomic<std::size_t> sources_{1};
  std::thread::id requester_;
  Entry* first_ = nullptr;
  Entry* running_ = nullptr;
};

struct nostopstate_t {
  explicit nostopstate_t() = default;
};
inline constexpr nostopstate_t nostopstate{};

/// Asks whether stopping was requested.
class stop_token {
 public:
  stop_token() noexcept = default;
  [[nodiscard]] bool stop_requested() const noexcept { return state_ && state_->requested(); }
  [[nodiscard]] bool stop_possible() const noexcept { return state_ && state_->possible(); }
  void swap(stop_token& other) noexcept { state_.swap(other.state_); }
  friend void swap(stop_token& a, stop_token& b) noexcept { a.swap(b); }
  [[nodiscard]] friend bool operator==(stop_token const&, stop_token const&) noexcept = default;

 private:
  friend class stop_source;
  template <class> friend class stop_callback;
  explicit stop_token(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class stop_source {
 public:
  stop_source() : state_(std::make_shared<State>()) {}
  explicit stop_source(nostopstate_t) noexcept {}
  stop_source(stop_source const& other) noexcept : state_(other.state_) {
    if (state_) state_->add_source();
  }
  stop_source(stop_source&& other) noexcept = default;
  stop_source& operator=(stop_source other) noexcept {
    swap(other);
    return *this;
  }
  ~stop_source() {
    if (state_) state_->remove_source();
  }

  /// @returns true for the one call that had an effect; by then all callbacks have run
  bool request_stop() const noexcept {
    auto const state = state_;  // a callback may destroy this source
    return state && state->request();
  }
  [[nodiscard]] stop_token get_token() const noexcept { return stop_token(state_); }
  [[nodiscard]] bool stop_requested() const noexcept { return state_ && state_->requested(); }
  [[nodiscard]] bool stop_possible() const noexcept { return state_ != nullptr; }
  void swap(stop_source& other) noexcept { state_.swap(other.state_); }
  friend void swap(stop_source& a, stop_source& b) noexcept { a.swap(b); }
  [[nodiscard]] friend bool operator==(stop_source const&, stop_source const&) noexcept = default;

 private:
  std::shared_ptr<State> state_;
};

/// Calls `callback()` when stopping is requested, on the thread that requests it, or at once if
/// that has happened. Once it is destroyed, the callback is not running, unless it destroyed this
/// object itself.
template <class Callback> class stop_callback : private State::Entry {
 public:
  using callback_type = Callback;

  template <class C>
    requires std::constructible_from<Callback, C>
  explicit stop_callback(stop_token token,
                         C&& callback) noexcept(std::is_nothrow_constructible_v<Callback, C>)
      : Entry([](Entry& self) noexcept { static_cast<stop_callback&>(self).run(); }),
        callback_(std::forward<C>(callback)) {
    if (!token.state_ || !token.state_->possible()) return;
    state_ = std::move(token.state_);
    if (state_->add(*this)) return;
    state_.reset();
    run();
  }
  stop_callback(stop_callback const&) = delete;
  stop_callback& operator=(stop_callback const&) = delete;
  ~stop_callback() {
    if (state_) state_->remove(*this);
  }

 private:
  void run() noexcept { std::forward<Callback>(callback_)(); }
  Callback callback_;
  std::shared_ptr<State> state_;
};
template <class Callback> stop_callback(stop_token, Callback) -> stop_callback<Callback>;

}  // namespace stagger::detail::stopping
