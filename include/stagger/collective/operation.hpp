// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Operations in flight: poll them, wait for them with a deadline, or co_await them.

#include <stagger/core/requirements.hpp>

#include <chrono>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <thread>
#include <type_traits>

namespace stagger::collective {

/// Something that was started and goes on while its owner does something else.
///
/// `poll()` makes progress without blocking and says whether the operation is done. `wait(seconds)`
/// polls until then and throws `Error(Errc::deadline)` when the time is over. `expire(seconds)`
/// throws that error at once. All three throw what the operation itself failed with. After a
/// deadline the operation still stands and may be waited for again.
template <class O>
concept Operation = std::movable<O> && requires(O operation, double seconds) {
  { operation.poll() } -> std::same_as<bool>;
  { operation.wait(seconds) } -> std::same_as<void>;
  { operation.expire(seconds) } -> std::same_as<void>;
};

/// Waits a little longer each time: first not at all, then one time slice, then up to 200 µs, so
/// that a rank with nothing to do leaves the core to the ranks that have.
class Backoff {
 public:
  /// @param crowded  more threads than cores: it leaves the core from the first time on
  explicit Backoff(bool crowded = false) noexcept : turns_(crowded ? spins : 0) {}

  void pause() {
    ++turns_;
    if (turns_ < spins) return;
    if (turns_ < spins + yields) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    if (sleep_ < longest) sleep_ *= 2;
  }

  /// To be called when something moved.
  void reset() noexcept {
    turns_ = 0;
    sleep_ = shortest;
  }

 private:
  static constexpr int spins = 200;
  static constexpr int yields = 400;
  static constexpr std::chrono::microseconds shortest{25};
  static constexpr std::chrono::microseconds longest{200};
  int turns_;
  std::chrono::microseconds sleep_ = shortest;
};

/// Polls all operations in turn until all are done; the way to wait for ranks that share a thread.
/// @throws Error  Errc::deadline of the first operation that is not done after `seconds`, or what
/// an
///                operation failed with
template <Operation... O> void wait_all(double seconds, O&... operations) {
  auto const start = std::chrono::steady_clock::now();
  for (Backoff backoff;;) {
    bool done = true;
    ((done = operations.poll() && done), ...);
    if (done) return;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >=
        seconds) {
      ((operations.poll() ? void() : operations.expire(seconds)), ...);
    }
    backoff.pause();
  }
}

/// Lets coroutines wait for operations: `co_await poller(operation)`.
///
/// Whoever owns the thread calls `poll()` where it would otherwise be idle; a coroutine is resumed
/// there once its operation is done, and sees the operation's error as an exception. Nothing is
/// allocated: the list runs through the frames that wait. One thread at a time.
class Poller {
  struct Node {
    Node* previous = nullptr;
    Node* next = nullptr;
    std::coroutine_handle<> waiting{};
    std::exception_ptr error{};
    bool (*poll)(Node&) = nullptr;
  };

  template <Operation O> class Awaiter : private Node {
   public:
    Awaiter(Poller& poller, O& operation) : poller_(poller), operation_(operation) {}
    Awaiter(Awaiter const&) = delete;
    Awaiter& operator=(Awaiter const&) = delete;
    ~Awaiter() { unlink(*this); }

    [[nodiscard]] bool await_ready() { return operation_.poll(); }
    void await_suspend(std::coroutine_handle<> coroutine) {
      this->waiting = coroutine;
      this->poll = [](Node& node) { return static_cast<Awaiter&>(node).operation_.poll(); };
      poller_.link(*this);
    }
    void await_resume() const {
      if (this->error) std::rethrow_exception(this->error);
    }

   private:
    Poller& poller_;
    O& operation_;
  };

 public:
  Poller() { head_.next = head_.previous = &head_; }
  Poller(Poller const&) = delete;
  Poller& operator=(Poller const&) = delete;
  /// Coroutines that still wait are left suspended; their owner destroys them.
  ~Poller() {
    while (head_.next != &head_) unlink(*head_.next);
  }

  /// What to co_await; `operation` must outlive the wait.
  template <Operation O> [[nodiscard]] Awaiter<O> operator()(O& operation) {
    return Awaiter<O>(*this, operation);
  }

  /// Polls each operation once and resumes the coroutines whose operation ended.
  /// @return  whether a coroutine was resumed
  bool poll() {
    bool resumed = false;
    Node cursor;  // stands behind the node at hand, which may vanish with its coroutine
    for (Node* node = head_.next; node != &head_;) {
      bool ended = true;
      try {
        ended = node->poll(*node);
      } catch (...) {
        node->error = std::current_exception();
      }
      if (!ended) {
        node = node->next;
        continue;
      }
      insert_after(*node, cursor);
      auto const waiting = node->waiting;
      unlink(*node);
      resumed = true;
      try {
        waiting.resume();
      } catch (...) {
        unlink(cursor);
        throw;
      }
      node = cursor.next;
      unlink(cursor);
      if (node == nullptr) break;  // the coroutine destroyed this poller
    }
    return resumed;
  }

  /// Whether no coroutine waits.
  [[nodiscard]] bool empty() const noexcept { return head_.next == &head_; }

 private:
  static void insert_after(Node& place, Node& node) {
    node.previous = &place;
    node.next = place.next;
    place.next->previous = &node;
    place.next = &node;
  }
  static void unlink(Node& node) noexcept {
    if (node.next == nullptr) return;
    node.previous->next = node.next;
    node.next->previous = node.previous;
    node.next = node.previous = nullptr;
  }
  void link(Node& node) { insert_after(*head_.previous, node); }

  Node head_;
};

}  // namespace stagger::collective
