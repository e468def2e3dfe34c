// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server on a port, by Boost.Asio: workers of other processes join it over
///         TCP.

#if !__has_include(<boost/asio/ip/tcp.hpp>)
#error \
    "stagger/host/asio_parameter_server.hpp needs Boost.Asio: link stagger::host, or find_package(stagger COMPONENTS host)"
#endif

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/remote_link.hpp>
#include <stagger/core/byte_order_mark.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/file.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/host/detail/asio_connection.hpp>
#include <stagger/host/detail/asio_server_thread.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/staleness/policy.hpp>
#include <stagger/staleness/synchronous.hpp>

namespace stagger::host {

/// A secret of 16 to 64 bytes that workers must present. It is read from a file or the environment,
/// since other users of a machine can see command lines.
class Token {
 public:
  /// None.
  Token() = default;
  /// The first line of a file, which ends in LF or CRLF.
  /// @throws Error  io if it cannot be read, bad_configuration for a length that is not allowed
  [[nodiscard]] static Token from_file(std::string const& path) {
    char bytes[256];
    stagger::detail::Descriptor const file(path.c_str(), O_RDONLY);
    ssize_t const count = ::read(file.get(), bytes, sizeof(bytes));
    if (count < 0)
      raise(Errc::io, "cannot read the token from '", path, "'; name a file that can be read");
    std::string_view const all =
        stagger::detail::without_byte_order_mark({bytes, static_cast<std::size_t>(count)});
    std::string_view line = all.substr(0, all.find('\n'));
    line.remove_suffix(line.ends_with('\r') ? 1 : 0);  // of CRLF
    return Token(line, text("file '", path, "'"));
  }
  /// The value of an environment variable.
  /// @throws Error  bad_configuration if there is none, or for its length
  [[nodiscard]] static Token from_environment(std::string const& variable) {
    char const* const value = std::getenv(variable.c_str());
    return Token(value == nullptr ? "" : value, text("environment variable ", variable));
  }
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  [[nodiscard]] stagger::detail::framed::Hello hello() const {
    stagger::detail::framed::Hello hello;
    std::memcpy(hello.token, bytes_.data(), bytes_.size());
    return hello;
  }

 private:
  Token(std::string_view bytes, std::string const& from) : bytes_(bytes) {
    if (bytes.size() < 16 || bytes.size() > stagger::detail::framed::Hello::longest_token)
      raise(Errc::bad_configuration, "the token in ", from, " has ", bytes.size(),
            " bytes; use 16 to ", stagger::detail::framed::Hello::longest_token, " random ones");
  }
  std::string bytes_;
};

/// The address of a server, and its limits.
struct ListenOptions {
  std::string address = "127.0.0.1";  ///< with another than loopback, a token must be given
  std::uint16_t port = 0;             ///< 0: any that is free
  Token token{};
  double deadline_s = 60;                               ///< > 0: a connection ends if nothing is
                                                        ///< transferred for that long within a
                                                        ///< message, or before it has joined
  double handshake_s = 5;                               ///< > 0: for a worker to identify itself
  std::uint64_t model_bytes = std::uint64_t{1} << 34U;  ///< of all values, at most
  int threads = 0;  ///< that serve workers; 0: one on every core, at most 8
};

/// The address of a server for its workers, and a deadline.
struct ConnectOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  Token token{};
  double deadline_s = 60;  ///< > 0: for the server to accept, to answer and to take bytes, since
                           ///< anything was transferred
  std::string run{};       ///< the name of the workers' run, that of collective::ServerOptions::run
};

}  // namespace stagger::host

namespace stagger::detail::framed {

inline constexpr double longest_deadline_s = 1e6;  // that clocks of sockets can count

/// Accepts workers on the first of its threads, and gives each connection to one of them.
class Listener {
 public:
  Listener(std::shared_ptr<ServerInProcess> server, collective::detail::RemoteRules rules,
           host::ListenOptions const& options)
      : service_{std::move(server), std::move(rules), options.token.hello(),
                 require_deadline("ListenOptions::deadline_s", options.deadline_s,
                                  longest_deadline_s),
                 ticks(require_deadline("ListenOptions::handshake_s", options.handshake_s,
                                        longest_deadline_s))},
        threads_(service_, options),
        acceptor_(threads_[0]->executor()),
        timer_(threads_[0]->executor()) {
    boost::system::error_code error;
    auto const address = boost::asio::ip::make_address(options.address, error);
    if (error)
      raise(Errc::bad_configuration, "'", options.address,
            "' is no address to listen on; use an IP address of this machine, such as 127.0.0.1");
    if (!address.is_loopback() && options.token.empty())
      raise(Errc::bad_configuration, "a parameter server that listens on ", options.address,
            " can be reached from other machines; give it a token, or let it listen on 127.0.0.1");
    tcp::endpoint const at(address, options.port);
    auto const refused = [&](boost::system::error_code const& why) {
      if (why)
        raise(Errc::io, "cannot listen on ", options.address, " port ", options.port, ": ",
              why.message(), "; choose another port, or 0 for any that is free");
    };
    refused(acceptor_.open(at.protocol(), error));
    refused(acceptor_.set_option(tcp::acceptor::reuse_address(true), error));
    refused(acceptor_.bind(at, error));
    refused(acceptor_.listen(tcp::acceptor::max_listen_connections, error));
    port_ = acceptor_.local_endpoint().port();
    boost::asio::post(threads_[0]->executor(), [this] {
      each_tick(timer_, [this] { look(); });
      accept();
    });
  }
  Listener(Listener const&) = delete;
  Listener& operator=(Listener const&) = delete;
  ~Listener() {
    for (auto const& each : threads_) each->stop();
    for (auto const& each : threads_) each->lose_all();
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  static constexpr std::size_t most_threads = 256;
  static constexpr std::size_t most_unidentified = 256;

  struct Threads : std::vector<std::unique_ptr<ServerThread>> {
    Threads(Service const& service, host::ListenOptions const& options) {
      std::size_t const cores = std::thread::hardware_concurrency();
      std::size_t const count = options.threads != 0 ? static_cast<std::size_t>(options.threads)
                                                     : std::clamp<std::size_t>(cores, 1, 8);
      if (count > most_threads)  // or negative
        raise(Errc::bad_configuration, "a parameter server cannot have ", options.threads,
              " threads; use 1 to ", most_threads, ", or 0 for one on every core, but at most 8");
      while (size() < count)
        push_back(std::make_unique<ServerThread>(service, most_unidentified / count));
    }
    /// The first one first, whose context may hold a socket for another thread.
    ~Threads() {
      while (!empty()) erase(begin());
    }
  };

  /// Accepts a connection for the thread that has the fewest now, if one has room; otherwise the
  /// next tick tries again.
  void accept() {
    ServerThread& thread = **std::min_element(
        threads_.begin(), threads_.end(),
        [](auto const& a, auto const& b) { return a->connections() < b->connections(); });
    if (accepts_ || thread.connections() == ServerThread::full) return;
    acceptor_.async_accept(thread.executor(),
                           [this, &thread](boost::system::error_code const& error, auto socket) {
                             accepts_ = false;
                             if (error)
                               return end_silent(0);  // for example, no free file descriptor
                             auto add = [this, &thread, socket = std::move(socket)]() mutable {
                               thread.add(std::move(socket));
                               boost::asio::post(threads_[0]->executor(), [this] { accept(); });
                             };
                             boost::asio::post(thread.executor(), std::move(add));
                           });
    accepts_ = true;
  }
  /// Ends a silent connection of a thread, or of one after it, and accepts another then.
  void end_silent(std::size_t thread) {
    if (thread == threads_.size()) return;
    boost::asio::post(threads_[thread]->executor(), [this, thread] {
      bool const ended = threads_[thread]->end_silent();
      boost::asio::post(threads_[0]->executor(),
                        [this, thread, ended] { ended ? accept() : end_silent(thread + 1); });
    });
  }
  /// Called ten times a second.
  void look() {
    awaited_ = service_.server->awaits_any() ? awaited_ + 1 : 0;
    if (awaited_ > ticks(service_.deadline_s)) service_.server->give_up_awaited();
    accept();
  }

  Service service_;
  Threads threads_;
  boost::asio::basic_socket_acceptor<tcp, AsioConnection::Executor> acceptor_;
  boost::asio::steady_timer timer_;
  std::uint16_t port_ = 0;
  bool accepts_ = false;  // a connection is awaited
  int awaited_ = 0;  // ticks for which a worker that should continue its stream has been missing
};

/// A worker's connection, with its own thread.
class WorkerStream final : public collective::detail::Transport {
 public:
  WorkerStream(MessageEnd& end, host::ConnectOptions const& options, std::string const& name)
      : timer_(context_) {
    AsioConnection::Socket socket(context_);
    boost::asio::ip::basic_resolver<tcp, AsioConnection::Executor> resolver(context_);
    boost::system::error_code error;
    auto const places = resolver.resolve(options.host, std::to_string(options.port), error);
    if (error)
      raise(error == boost::asio::error::host_not_found_try_again ? Errc::io
                                                                  : Errc::bad_configuration,
            "cannot find '", options.host, "': ", error.message(),
            "; name the machine on which the parameter server runs, or its IP address");
    error = boost::asio::error::timed_out;
    boost::asio::async_connect(socket, places, [&](auto const& why, auto const&) { error = why; });
    context_.run_for(std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::duration<double>(options.deadline_s)));
    if (error)
      raise(Errc::io, "cannot connect with the parameter server at ", name, ": ", error.message(),
            "; check whether it runs and listens there");
    context_.restart();
    stream_ = std::make_shared<AsioConnection>(
        std::move(socket), text("the parameter server at ", name), nullptr, options.deadline_s);
    Hello const hello = options.token.hello();
    stream_->start(end, &hello);
    each_tick(timer_, [this] { stream_->tick(); });
    thread_ = std::thread([this] { run(); });
  }
  WorkerStream(WorkerStream const&) = delete;
  WorkerStream& operator=(WorkerStream const&) = delete;
  ~WorkerStream() override { close(); }

  void wake() noexcept override { stream_->wake(); }
  void wake_and_send() noexcept override { stream_->wake_and_send(); }
  [[nodiscard]] std::uint64_t moved() const noexcept override { return stream_->moved(); }
  void close() noexcept override {
    if (!thread_.joinable()) return;
    stream_->close();
    thread_.join();
  }

 private:
  void run() noexcept {
    try {
      while (!stream_->ended()) context_.run_one();
    } catch (...) {  // for example, no memory
      stream_->end(std::current_exception());
    }
  }

  boost::asio::io_context context_{1};
  boost::asio::steady_timer timer_;
  std::shared_ptr<AsioConnection> stream_;
  std::thread thread_;
};

class WorkerConnector final : public collective::detail::Connector {
 public:
  explicit WorkerConnector(host::ConnectOptions options) : options_(std::move(options)) {}
  [[nodiscard]] std::unique_ptr<collective::detail::Transport> connect(MessageEnd& end) override {
    return std::make_unique<WorkerStream>(end, options_, name());
  }
  [[nodiscard]] double deadline_s() const override { return options_.deadline_s; }
  [[nodiscard]] std::string name() const override {
    return text(options_.host, ":", options_.port);
  }
  [[nodiscard]] std::string run() const override { return options_.run; }

 private:
  host::ConnectOptions options_;
};

}  // namespace stagger::detail::framed

namespace stagger::host {

/// Lets workers of other processes join a server, besides those in this process. Nothing is
/// encrypted (docs/workers.md shows a tunnel).
///
/// @code
///     collective::ParameterServer server({.workers = 2});
///     host::AsioParameterServer const listening(server, {.port = 7070}, optimizer::AdamW{});
/// @endcode
class AsioParameterServer {
 public:
  /// @param of_workers  the workers' optimizer, with which the server takes steps if they push
  ///                    gradients, since no code is sent over a connection
  /// @param model       the workers' staleness model, if the server chooses late layers by it
  /// @throws Error      bad_configuration for options that are out of range, io for a port that is
  ///                    in use
  template <OptimizerPolicy O = optimizer::Sgd, StalenessPolicy S = staleness::Synchronous>
  explicit AsioParameterServer(collective::ParameterServer const& server,
                               ListenOptions const& options = {}, O const& of_workers = {},
                               S const& model = {}) {
    auto rules = collective::detail::remote_rules(of_workers, model,
                                                  &stagger::detail::optimizer_call<false, O>,
                                                  stagger::detail::late_calls_of<S>);
    rules.model_bytes = options.model_bytes;
    listener_ = std::make_unique<stagger::detail::framed::Listener>(server.in_process(),
                                                                    std::move(rules), options);
  }

  /// The port on which it listens.
  [[nodiscard]] std::uint16_t port() const noexcept { return listener_->port(); }

 private:
  std::unique_ptr<stagger::detail::framed::Listener> listener_;
};

/// A server in another process that listens on a port.
///
/// @code
///     host::RemoteParameterServer const server({.host = "localhost", .port = 7070});
///     auto train = pipeline.with(waves, server.worker(0), loss, host::Threads{2});
/// @endcode
class RemoteParameterServer {
 public:
  /// @throws Error bad_configuration for a deadline out of range, or a name that is too long
  explicit RemoteParameterServer(ConnectOptions options) : options_(std::move(options)) {
    collective::detail::require_run_name(options_.run);
    stagger::detail::require_deadline("ConnectOptions::deadline_s", options_.deadline_s,
                                      stagger::detail::framed::longest_deadline_s);
  }
  /// It connects when its trainer is made, which throws Error(io) if there is no server.
  [[nodiscard]] collective::ServerWorker worker(int number) const {
    return collective::ServerWorker(std::make_shared<collective::detail::RemoteLink>(
        std::make_unique<stagger::detail::framed::WorkerConnector>(options_), number));
  }

 private:
  ConnectOptions options_;
};

}  // namespace stagger::host
