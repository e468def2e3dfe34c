// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A thread of a parameter server on a port, and the connections that it serves.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <stagger/collective/server_connection.hpp>
#include <stagger/core/error.hpp>
#include <stagger/host/detail/asio_connection.hpp>

namespace stagger::detail::framed {

using collective::detail::ServerConnection;
using collective::detail::ServerInProcess;

/// Told to a worker that sends nothing before it has joined.
[[nodiscard]] inline std::string too_late(double deadline_s) {
  return text(
      "the worker has sent nothing for ", deadline_s,
      " s before the server had all of its first values, and was not let in; see what holds "
      "it up, or raise ListenOptions::deadline_s");
}

/// What all connections of a server share.
struct Service {
  std::shared_ptr<ServerInProcess> server;
  collective::detail::RemoteRules rules;
  Hello hello;        // the first bytes of a worker
  double deadline_s;  // of a connection
  int handshake;      // ticks in which a worker identifies itself
  std::string late = too_late(deadline_s);
};

/// A connection that a server has accepted, and the server's end of it.
struct Accepted {
  /// @param of  must outlive this object
  Accepted(Service const& of, AsioConnection::Socket socket)
      : service(of),
        worker(of.server, of.rules),
        stream(std::make_shared<AsioConnection>(std::move(socket), "a worker", &of.hello,
                                                of.deadline_s)) {
    worker.carried_by(*stream);
    stream->start(worker);
  }
  /// Called ten times a second. Ends a connection that has not identified its worker in time. How
  /// long the first values of a worker take depends on the model: it joins for as long as they
  /// come.
  void tick() noexcept {
    worker.gives() ? stream->tick(service.late) : stream->tick();
    if (worker.tick()) stream->wake();
    if (++age > service.handshake && !worker.identified()) stream->end(nullptr);
  }

  Service const& service;
  ServerConnection worker;
  std::shared_ptr<AsioConnection> stream;
  int age = 0;  // ticks
};

/// Serves connections on a thread of its own, on which everything runs but its constructor, `stop`,
/// `lose_all`, `executor` and `connections`.
class ServerThread {
 public:
  static constexpr std::size_t full = ~std::size_t{0};

  /// @param service            must outlive this object
  /// @param most_unidentified  connections that have not identified their worker, at most
  ServerThread(Service const& service, std::size_t most_unidentified)
      : service_(service), most_unidentified_(most_unidentified), timer_(context_) {
    each_tick(timer_, [this] {
      for (auto const& each : accepted_) each->tick();
      count();
    });
    thread_ = std::thread([this] { run(); });
  }
  ServerThread(ServerThread const&) = delete;
  ServerThread& operator=(ServerThread const&) = delete;
  ~ServerThread() { stop(); }

  /// Ends the thread; connections stay until this object is destroyed. Called by its owner, once or
  /// more often.
  void stop() noexcept {
    if (!thread_.joinable()) return;
    context_.stop();
    thread_.join();
  }
  /// Ends all connections because the server stops. @pre all threads of the server are stopped
  void lose_all() noexcept {
    for (auto const& each : accepted_) {
      each->worker.lose();
      each->stream->end(nullptr);
    }
  }

  [[nodiscard]] AsioConnection::Executor executor() noexcept { return context_.get_executor(); }
  /// How many connections there are, or `full` if no other may be added.
  [[nodiscard]] std::size_t connections() const noexcept { return connections_.load(); }

  /// Serves another connection.
  void add(AsioConnection::Socket socket) noexcept {
    try {
      accepted_.push_back(std::make_unique<Accepted>(service_, std::move(socket)));
    } catch (...) {  // for example, no memory: the connection ends, and the others continue
    }
    count();
  }
  /// Ends the oldest connection whose worker has sent nothing. @return whether there was one
  bool end_silent() noexcept {
    auto const oldest = std::find_if(accepted_.begin(), accepted_.end(), [](auto const& each) {
      return each->age >= silent_ticks && each->stream->silent();
    });
    if (oldest == accepted_.end()) return false;
    (*oldest)->stream->end(nullptr);
    accepted_.erase(oldest);
    return true;
  }

 private:
  static constexpr int silent_ticks = 2;  // before a silent connection may be ended

  void run() noexcept {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (...) {  // for example, no memory for a message of one connection
      }
    }
  }
  /// Forgets connections that have ended, and sees whether another may be added. If there are too
  /// many that have not identified themselves, the oldest silent one is closed; so a worker whose
  /// first bytes have arrived is never disconnected for another.
  void count() noexcept {
    std::erase_if(accepted_, [](auto const& each) { return each->stream->ended(); });
    auto const unidentified = static_cast<std::size_t>(
        std::count_if(accepted_.begin(), accepted_.end(),
                      [](auto const& each) { return !each->worker.identified(); }));
    bool const room = unidentified < most_unidentified_ || end_silent();
    connections_.store(room ? accepted_.size() : full);
  }

  Service const& service_;
  std::size_t most_unidentified_;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer timer_;
  std::vector<std::unique_ptr<Accepted>> accepted_;
  std::atomic<std::size_t> connections_{0};
  std::thread thread_;
};

}  // namespace stagger::detail::framed
