// SPDX-License-Identifier: Apache-2.0
// Workers as processes of their own, which this one starts; it has the parameter server, over TCP.
#include "team.hpp"

#ifndef HETERO_HAS_TCP

#include "command_line.hpp"

hetero::Run hetero::train_over_tcp(Settings const&, double, Train const&) {
  cli::refuse("--device tcp needs Boost.Asio, without which this program was built");
}

#else

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>

#include <stagger/host/asio_parameter_server.hpp>

#include "staleness_models.hpp"

namespace hetero {

namespace sg = stagger;

namespace {

/// Sends all of it. @return false where the other end has gone
bool send_all(int socket, void const* bytes, std::size_t count) {
  auto const* from = static_cast<char const*>(bytes);
  while (count > 0) {
    auto const sent = ::send(socket, from, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    from += sent;
    count -= static_cast<std::size_t>(sent);
  }
  return true;
}

/// Of a worker's process: what the process that started it says. Where that is gone, so is this.
template <class T> T heard(int socket) {
  T value{};
  auto* to = reinterpret_cast<char*>(&value);
  for (std::size_t left = sizeof value; left > 0;) {
    auto const count = ::read(socket, to, left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) ::_exit(2);
    to += count;
    left -= static_cast<std::size_t>(count);
  }
  return value;
}

/// A length, then so many bytes. One of length 0 says that the worker is ready.
bool tell(int socket, sg::ByteWriter const& report) {
  std::uint64_t const length = report.size();
  return send_all(socket, &length, sizeof length) && send_all(socket, report.data(), report.size());
}

[[noreturn]] void be_worker(int socket, std::size_t number, Settings const& s, Train const& train) {
  sg::ByteWriter report;
  try {
    sg::host::RemoteParameterServer const server({.port = heard<std::uint16_t>(socket)});
    Team const team{{number},
                    [&](std::size_t n) { return server.worker(static_cast<int>(n)); },
                    [&] {
                      tell(socket, {});
                      static_cast<void>(heard<bool>(socket));
                    }};
    Run run;
    run.workers.resize(static_cast<std::size_t>(s.workers));
    train(team, run);
    report = report_of(team, run);
  } catch (...) {
    report = report_of(std::current_exception());
  }
  tell(socket, report);
  ::_exit(0);
}

/// A process for each worker. They end with this.
class Children {
 public:
  Children(Settings const& s, Train const& train) {
    ::pid_t const parent = ::getpid();
    for (std::size_t n = 0; n < static_cast<std::size_t>(s.workers); ++n) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) refuse(n);
      ::pid_t const pid = ::fork();
      if (pid < 0) refuse(n);
      if (pid == 0) {
#ifdef __linux__
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        if (::getppid() != parent) ::_exit(2);
        for (Child const& other : all_) ::close(other.socket);  // else it outlives this process
        ::close(ends[0]);
        be_worker(ends[1], n, s, train);
      }
      ::close(ends[1]);
      all_.push_back({.pid = pid, .socket = ends[0]});
    }
  }
  Children(Children const&) = delete;
  Children& operator=(Children const&) = delete;
  ~Children() { stop(); }

  /// Waits for all of them. Where one fails, the others have a moment to say why, and end.
  Run take(std::uint16_t port) {
    for (Child const& child : all_) send_all(child.socket, &port, sizeof port);
    Reports reports(all_.size());
    auto const now = [] { return std::chrono::steady_clock::now(); };
    std::optional<std::chrono::steady_clock::time_point> failed_at;
    while (!reports.explained() && look(reports, failed_at ? 100 : -1)) {
      if (!failed_at && reports.failed()) failed_at = now();
      if (failed_at && now() - *failed_at > std::chrono::seconds(10)) break;
    }
    return reports.take();
  }

 private:
  struct Child {
    ::pid_t pid = 0;
    int socket = -1;
    bool running = true;
    bool ready = false;
    bool reported = false;
    std::vector<std::byte> bytes{};  // that it has told and nobody has read
  };

  void stop() noexcept {
    for (Child const& child : all_) {
      if (child.running) ::kill(child.pid, SIGKILL);
      if (child.running) ::waitpid(child.pid, nullptr, 0);
      ::close(child.socket);
    }
  }
  [[noreturn]] void refuse(std::size_t number) {
    auto const why = std::generic_category().message(errno);
    stop();
    sg::raise(sg::Errc::io, "cannot start a process for worker ", number, ": ", why,
              "; use fewer --workers");
  }

  /// Hears what they say, at most so many milliseconds. @return whether some have not said all
  bool look(Reports& reports, int most_ms) {
    std::vector<::pollfd> sockets;
    std::vector<Child*> whose;
    for (Child& child : all_) {
      if (!child.running) continue;
      sockets.push_back({child.socket, POLLIN, 0});
      whose.push_back(&child);
    }
    if (sockets.empty()) return false;
    ::poll(sockets.data(), sockets.size(), most_ms);
    for (std::size_t i = 0; i < sockets.size(); ++i)
      if (sockets[i].revents != 0) hear(*whose[i], reports);
    return true;
  }

  void hear(Child& child, Reports& reports) {
    std::byte some[4096];
    auto const count = ::read(child.socket, some, sizeof some);
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) return end(child, reports);
    child.bytes.insert(child.bytes.end(), some, some + count);
    for (std::uint64_t length = 0; child.bytes.size() >= sizeof length;) {
      std::memcpy(&length, child.bytes.data(), sizeof length);
      if (child.bytes.size() - sizeof length < length) return;
      if (length == 0) child.ready = true;
      if (length != 0) reports.add({child.bytes.data() + sizeof length, length});
      child.reported = child.reported || length != 0;
      child.bytes.erase(child.bytes.begin(),
                        child.bytes.begin() + static_cast<std::ptrdiff_t>(sizeof length + length));
      if (length == 0) begin_if_ready();
    }
  }

  void begin_if_ready() const {
    if (!std::all_of(all_.begin(), all_.end(), [](Child const& each) { return each.ready; }))
      return;
    for (Child const& child : all_) {
      bool const go = true;
      send_all(child.socket, &go, sizeof go);
    }
  }

  /// It has closed its end.
  void end(Child& child, Reports& reports) {
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    child.running = false;
    if (child.reported) return;
    std::string const number = std::to_string(&child - all_.data());
    reports.fail({sg::Errc::io,
                  "the process of worker " + number +
                      (WIFSIGNALED(status) ? sg::text(" was killed by signal ", WTERMSIG(status),
                                                      " (", ::strsignal(WTERMSIG(status)), ")")
                                           : sg::text(" ended with code ", WEXITSTATUS(status)))});
  }

  std::vector<Child> all_{};
};

}  // namespace

Run train_over_tcp(Settings const& s, double rate, Train const& train) {
  Children children(s, train);  // before this process has threads
  sg::collective::ParameterServer const server({.workers = static_cast<int>(s.workers)});
  sg::host::AsioParameterServer const listening(server, {}, sg::optimizer::Sgd{.rate = rate},
                                                overlapped(numbers_of(s)));
  return children.take(listening.port());
}

}  // namespace hetero

#endif
