// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A connection between a worker and a parameter server, by Boost.Asio.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/host/detail/frames.hpp>

namespace stagger::detail::framed {

using boost::asio::ip::tcp;

/// Memory for the one handler that a connection posts from other threads, so that waking it
/// allocates nothing.
class HandlerMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override {
    if (bytes > sizeof memory_) throw std::bad_alloc();
    return memory_;
  }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(memory_resource const& other) const noexcept override { return this == &other; }

  alignas(std::max_align_t) std::byte memory_[256];
};

/// Lets the system end a connection if the machine of the other side has vanished, within the
/// deadline (to the second), whether bytes are in transit or not.
inline void end_when_vanished(int socket, double deadline_s) noexcept {
  // Systems without the options of TCP check every two hours.
  auto const set = [&](int level, int option, int value) {
    static_cast<void>(::setsockopt(socket, level, option, &value, sizeof value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE) && defined(TCP_KEEPINTVL) && defined(TCP_KEEPCNT)
  auto const seconds = [&](double share) {
    constexpr double longest = 32767;  // that Linux takes
    return static_cast<int>(std::clamp(deadline_s * share, 1.0, longest));
  };
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds(0.5));
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds(0.125));
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
#endif
#if defined(TCP_USER_TIMEOUT)
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(1000 * deadline_s));
#endif
}

inline constexpr std::chrono::milliseconds tick{100};
[[nodiscard]] inline int ticks(double s) { return std::max(2, static_cast<int>(s * 10)); }
/// Calls `body` at each tick, on the thread of the timer's context.
template <class Body> void each_tick(boost::asio::steady_timer& timer, Body body) {
  timer.expires_after(tick);
  timer.async_wait([&timer, body](boost::system::error_code const&) {
    body();
    each_tick(timer, body);
  });
}

/// One connection. All but `wake` and `wake_and_send` runs on the thread of its context.
///
/// It reads and writes as long as there is data, and its owner calls `tick` ten times a second. The
/// connection ends if no byte has been transferred for the deadline while a frame has begun or data
/// is to be written.
class AsioConnection final : public collective::detail::Transport,
                             public std::enable_shared_from_this<AsioConnection> {
 public:
  using Executor = boost::asio::io_context::executor_type;
  using Socket = boost::asio::basic_stream_socket<tcp, Executor>;

  /// @param name  of the other side, for error messages
  /// @param expected  the first bytes of the other side, or null; must outlive this object
  /// @param deadline_s  after which it ends if nothing is transferred
  AsioConnection(Socket socket, std::string name, Hello const* expected, double deadline_s)
      : name_(std::move(name)),
        reader_(expected),
        socket_(std::move(socket)),
        stalls_(ticks(deadline_s)) {
    boost::system::error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    end_when_vanished(socket_.native_handle(), deadline_s);
  }

  /// @param hello  the first bytes of this side, or null
  void start(MessageEnd& end, Hello const* hello = nullptr) {
    std::lock_guard const lock(mutex_);
    boost::system::error_code ignored;
    socket_.non_blocking(true, ignored);
    end_ = &end;
    if (hello != nullptr) writer_.hello(*hello);
    read();
    pump();
  }

  /// Sends all pending data; then the other side closes.
  void finish() {
    std::lock_guard const lock(mutex_);
    finishing_ = true;
    pump();
  }
  /// Ends the connection at once.
  void end(std::exception_ptr const& why) noexcept {
    std::lock_guard const lock(mutex_);
    close(why);
  }
  [[nodiscard]] bool ended() const noexcept { return !socket_.is_open(); }
  /// Whether the other side has not sent all of its first bytes yet, read or not.
  [[nodiscard]] bool silent() const noexcept {
    boost::system::error_code ignored;
    std::size_t const missing = reader_.hello_missing();
    return missing != 0 && socket_.available(ignored) < missing;
  }

  /// @param sentence  which the other side is told when nothing has been transferred for the
  ///                  deadline, whether a frame has begun or not; empty: none
  void tick(std::string const& sentence = {}) noexcept {
    std::lock_guard const lock(mutex_);
    bool const waits =
        blocked_ || reader_.partial() || finishing_ || end_ == nullptr || !sentence.empty();
    std::uint64_t const moved = moved_.load();
    stalled_ = waits && moved == seen_ ? stalled_ + 1 : 0;
    seen_ = moved;
    if (stalled_ < stalls_ || ended()) return;
    if (end_ != nullptr && !sentence.empty()) {
      stalled_ = 0;  // it may take the same time again to read the sentence
      refuse(sentence);
      return pump();
    }
    close(raised(Errc::deadline, "the connection with ", name_,
                 " has not moved for longer than its deadline; check whether the other side still "
                 "runs"));
  }

  void wake() noexcept override {
    if (woken_.exchange(true)) return;
    boost::asio::post(socket_.get_executor(), Wake{shared_from_this()});
  }
  void wake_and_send() noexcept override {
    std::unique_lock const lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || !send_small()) wake();
  }
  [[nodiscard]] std::uint64_t moved() const noexcept override { return moved_.load(); }
  void close() noexcept override {
    boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->finish(); });
  }

 private:
  struct Wake {
    using allocator_type = std::pmr::polymorphic_allocator<std::byte>;
    std::shared_ptr<AsioConnection> self;
    [[nodiscard]] allocator_type get_allocator() const noexcept { return &self->wake_memory_; }
    void operator()() const {
      self->woken_.store(false);
      std::lock_guard const lock(self->mutex_);
      self->pump();
    }
  };

  // The caller of the functions below holds the lock, except that of have_read.

  void close(std::exception_ptr const& why) noexcept {
    if (auto* const told = std::exchange(end_, nullptr)) told->gone(why);
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  void broken(boost::system::error_code const& why) noexcept {
    close(raised(Errc::io, "the connection with ", name_, " has ended: ", why.message(),
                 "; check whether the other side still runs"));
  }
  /// Sends the reason to the other side, then waits until that has closed the connection.
  void refuse(std::string const& sentence) {
    auto const why = raised(Errc::bad_data, sentence);
    if (writer_.partial()) return close(why);
    reader_.forget();
    refusal_ = sentence;
    std::exchange(end_, nullptr)->gone(why);
  }

  void read() {
    auto const to = reader_.space();
    socket_.async_read_some(boost::asio::buffer(to.data(), to.size()),
                            [self = shared_from_this()](auto const& error, std::size_t count) {
                              self->have_read(error, count);
                            });
  }
  /// The handler of a read, which takes the lock itself.
  void have_read(boost::system::error_code const& error, std::size_t count) {
    bool const wakes = !woken_.exchange(true);  // this handler writes afterwards in any case
    std::string refusal;
    if (end_ != nullptr && !error) {  // otherwise it waits until the other side has closed
      try {
        reader_.came(count, *end_);
      } catch (std::exception const& reason) {
        refusal = reason.what();
      }
    }
    if (wakes) woken_.store(false);
    std::lock_guard const lock(mutex_);
    if (ended()) return;
    if (error) return broken(error);
    ++moved_;
    if (!refusal.empty()) refuse(refusal);
    pump();
    if (!ended()) read();
  }

  void fill() {
    if (end_ != nullptr) {
      try {
        writer_.fill(*end_);
      } catch (std::exception const& refusal) {
        refuse(refusal.what());
      }
    }
    if (end_ != nullptr || refusal_.empty() || !writer_.has_room()) return;
    writer_.refuse(refusal_);
    refusal_.clear();
  }
  void pump() {
    while (!blocked_ && !ended()) {
      fill();
      if (ended()) return;
      auto const pieces = writer_.next();
      if (pieces.empty()) {
        boost::system::error_code ignored;  // and reads until the other side has read all of it
        if (finishing_ || end_ == nullptr) socket_.shutdown(tcp::socket::shutdown_send, ignored);
        return;
      }
      auto const why = send(pieces);
      if (why == boost::asio::error::would_block) return wait_for_room();
      if (why) return broken(why);
      if (!pieces.large.empty()) return wake();  // after other connections of the thread
    }
  }
  void wait_for_room() {
    blocked_ = true;
    socket_.async_wait(Socket::wait_write, [self = shared_from_this()](auto const&) {
      std::lock_guard const lock(self->mutex_);
      self->blocked_ = false;
      self->pump();
    });
  }
  /// @return whether nothing is left to send except what the thread of the context sends
  bool send_small() noexcept {
    if (end_ == nullptr || blocked_ || finishing_ || ended()) return false;
    try {
      for (;;) {
        writer_.fill(*end_);
        if (writer_.partial()) return false;
        auto const pieces = writer_.next();
        if (pieces.empty()) return true;
        if (send(pieces)) return false;
      }
    } catch (...) {  // the context's thread will meet the same error
      return false;
    }
  }
  /// Writes as much as the system accepts.
  boost::system::error_code send(FrameWriter::Pieces const& pieces) noexcept {
    std::array<boost::asio::const_buffer, 2> const buffers{
        boost::asio::buffer(pieces.gathered.data(), pieces.gathered.size()),
        boost::asio::buffer(pieces.large.data(), pieces.large.size())};
    boost::system::error_code error;
    std::size_t const count = socket_.send(buffers, 0, error);
    if (error) return error;
    ++moved_;
    writer_.sent(count);
    return {};
  }

  std::string name_;
  FrameReader reader_;
  std::mutex mutex_;  // of all below
  Socket socket_;
  MessageEnd* end_ = nullptr;  // null: it is being closed; set only by the thread of the context
  FrameWriter writer_;
  std::string refusal_;   // to be sent
  bool blocked_ = false;  // until the system takes more
  bool finishing_ = false;
  int stalls_;                           // ticks
  int stalled_ = 0;                      // ticks
  std::uint64_t seen_ = 0;               // of `moved_`
  std::atomic<std::uint64_t> moved_{0};  // reads and writes; written with the lock
  std::atomic<bool> woken_{false};
  HandlerMemory wake_memory_;
};

}  // namespace stagger::detail::framed
