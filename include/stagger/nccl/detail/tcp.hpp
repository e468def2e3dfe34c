// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A few bytes from rank 0 to every other rank over TCP, before there is a communicator.

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>

namespace stagger::nccl::detail {

/// Owns a socket.
class Socket {
 public:
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

/// Where, and until when.
struct Meeting {
  std::string address;
  int port = 0;
  std::chrono::steady_clock::time_point end;
  double seconds = 0;

  [[nodiscard]] int left_ms() const {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    return left.count() > 0 ? static_cast<int>(left.count()) : 0;
  }
  [[noreturn]] [[gnu::cold]] void late(int rank, char const* what) const {
    throw stagger::Error(Errc::deadline,
                         text("rank ", rank, " waited ", seconds, " s ", what, " at ", address, ":",
                              port, "; see whether all ranks were started and can reach it"));
  }
};

/// Waits until a socket can be read (POLLIN) or written (POLLOUT). @return false: too late
inline bool ready(Socket const& socket, short what, Meeting const& meeting) {
  ::pollfd entry{socket.get(), what, 0};
  for (;;) {
    int const result = ::poll(&entry, 1, meeting.left_ms());
    if (result > 0) return true;
    if (result == 0 || errno != EINTR) return false;
  }
}

/// Rank 0: gives the bytes to so many others.
inline void serve(Meeting const& meeting, std::span<std::byte const> bytes, int others) {
  Socket const listener(::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int const on = 1;
  int const off = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  ::sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<std::uint16_t>(meeting.port));
  if (::bind(listener.get(), reinterpret_cast<::sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(listener.get(), others) != 0)
    throw stagger::Error(
        Errc::io, text("rank 0 cannot listen on port ", meeting.port, ": ", std::strerror(errno),
                       "; choose a port that is free there"));
  for (int met = 0; met < others;) {
    if (!ready(listener, POLLIN, meeting))
      meeting.late(0, text("for ", others - met, " more ranks").c_str());
    Socket const peer(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // A message this short fits into the socket's buffer, or the other end is gone: let it try
    // again.
    if (peer && ::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                    static_cast<::ssize_t>(bytes.size()))
      ++met;
  }
}

/// One try to get the bytes. @return whether all have come
inline bool ask(Meeting const& meeting, std::span<std::byte> bytes) {
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  if (::getaddrinfo(meeting.address.c_str(), std::to_string(meeting.port).c_str(), &hints,
                    &found) != 0)
    return false;
  struct Free {
    ::addrinfo* all;
    ~Free() { ::freeaddrinfo(all); }
  } const release{found};
  for (auto* one = found; one != nullptr; one = one->ai_next) {
    Socket const socket(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket ||
        (::connect(socket.get(), one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS))
      continue;
    std::size_t got = 0;
    while (got < bytes.size() && ready(socket, POLLIN, meeting)) {
      auto const more = ::recv(socket.get(), bytes.data() + got, bytes.size() - got, 0);
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    if (got == bytes.size()) return true;
  }
  return false;
}

/// Any other rank: tries until rank 0 listens.
inline void fetch(Meeting const& meeting, std::span<std::byte> bytes, int rank) {
  while (!ask(meeting, bytes)) {
    if (meeting.left_ms() == 0) meeting.late(rank, "for rank 0");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace stagger::nccl::detail
