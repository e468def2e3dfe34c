// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A few bytes from rank 0 to every other rank over TCP, before there is a communicator.
///
///     rank r                                  rank 0
///       connect  ----------------------------> accept
///       Greeting {run, process, rank} -------> is it one of us, and the only one of its number?
///       <------------------- Answer {verdict}, and the bytes where it is welcome
///       one byte: it has them ---------------> counts rank r
///
/// Other programs that connect or listen there send something else, or nothing, and are ignored.

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/file.hpp>

namespace stagger::nccl::detail {

using Socket = stagger::detail::Descriptor;

/// A point in time at which a wait ends.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(double seconds)  // so far off that no clock overflows
      : end_(Clock::now() +
             std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e3))) {}

  [[nodiscard]] int left_ms() const {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
  }
  /// The earlier of this end and one that is this many seconds away.
  [[nodiscard]] Deadline within(double seconds) const {
    Deadline other(seconds);
    other.end_ = std::min(other.end_, end_);
    return other;
  }
  void pause(int ms) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(ms, left_ms())));
  }

 private:
  Clock::time_point end_;
};

/// The ranks that find each other, the address, and the deadline.
struct RendezvousInfo {
  std::string address{};     ///< of rank 0's machine
  std::vector<int> ports{};  ///< ports there: rank 0 listens on the first free one
  std::uint64_t run = 0;     ///< the same in all ranks of one run, and in no other run
  int rank = 0;
  int size = 1;
  double seconds = 60;
  Deadline end{seconds};

  [[nodiscard]] std::string where() const {
    return ports.size() == 1 ? text(address, ":", ports.front())
                             : text(address, ", ports ", ports.front(), " to ", ports.back());
  }
};

inline constexpr double connect_s = 1;  ///< for one address to take a connection, and to answer
inline constexpr double silence_s = 5;  ///< for what has connected to say that it is a rank
inline constexpr double bind_s = 2;     ///< for a port to become free

/// Differs between processes; not 0.
inline std::uint64_t random_number() {
  std::random_device random;
  std::uint64_t number = 0;
  while (number == 0) number = std::uint64_t{random()} << 32 | random();
  return number;
}

struct Greeting {
  std::array<char, 8> word{'s', 't', 'a', 'g', 'g', 'e', 'r', '?'};
  std::uint64_t run = 0;
  std::uint64_t process = 0;  ///< a random number, which tells a rank that connects again from a
                              ///< second process with the same rank
  std::uint64_t rank = 0;
};

enum class Verdict : std::uint64_t { nobody, stranger, other_run, taken, welcome };

struct Answer {
  std::array<char, 8> word{'s', 't', 'a', 'g', 'g', 'e', 'r', '!'};
  Verdict verdict = Verdict::nobody;
};

/// Waits until a socket can be read (POLLIN) or written (POLLOUT). @return false: too late
inline bool ready(Socket const& socket, short what, Deadline const& end) {
  ::pollfd entry{socket.get(), what, 0};
  for (;;) {
    int const result = ::poll(&entry, 1, end.left_ms());
    if (result > 0) return true;
    if (result == 0 || errno != EINTR) return false;
  }
}

/// Sends few bytes, for which a socket's buffer has room unless the other end is gone.
inline bool send_all(Socket const& socket, void const* bytes, std::size_t size) {
  return ::send(socket.get(), bytes, size, MSG_NOSIGNAL) == static_cast<::ssize_t>(size);
}

inline bool receive_all(Socket const& socket, void* bytes, std::size_t size, Deadline const& end) {
  for (std::size_t got = 0; got < size;) {
    if (!ready(socket, POLLIN, end)) return false;
    auto const more = ::recv(socket.get(), static_cast<char*>(bytes) + got, size - got, 0);
    if (more <= 0) return false;
    got += static_cast<std::size_t>(more);
  }
  return true;
}

/// An address of either family, for sockets.
struct Address {
  ::sockaddr_storage storage{};
  ::socklen_t size = 0;

  [[nodiscard]] ::sockaddr const* get() const noexcept {
    return reinterpret_cast<::sockaddr const*>(&storage);
  }
  /// A socket of its family; none, with `errno`, if the system has no such family.
  [[nodiscard]] Socket socket() const noexcept {
    return Socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  }
  void set_port(int port) {
    auto const number = htons(static_cast<std::uint16_t>(port));
    if (storage.ss_family == AF_INET6)
      reinterpret_cast<::sockaddr_in6&>(storage).sin6_port = number;
    else
      reinterpret_cast<::sockaddr_in&>(storage).sin_port = number;
  }
};

/// Listens for IPv6 and IPv4, or for IPv4 alone where the system has no IPv6.
/// @return  no socket: `error` says why
inline Socket listen_on(int port, int& error) {
  int const on = 1;
  int const off = 0;
  for (bool const both : {true, false}) {
    Address any;
    any.storage.ss_family = both ? AF_INET6 : AF_INET;
    any.size = both ? sizeof(::sockaddr_in6) : sizeof(::sockaddr_in);
    any.set_port(port);
    Socket listener = any.socket();
    error = errno;
    if (!listener) continue;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (both) ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (::bind(listener.get(), any.get(), any.size) == 0 &&
        ::listen(listener.get(), SOMAXCONN) == 0)
      return listener;
    error = errno;
    if (error == EADDRINUSE || error == EACCES) break;
  }
  return Socket(-1);
}

/// The first free port. Waits if a port is occupied only for a moment, such as by an outgoing
/// connection of a rank.
inline Socket listen(RendezvousInfo const& info) {
  Deadline const end = info.end.within(bind_s);
  for (int error = 0;;) {
    for (int const port : info.ports)
      if (Socket listener = listen_on(port, error)) return listener;
    if (end.left_ms() == 0)
      raise(Errc::io, "rank 0 cannot listen at ", info.where(), ": ", std::strerror(error),
            "; set MASTER_PORT or Rendezvous::port to one that is free there");
    end.pause(20);
  }
}

/// Rank 0: sends the bytes to every other rank.
class Host {
 public:
  Host(RendezvousInfo const& info, std::span<std::byte const> bytes)
      : info_(info),
        bytes_(bytes),
        processes_(static_cast<std::size_t>(info.size)),
        joined_(static_cast<std::size_t>(info.size)) {}

  void serve() {
    Socket const listener = listen(info_);
    std::vector<::pollfd> polled;
    for (int missing = info_.size - 1; missing > 0;) {
      polled.assign(1, {listener.get(), POLLIN, 0});
      for (auto const& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
      // While there are callers it wakes up now and then, to drop those that send nothing.
      int const most = callers_.empty() ? info_.end.left_ms() : 100;
      int const result = ::poll(polled.data(), static_cast<::nfds_t>(polled.size()),
                                std::min(most, info_.end.left_ms()));
      if (info_.end.left_ms() == 0) late();
      for (std::size_t i = 0; i < callers_.size(); ++i) {
        if (result > 0 && polled[i + 1].revents != 0) missing -= attend(callers_[i]) ? 1 : 0;
        if (callers_[i].end.left_ms() == 0) callers_[i].socket.close();
      }
      std::erase_if(callers_, [](Caller const& caller) { return !caller.socket; });
      if (result > 0 && polled[0].revents != 0) accept(listener);
    }
  }

 private:
  struct Caller {
    Socket socket;
    Deadline end;
    Greeting said{};
    std::size_t got = 0;  ///< bytes of it
  };

  void accept(Socket const& listener) {
    Socket socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket)
      callers_.push_back({std::move(socket), info_.end.within(silence_s)});
    else  // it has disconnected, or this process has no free descriptor until another caller
          // disconnects
      info_.end.pause(1);
  }

  /// Receives data from a caller. @return whether one more rank has the bytes
  bool attend(Caller& caller) {
    if (caller.got == sizeof(Greeting)) {
      char byte = 0;
      bool const has_them = ::recv(caller.socket.get(), &byte, 1, 0) == 1;
      caller.socket.close();
      if (!has_them || joined_[caller.said.rank]) return false;
      return joined_[caller.said.rank] = true;
    }
    auto* const at = reinterpret_cast<char*>(&caller.said) + caller.got;
    auto const more = ::recv(caller.socket.get(), at, sizeof(Greeting) - caller.got, 0);
    if (more > 0) caller.got += static_cast<std::size_t>(more);
    std::size_t const word = std::min(caller.got, Greeting{}.word.size());
    if (more <= 0 || !std::equal(caller.said.word.begin(),
                                 caller.said.word.begin() + static_cast<std::ptrdiff_t>(word),
                                 Greeting{}.word.begin()))
      caller.socket.close();
    else if (caller.got == sizeof(Greeting) && !answer(caller))
      caller.socket.close();
    return false;
  }

  /// @return whether it was accepted and has been sent the bytes
  bool answer(Caller const& caller) {
    auto const& said = caller.said;
    Answer answer{.verdict = Verdict::welcome};
    if (said.run != info_.run || said.rank == 0 || said.rank >= processes_.size())
      answer.verdict = Verdict::other_run;
    else if (auto& process = processes_[said.rank]; process == 0)
      process = said.process;
    else if (process != said.process)
      answer.verdict = Verdict::taken;
    if (!send_all(caller.socket, &answer, sizeof answer)) return false;
    return answer.verdict == Verdict::welcome &&
           send_all(caller.socket, bytes_.data(), bytes_.size());
  }

  [[noreturn]] [[gnu::cold]] void late() const {
    std::string missing;
    int unnamed = -8;
    for (std::size_t r = 1; r < joined_.size(); ++r)
      if (!joined_[r] && ++unnamed <= 0) missing += text(missing.empty() ? "" : ", ", r);
    if (unnamed > 0) missing += text(" and ", unnamed, " more");
    raise(Errc::deadline, "rank 0 waited ", info_.seconds, " s at ", info_.where(), " for rank ",
          missing, "; check whether it was started and can reach this machine");
  }

  RendezvousInfo const& info_;
  std::span<std::byte const> bytes_;
  std::vector<std::uint64_t> processes_;  ///< of each rank that has connected; 0: none
  std::vector<bool> joined_;              ///< whether it has the bytes
  std::vector<Caller> callers_;
};

/// All addresses of a name, of both families. The resolver has limits of its own, of some seconds.
/// @return  none: `error` says why
inline std::vector<Address> resolve(std::string const& name, std::string& error) {
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  int const result = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (result != 0) {
    error = ::gai_strerror(result);
    return {};
  }
  std::vector<Address> all;
  for (auto const* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    all.push_back(address);
  }
  ::freeaddrinfo(found);
  error.clear();
  return all;
}

/// Requests the bytes from whatever listens at an address.
inline Verdict ask(Address const& address, Greeting const& greeting, std::span<std::byte> bytes,
                   Deadline const& end) {
  Socket const socket = address.socket();
  if (!socket ||
      (::connect(socket.get(), address.get(), address.size) != 0 && errno != EINPROGRESS))
    return Verdict::nobody;
  int error = 0;
  ::socklen_t size = sizeof error;
  if (!ready(socket, POLLOUT, end.within(connect_s)) ||
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
    return Verdict::nobody;
  // If nothing listens, Linux lets a socket connect to itself, which would occupy rank 0's port.
  ::sockaddr_storage self{};
  size = sizeof self;
  if (::getsockname(socket.get(), reinterpret_cast<::sockaddr*>(&self), &size) == 0 &&
      size == address.size && std::memcmp(&self, address.get(), size) == 0)
    return Verdict::nobody;
  Deadline const soon = end.within(connect_s);
  Answer answer;
  if (!send_all(socket, &greeting, sizeof greeting) ||
      !receive_all(socket, &answer, sizeof answer, soon) || answer.word != Answer{}.word)
    return Verdict::stranger;
  if (answer.verdict != Verdict::welcome) return answer.verdict;
  return receive_all(socket, bytes.data(), bytes.size(), soon) && send_all(socket, "", 1)
             ? Verdict::welcome
             : Verdict::nobody;
}

/// Tries each port of each address until one answers for this run. @return the best answer
inline Verdict ask_all(RendezvousInfo const& info, std::vector<Address> addresses,
                       Greeting const& greeting, std::span<std::byte> bytes) {
  auto best = Verdict::nobody;
  for (int const port : info.ports)
    for (auto& address : addresses) {
      address.set_port(port);
      best = std::max(best, ask(address, greeting, bytes, info.end));
      if (best >= Verdict::taken || info.end.left_ms() == 0) return best;
    }
  return best;
}

/// Any other rank: repeats the request until rank 0 sends the bytes.
inline void fetch(RendezvousInfo const& info, std::span<std::byte> bytes) {
  Greeting const greeting{
      .run = info.run, .process = random_number(), .rank = static_cast<std::uint64_t>(info.rank)};
  auto best = Verdict::nobody;
  for (int pause = 20;; pause = std::min(2 * pause, 250)) {
    std::string error;
    auto const verdict = ask_all(info, resolve(info.address, error), greeting, bytes);
    if (verdict == Verdict::welcome) return;
    if (verdict == Verdict::taken)
      raise(Errc::bad_configuration, "another process has told rank 0 at ", info.where(),
            " that it is rank ", info.rank,
            "; see that the launcher gives each process a rank of its own");
    best = std::max(best, verdict);
    if (info.end.left_ms() != 0) {
      info.end.pause(pause);
      continue;
    }
    std::string const why =
        !error.empty() ? text(", which cannot be resolved: ", error)
        : best == Verdict::other_run
            ? ", where rank 0 of another run, or with another number of ranks, answered"
        : best == Verdict::stranger ? ", where something answered that is no rank of stagger"
                                    : "";
    raise(Errc::deadline, "rank ", info.rank, " waited ", info.seconds, " s for rank 0 at ",
          info.where(), why, "; check whether rank 0 was started and can be reached from here");
  }
}

}  // namespace stagger::nccl::detail
