// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's session with a parameter server in another process: one connection after
///         another, with one run of the server.

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective::detail {

/// Whether the exception is an Error with Errc::io.
[[nodiscard]] [[gnu::cold]] inline bool is_io(std::exception_ptr const& why) noexcept {
  try {
    if (why) std::rethrow_exception(why);
  } catch (Error const& error) {
    return error.code() == Errc::io;
  } catch (...) {  // any other kind of exception
  }
  return false;
}

/// The queue of messages to send, and the state of the connection. The caller holds the lock in all
/// calls but `connect`, `connected`, `leave` and those that are passed on to the connector.
///
/// If the server goes on with streams over another connection, a thread beside the worker makes it.
class ServerSession {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit ServerSession(std::unique_ptr<Connector> connector) : connector_(std::move(connector)) {}

  [[nodiscard]] Lock lock() const { return Lock(mutex_); }
  [[nodiscard]] double deadline_s() const { return connector_->deadline_s(); }
  [[nodiscard]] std::string name() const {
    return text("the parameter server at ", connector_->name());
  }

  /// Connects and waits until the server has let the worker in. It keeps trying while the server
  /// does not run yet, or has no room.
  /// @param join   the first message
  /// @param count  how many messages the queue has room for
  /// @throws Error  io without a server, deadline without its answer, or what ended the session
  [[gnu::cold]] void connect(MessageEnd& end, Message const& join, std::size_t count) {
    {
      Lock held = lock();
      while (busy_) connector_->wait(held, changed_, deadline_s());  // until the thread gives up
      hang_up(held);  // whose end is not that of the next connection
      broken_ = mending_ = false;
      failure_ = nullptr;
      end_ = &end;
      join_ = join;
      count_ = count;
    }
    try {
      connect();
    } catch (...) {
      Lock const held = lock();
      failure_ = std::current_exception();
      throw;
    }
  }
  [[nodiscard]] bool connected() const {
    Lock const held = lock();
    return transport_ != nullptr || mender_ != nullptr;
  }
  /// Closes the connection; the transport calls nothing after this.
  void leave() noexcept {
    Lock held = lock();
    leaving_ = true;
    notify(held);
    mender_ = nullptr;
    held.lock();
    hang_up(held);
  }

  /// Called when the connection is lost: makes another one, over which the state must be sent
  /// again. Messages that are offered meanwhile are dropped.
  /// @return whether the server can go on over another connection
  bool mend(std::exception_ptr const& why) noexcept {
    if (!resumes_ || !joined_ || failure_ || leaving_ || !is_io(why)) return false;
    try {
      if (mender_ == nullptr)
        mender_ = connector_->run_aside(
            [](void* of) { static_cast<ServerSession*>(of)->keep_mending(); }, this);
    } catch (...) {
      return false;
    }
    joined_ = false;
    mending_ = broken_ = true;
    changed_.notify_all();
    return true;
  }
  [[nodiscard]] bool mending() const noexcept { return mending_; }

  /// The server has let the worker in.
  /// @param resumes  whether the server goes on with streams over another connection
  /// @return         whether it is the same run of the server as before
  bool join(std::uint64_t run, bool resumes) noexcept {
    if (run_ != 0 && run_ != run) return false;
    run_ = run;
    resumes_ = resumes;
    joined_ = true;
    ++joins_;
    connecting_ = mending_ = false;
    return true;
  }
  [[nodiscard]] bool resumes() const noexcept { return resumes_; }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  /// Whether a server has ever let the worker in.
  [[nodiscard]] bool knows_server() const noexcept { return run_ != 0; }
  void forget_server() noexcept {
    run_ = 0;
    leaving_ = false;
  }

  /// @return whether there was room
  bool offer(Message const& message) noexcept {
    if (mending_) return true;
    bool const taken = queue_.push(message);
    if (transport_ != nullptr) transport_->wake();
    return taken;
  }
  /// @throws Error  deadline where there is no room
  void send(Message const& message) {
    if (!offer(message)) disconnect("took no messages, and their queue is full");
  }
  /// Likewise, and unlocks. A small message is sent on the calling thread if possible, which saves
  /// a switch to the transport's thread.
  void send(Lock& lock, Message const& message) {
    if (!mending_ && !queue_.push(message)) disconnect("took no messages, and their queue is full");
    auto const transport = transport_;  // once unlocked, another transport may take its place
    lock.unlock();
    if (transport != nullptr)
      message.bytes <= small_bytes ? transport->wake_and_send() : transport->wake();
  }
  /// @return whether there was a message to send
  bool next(Message& message) noexcept {
    if (queue_.empty()) return false;
    message = queue_.pop();
    return true;
  }
  /// @throws Error  the error that has ended the session, or deadline
  /// @param what    what the server should have done, in words
  template <class Until> void wait(Lock& lock, char const* what, Until until) {
    if (wait_for(lock, deadline_s(), until, true)) return;
    require_alive();
    disconnect(text("has not ", what, " for ", deadline_s(), " s"));
  }
  /// Ends the session. @param which  should be checked. @throws Error  deadline, always
  [[noreturn]] [[gnu::cold]] void disconnect(std::string const& reason, char const* which = "it") {
    mending_ = false;
    failure_ = raised(Errc::deadline, name(), " ", reason, "; check whether ", which,
                      " runs, or raise the deadline");
    changed_.notify_all();
    std::rethrow_exception(failure_);
  }
  /// @param moving  whether each transfer begins the time again. @return whether `until` is true
  template <class Until>
  bool wait_for(Lock& lock, double most_s, Until until, bool moving = false) {
    double limit_s = connector_->now_s() + most_s;
    for (std::uint64_t moved = 0; !until() && !failure_;) {
      double const now_s = connector_->now_s();
      bool const looks = moving && transport_ != nullptr;
      std::uint64_t const last = std::exchange(moved, looks ? transport_->moved() : 0);
      if (moved != last) limit_s = now_s + most_s;
      if (!(now_s < limit_s)) break;
      connector_->wait(lock, changed_, std::min(limit_s - now_s, looks ? most_s / 8 : most_s));
    }
    return until();
  }
  /// Wakes the waiting threads, whose conditions may hold now. Unlocks first, so that they need not
  /// wait for the lock.
  void notify(Lock& lock) noexcept {
    lock.unlock();
    changed_.notify_all();
  }

  /// Ends the session with an error. @return whether it had not ended before
  bool fail(std::exception_ptr why) noexcept {
    bool const first = !failure_ && !connecting_;
    if (first) mending_ = false;
    if (auto& kept = first ? failure_ : refusal_; !kept) kept = std::move(why);
    changed_.notify_all();
    return first;
  }
  [[nodiscard]] std::exception_ptr const& failure() const noexcept { return failure_; }
  void require_alive() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr std::size_t small_bytes = std::size_t{1} << 14U;
  /// Keeps trying until the server lets the worker in, or the deadline has passed.
  [[gnu::cold]] void connect() {
    double const begun_s = connector_->now_s();
    for (;;) {
      Lock held = lock();
      hang_up(held);
      unsigned const before = joins_;
      refusal_ = nullptr;
      joined_ = false;
      connecting_ = true;
      queue_.reset(count_);
      queue_.push(join_);
      held.unlock();
      try {
        std::shared_ptr<Transport> made = connector_->connect(*end_);
        held.lock();
        transport_ = std::move(made);
        transport_->wake();
        // It may be lost again before this thread has seen that the worker was let in.
        auto const answered = [&] { return joins_ != before || refusal_ || leaving_; };
        static_cast<void>(wait_for(held, deadline_s(), answered, true));
        if (joins_ != before) return;
        require_alive();
        if (refusal_) std::rethrow_exception(refusal_);
        raise(Errc::deadline, name(),
              " has not let the worker join, and nothing has been sent for ", deadline_s(),
              " s; check whether it runs, or raise the deadline");
      } catch (...) {
        bool const late = connector_->now_s() - begun_s > deadline_s();
        if (!held.owns_lock()) held.lock();
        hang_up(held);
        connecting_ = is_io(std::current_exception()) && !late && !leaving_ && !failure_;
        if (!connecting_) throw;
        connector_->wait(held, changed_, 0.05);
      }
    }
  }
  void keep_mending() noexcept {
    for (Lock held = lock();;) {
      while (!leaving_ && !broken_) connector_->wait(held, changed_, deadline_s());
      if (leaving_) return;
      broken_ = false;
      busy_ = true;
      held.unlock();
      try {
        connect();
      } catch (...) {
        end_->gone(std::current_exception());
      }
      held.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  void hang_up(Lock& held) noexcept {
    auto last = std::exchange(transport_, nullptr);
    held.unlock();  // the transport may call the session until it has ended
    if (last != nullptr) last->close();
    last = nullptr;
    held.lock();
  }

  std::unique_ptr<Connector> connector_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  MessageQueue queue_;
  std::exception_ptr failure_;
  std::exception_ptr refusal_;  // why the connection that is being made was refused
  std::uint64_t run_ = 0;       // of the server; 0: none has let the worker in yet
  bool resumes_ = false;        // the server goes on with streams over another connection
  bool joined_ = false;         // the worker has been let in over this connection
  unsigned joins_ = 0;          // how often it has been let in, over all connections
  bool connecting_ = false;
  bool mending_ = false;
  bool broken_ = false;  // the connection is lost, and the thread is to make another
  bool busy_ = false;    // the thread is making a connection
  bool leaving_ = false;
  MessageEnd* end_ = nullptr;
  Message join_;
  std::size_t count_ = 0;
  std::unique_ptr<Connector::Aside> mender_;
  std::shared_ptr<Transport> transport_;
};

}  // namespace stagger::collective::detail
