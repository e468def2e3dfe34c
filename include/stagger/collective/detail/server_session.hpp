// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's session with a parameter server in another process: connections, one after the
///         other, with one run of the server.

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

/// What waits to be sent, and whether the connection still stands. Its lock is held in all calls but
/// `connect`, `hang_up` and those that the connector answers.
class ServerSession {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit ServerSession(std::unique_ptr<Connector> connector) : connector_(std::move(connector)) {}

  [[nodiscard]] Lock lock() const { return Lock(mutex_); }
  [[nodiscard]] double deadline_s() const { return connector_->deadline_s(); }
  [[nodiscard]] std::string name() const {
    return text("the parameter server at ", connector_->name());
  }

  /// Connects anew and waits until the server has let the worker in; also for a server that does not
  /// run yet, or has no room for a moment.
  /// @param join   the first message
  /// @param count  messages for which there is room
  /// @throws Error  io without a server, deadline without its answer, or what has ended the session
  [[gnu::cold]] void connect(MessageEnd& end, Message const& join, std::size_t count) {
    double const begun_s = connector_->now_s();
    for (;;) {
      hang_up();
      failure_ = nullptr;
      joined_ = false;
      queue_.reset(count);
      queue_.push(join);
      try {
        auto made = connector_->connect(end);
        Lock held = lock();
        transport_ = std::move(made);
        transport_->wake();
        return wait(held, "let the worker join", [this] { return joined_; });
      } catch (Error const& error) {
        hang_up();
        failure_ = std::current_exception();
        if (error.code() != Errc::io || connector_->now_s() - begun_s > deadline_s()) throw;
      }
      Lock held = lock();
      connector_->wait(held, changed_, 0.05);
    }
  }
  [[nodiscard]] bool connected() const noexcept { return transport_ != nullptr; }
  /// After this the transport tells nothing any more.
  void hang_up() noexcept {
    std::unique_ptr<Transport> last;
    {
      Lock const held = lock();
      last = std::move(transport_);
    }
    if (last != nullptr) last->close();
  }

  /// The server has let the worker in. @return whether it is the one that did so before
  bool join(std::uint64_t run) noexcept {
    if (run_ != 0 && run_ != run) return false;
    run_ = run;
    joined_ = true;
    return true;
  }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  /// Whether a server has ever let the worker in.
  [[nodiscard]] bool knows_server() const noexcept { return run_ != 0; }
  void forget_server() noexcept { run_ = 0; }
  [[nodiscard]] [[gnu::cold]] std::exception_ptr another_server() const {
    return std::make_exception_ptr(Error(
        Errc::mismatch,
        text(name(),
             " has been started anew and does not know what it had; start all workers anew, too")));
  }

  /// @return whether there was room
  bool offer(Message const& message) noexcept {
    bool const taken = queue_.push(message);
    if (transport_ != nullptr) transport_->wake();
    return taken;
  }
  /// @throws Error  deadline where there is no room
  void send(Message const& message) {
    if (!offer(message)) disconnect("takes no messages");
  }
  /// Likewise, and lets go of the lock: what is small leaves before this returns, if it can, which
  /// spares it a way through another thread.
  void send(Lock& lock, Message const& message) {
    if (!queue_.push(message)) disconnect("takes no messages");
    Transport* const transport = transport_.get();
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

  /// @throws Error  why the session has ended, or deadline
  /// @param what    the server should have done
  template <class Until> void wait(Lock& lock, char const* what, Until until) {
    if (wait_for(lock, deadline_s(), until)) return;
    require_alive();
    disconnect(text("has not ", what, " for ", deadline_s(), " s"));
  }
  /// @return whether `until` came true in that time
  template <class Until> bool wait_for(Lock& lock, double most_s, Until until) {
    double const limit_s = connector_->now_s() + most_s;
    for (double left_s = most_s; !until() && !failure_ && left_s > 0;
         left_s = limit_s - connector_->now_s())
      connector_->wait(lock, changed_, left_s);
    return until();
  }
  /// What somebody waits for may have come true. Lets go of the lock, for which who wakes would
  /// have to wait.
  void notify(Lock& lock) noexcept {
    lock.unlock();
    changed_.notify_all();
  }

  /// Nothing more comes. @return whether that is news
  bool fail(std::exception_ptr why) noexcept {
    bool const first = !failure_;
    if (first) failure_ = std::move(why);
    changed_.notify_all();
    return first;
  }
  [[nodiscard]] std::exception_ptr const& failure() const noexcept { return failure_; }
  void require_alive() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr std::size_t small_bytes = std::size_t{1} << 14U;

  [[noreturn]] [[gnu::cold]] void disconnect(std::string const& reason) {
    fail(std::make_exception_ptr(
        Error(Errc::deadline,
              text(name(), " ", reason, "; see whether it runs, or raise the deadline"))));
    std::rethrow_exception(failure_);
  }

  std::unique_ptr<Connector> connector_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  MessageQueue queue_;
  std::exception_ptr failure_;
  std::uint64_t run_ = 0;  // of the server; 0: none has let the worker in
  bool joined_ = false;    // over this connection
  std::unique_ptr<Transport> transport_;
};

}  // namespace stagger::collective::detail
