// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Connections between workers and the parts of a parameter server in other processes, and
///         the envelopes in which their messages are sent.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/messages.hpp>
#include <stagger/collective/server_connection.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/session.hpp>

namespace stagger::mpi::detail {

using collective::detail::Message;
using collective::detail::MessageEnd;
using collective::detail::MessageKind;

/// Packs messages that wait at the same time into one envelope, each with its payload behind it,
/// until the envelope has `full` bytes: for the many small layers of a model, an envelope each
/// would cost more than their bytes.
///
/// There are `window` envelopes, which are replaced when a longer message is to be sent than ever
/// before.
class Packing {
 public:
  static constexpr std::size_t window = 4;
  static constexpr std::size_t full = std::size_t{1} << 14U;
  static constexpr Stamp always{.epoch = 1};

  explicit Packing(Channels& channels) : channels_(channels) {}

  /// Sets where the envelopes come from and go to; called once, before anything else.
  /// @param pool  of the channels, for this connection alone
  void open(std::size_t pool, int peer, std::uint32_t what) {
    pool_ = pool, peer_ = peer, what_ = what;
    channels_.provide(pool_, window, full + sizeof(Message));
  }
  [[nodiscard]] std::size_t pool() const noexcept { return pool_; }
  /// Whether there is an envelope for a further message.
  [[nodiscard]] bool has_room() noexcept {
    return envelope_ != nullptr || channels_.has_spare(pool_);
  }
  /// Adds a message, and sends the envelope if it is full then.
  /// @param payload  [message.bytes]
  void add(Message const& message, std::span<std::byte const> payload) {
    longest_ = std::max(longest_, sizeof message + payload.size());
    channels_.provide(pool_, window, full + longest_);
    if (envelope_ == nullptr) envelope_ = channels_.blank(pool_);
    ByteWriter& to = envelope_->payload;
    to.reserve(to.size() + sizeof message + payload.size());  // so that it has whole messages
    to.add(message);
    to.add(payload.data(), payload.size());
    if (to.size() >= full) send();
  }
  /// Sends the envelope that is not full.
  void send() {
    if (envelope_ != nullptr) channels_.post(std::move(envelope_), always, what_, &peer_, 1);
  }
  /// Sends a message without waiting for others.
  void send(Message const& message, std::span<std::byte const> payload) {
    add(message, payload);
    send();
  }

 private:
  Channels& channels_;
  std::size_t pool_ = 0;
  int peer_ = 0;
  std::uint32_t what_ = 0;
  std::size_t longest_ = 0;               // message with its payload
  std::unique_ptr<Outgoing> envelope_{};  // null: none has been begun
};

/// One process's ends of all connections. A thread receives messages, answers them and sends
/// others, whatever else the process does: a server answers while its process computes, and a
/// worker is notified of weights while its stages wait. While no message arrives, the thread
/// occupies a core for at most `awake`; from then on it sleeps between two polls for as long as it
/// has waited so far, at most `longest`.
///
/// While all envelopes of a connection are in transit, further messages wait in the queue of its
/// end. So in the steady state nothing is allocated, however late messages are sent.
class Connections {
 public:
  /// @param processes   made by all of them together
  /// @param deadline_s  a process that is silent for so long counts as failed
  /// @param server      which workers of other processes join
  Connections(MPI_Comm processes, double deadline_s,
              std::shared_ptr<collective::detail::ServerInProcess> server,
              collective::detail::RemoteRules rules)
      : deadline_s_(deadline_s),
        server_(std::move(server)),
        rules_(std::move(rules)),
        channels_(processes, std::size_t{1} << 30U, Packing::full),
        heard_at_(channels_.size()),
        told_(channels_.size()) {
    thread_ = std::thread([this] { run(); });
  }
  Connections(Connections const&) = delete;
  Connections& operator=(Connections const&) = delete;
  ~Connections() {
    quit_.store(true);
    something_.notify_one();
    thread_.join();
    channels_.flush(0.2);
  }

  [[nodiscard]] int rank() const noexcept { return channels_.rank(); }
  [[nodiscard]] double deadline_s() const noexcept { return deadline_s_; }

  /// Connects a worker with the server of another process. This object must outlive the connection.
  [[nodiscard]] std::unique_ptr<collective::detail::Transport> connect(int process,
                                                                       MessageEnd& end) {
    std::lock_guard const lock(mutex_);
    auto made = std::make_unique<Connection>(*this, process, ++made_, end);
    add(*made);
    return made;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds awake{100};
  static constexpr std::chrono::microseconds longest{1000};
  static constexpr Stamp always = Packing::always;
  static constexpr std::uint32_t say_alive = 0xffffffff;  // else the number of a connection

  struct Connection final : collective::detail::Transport {
    Connection(Connections& whose, int with, std::uint32_t which, MessageEnd& own)
        : all(whose), peer(with), number(which), end(&own), packing(whose.channels_) {}
    void wake() noexcept override {
      woken.store(true);
      all.something_.notify_one();
    }
    [[nodiscard]] std::uint64_t moved() const noexcept override { return messages.load(); }
    void close() noexcept override { all.close(*this); }

    Connections& all;
    int peer;
    std::uint32_t number;  // by which the worker's process counts its connections
    MessageEnd* end;       // null: it has ended
    bool serves = false;   // the end is the server's
    Packing packing;
    std::atomic<bool> woken{true};
    std::atomic<std::uint64_t> messages{0};  // that have come
  };
  /// A worker of another process.
  struct Served {
    Served(Connections& whose, int with, std::uint32_t which)
        : worker(whose.server_, whose.rules_), connection(whose, with, which, worker) {
      worker.carried_by(connection);
      connection.serves = true;
    }
    collective::detail::ServerConnection worker;
    Connection connection;
  };

  void run() noexcept {
    auto moved_at = Clock::now();
    while (!quit_.load()) {
      std::unique_lock lock(mutex_);
      try {
        if (work()) {
          moved_at = Clock::now();
          continue;
        }
      } catch (...) {  // MPI does not go on, or there is no memory
        lose_all(std::current_exception());
      }
      auto const waited = Clock::now() - moved_at;
      if (waited < awake) {
        lock.unlock();
        std::this_thread::yield();
      } else {
        something_.wait_for(lock, std::min<Clock::duration>(waited, longest));
      }
    }
  }

  bool work() {
    bool moved = channels_.poll(always.epoch, [this](int peer, Envelope const& envelope,
                                                     ByteReader& in) { take(peer, envelope, in); });
    for (std::size_t i = 0; i < open_.size(); ++i)
      if (open_[i]->woken.exchange(false)) moved = send(*open_[i], true) || moved;
    forget();
    keep_in_touch();
    return moved;
  }

  void take(int peer, Envelope const& envelope, ByteReader& in) {
    heard_at_[peer] = Clock::now();
    if (envelope.what == say_alive) return;
    bool const to_server = (envelope.what & 1U) != 0;
    std::uint32_t const number = envelope.what / 2;
    auto message = in.take<Message>();
    Connection* connection = nullptr;
    for (Connection* const each : open_)
      if (each->peer == peer && each->number == number && each->serves == to_server && each->end)
        connection = each;
    if (connection == nullptr) {
      if (!to_server || message.kind != MessageKind::join) return;  // it has ended
      served_.push_back(std::make_unique<Served>(*this, peer, number));
      connection = &served_.back()->connection;
      add(*connection);
    }
    try {
      for (++connection->messages;; message = in.take<Message>()) {
        std::span<std::byte> const buffer = connection->end->payload_buffer(message);
        if (buffer.size() > in.left()) refuse_message(message, "is shorter than its header says");
        in.take(buffer.data(), buffer.size());
        connection->end->received(message);
        if (message.kind == MessageKind::lost) peers_may_be_lost = true;
        if (message.kind == MessageKind::leave) end(*connection, nullptr);
        if (in.left() == 0 || connection->end == nullptr) return;
      }
    } catch (...) {
      refuse(*connection, std::current_exception());
    }
  }

  /// @param later  whether to keep for later what exceeds the envelopes; otherwise sends everything
  /// @return whether there was anything
  bool send(Connection& connection, bool later) {
    bool any = false;
    try {
      Message message;
      std::span<std::byte const> payload;
      while (connection.end != nullptr) {
        if (later && !connection.packing.has_room()) {
          connection.woken.store(true);
          break;
        }
        if (!connection.end->next(message, payload)) break;
        any = true;
        connection.packing.add(message, payload);
      }
      connection.packing.send();
    } catch (...) {
      refuse(connection, std::current_exception());
    }
    return any;
  }

  void add(Connection& connection) {
    heard_at_[connection.peer] = Clock::now();
    std::size_t pool = 0;
    for (bool taken = true; std::exchange(taken, false);) {
      ++pool;
      for (Connection const* const each : open_) taken = taken || each->packing.pool() == pool;
    }
    connection.packing.open(pool, connection.peer,
                            2 * connection.number + (connection.serves ? 0 : 1));
    open_.push_back(&connection);
    something_.notify_one();
  }
  void close(Connection& connection) noexcept {
    std::lock_guard const lock(mutex_);
    if (connection.end != nullptr) {
      send(connection, false);
      try {  // also of one that has not joined
        connection.packing.send({.kind = MessageKind::leave}, {});
      } catch (...) {  // the server notices it at its deadline
      }
      connection.end = nullptr;
    }
    forget();
  }
  /// The end has thrown.
  void refuse(Connection& connection, std::exception_ptr const& why) noexcept {
    try {
      std::string const words = connection.serves ? report_of(why).message : std::string();
      MessageKind const kind = connection.serves ? MessageKind::refused : MessageKind::leave;
      connection.packing.send({.kind = kind, .bytes = words.size()},
                              std::as_bytes(std::span(words)));
    } catch (...) {  // the other end reaches its deadline
    }
    end(connection, why);
  }
  static void end(Connection& connection, std::exception_ptr const& why) noexcept {
    if (auto* const told = std::exchange(connection.end, nullptr)) told->gone(why);
  }
  void lose_all(std::exception_ptr const& why) noexcept {
    for (Connection* const each : open_) end(*each, why);
    forget();
  }
  /// Removes the connections that have ended.
  void forget() noexcept {
    std::erase_if(open_, [](Connection const* each) { return each->end == nullptr; });
    std::erase_if(served_, [](auto const& each) { return each->connection.end == nullptr; });
  }

  /// Says now and then that this process lives, and closes connections to processes that have been
  /// silent for the deadline.
  void keep_in_touch() {
    auto const now = Clock::now();
    auto const seconds = [](Clock::duration time) {
      return std::chrono::duration<double>(time).count();
    };
    if (seconds(now - told_at_) < deadline_s_ / 8) return;
    told_at_ = now;
    std::fill(told_.begin(), told_.end(), false);
    for (Connection* const each : open_) {
      if (double const silent = seconds(now - heard_at_[each->peer]); silent > deadline_s_) {
        peers_may_be_lost = true;
        end(*each, raised(Errc::peer_failed, "process ", each->peer,
                          ", which keeps layers of the parameter server, has not been heard of "
                          "for ",
                          deadline_s_, " s; check that it is still running"));
        continue;
      }
      // If all of its messages are in transit, they show that it is alive.
      if (!channels_.has_spare(each->packing.pool()) || std::exchange(told_[each->peer], true))
        continue;
      channels_.post(channels_.blank(each->packing.pool()), always, say_alive, &each->peer, 1);
    }
    forget();
  }

  double deadline_s_;
  std::shared_ptr<collective::detail::ServerInProcess> server_;
  collective::detail::RemoteRules rules_;
  std::mutex mutex_{};  // of all below
  std::condition_variable something_{};
  Channels channels_;
  FixedArray<Clock::time_point> heard_at_;  // [processes]
  Clock::time_point told_at_{};
  FixedArray<bool> told_;  // [processes] in this pass of the loop
  std::uint32_t made_ = 0;
  std::vector<Connection*> open_{};
  std::vector<std::unique_ptr<Served>> served_{};
  std::atomic<bool> quit_{false};
  std::thread thread_{};
};

}  // namespace stagger::mpi::detail
