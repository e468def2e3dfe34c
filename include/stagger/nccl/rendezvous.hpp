// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The rendezvous of all ranks: over TCP, through a file, or by a broadcast of the user's.

#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/collective/launcher.hpp>
#include <stagger/cuda/device.hpp>
#include <stagger/nccl/detail/tcp.hpp>
#include <stagger/nccl/invitation.hpp>

namespace stagger::nccl {

/// How ranks of one run find each other.
struct Rendezvous {
  double deadline_s = 60;  ///< longest wait for the others
  int port = 0;            ///< on rank 0's machine; 0: one that follows from what the launcher told
  std::string file{};      ///< on a file system that all see; used where no address was told
  std::string run{};       ///< a name of this run, alike in all ranks and in no other run; empty:
                           ///< the launcher's
};

/// The GPU of a launched process: its local rank modulo the number of GPUs that it sees. If the
/// launcher shows each process only its own GPU, that is number 0.
/// @throws cuda::Error  where there is none
[[nodiscard]] inline int local_device(collective::Launch const& launch) {
  return (launch.local_rank >= 0 ? launch.local_rank : launch.rank) % cuda::device_count();
}

namespace detail {

/// The ports on which rank 0 may listen, without a port on which torchrun itself listens. Several
/// are tried only if the run has a name, by which its ranks can tell rank 0 from other programs
/// that listen there.
[[nodiscard]] inline std::vector<int> ports_of(collective::Launch const& launch,
                                               Rendezvous const& options) {
  if (options.port != 0) return {options.port};
  std::string const& run = options.run.empty() ? launch.run : options.run;
  int const first = launch.port_held ? 1 : 0;
  int const last = run.empty() ? first : first + 7;
  std::vector<int> ports;
  for (int i = first; i <= last; ++i)
    ports.push_back(launch.port + i <= 65535 ? launch.port + i : launch.port + i - 65536 + 1024);
  return ports;
}

/// The beginning of a rendezvous file.
struct FileHead {
  std::array<char, 8> word{'s', 't', 'a', 'g', 'g', 'e', 'r', ':'};
  std::uint64_t run = 0;
};

/// Writes the file under another name and renames it, so that no process reads half of it and no
/// link is followed.
inline void write_file(std::string const& path, std::span<std::byte const> bytes,
                       RendezvousInfo const& info) {
  FileHead const head{.run = info.run};
  std::string const beside = text(path, ".", random_number(), ".new");
  stagger::detail::Descriptor file(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  auto const write = [&](void const* from, std::size_t size) {
    return ::write(file.get(), from, size) == static_cast<::ssize_t>(size);
  };
  bool const made = bool(file);
  if (made && write(&head, sizeof head) && write(bytes.data(), bytes.size()) && file.close() &&
      std::rename(beside.c_str(), path.c_str()) == 0)
    return;
  int const error = errno;
  if (made) ::unlink(beside.c_str());
  raise(Errc::io, "rank 0 cannot write ", path, ": ", std::strerror(error),
        "; name a file in a folder that all ranks see");
}

/// @return whether the file of this run exists; `other`: that of another run does
inline bool read_file(std::string const& path, std::span<std::byte> bytes,
                      RendezvousInfo const& info, bool& other) {
  stagger::detail::Descriptor const file(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file) return false;
  FileHead head;
  auto const read = [&](void* to, std::size_t size) {
    return ::read(file.get(), to, size) == static_cast<::ssize_t>(size);
  };
  bool const whole = read(&head, sizeof head) && read(bytes.data(), bytes.size());
  other = !whole || head.word != FileHead{}.word || head.run != info.run;
  return !other;
}

inline void exchange_file(std::string const& path, std::span<std::byte> bytes,
                          RendezvousInfo const& info) {
  if (info.rank == 0) return write_file(path, bytes, info);
  for (bool other = false; !read_file(path, bytes, info, other); info.end.pause(20)) {
    if (info.end.left_ms() == 0)
      raise(Errc::deadline, "rank ", info.rank, " waited ", info.seconds, " s for rank 0 to write ",
            path, other ? ", which is another run's" : "",
            "; check whether rank 0 was started and sees the same folder");
  }
}

}  // namespace detail

/// Invites the ranks of a launched program. Over MPI, use `invite` with a broadcast instead.
/// @throws Error  deadline if a rank does not arrive; io for a port or a file that cannot be used;
/// bad_configuration if the launcher gives no address and `options` names no file, for a file
/// without a name of the run, for two processes with the same rank, or if the version of NCCL
/// differs from rank 0's
[[nodiscard]] inline Invitation invite(collective::Launch const& launch,
                                       Rendezvous const& options = {}) {
  stagger::detail::require_deadline("Rendezvous::deadline_s", options.deadline_s);
  if (options.port < 0 || options.port > 65535)
    raise(Errc::bad_configuration, "Rendezvous::port is ", options.port,
          "; it must be a number from 1 to 65535");
  if (launch.size == 1) return invite(launch.rank, [](std::span<std::byte>) {});
  bool const tcp = !launch.address.empty() && (options.port != 0 || launch.port != 0);
  if (!tcp && options.file.empty())
    raise(Errc::bad_configuration, launch.launcher,
          " gave no address of rank 0: set MASTER_ADDR and MASTER_PORT, give "
          "Rendezvous::file, or broadcast over MPI with nccl::invite(rank, broadcast)");
  std::string const& run = options.run.empty() ? launch.run : options.run;
  if (!tcp && run.empty())
    raise(Errc::bad_configuration, launch.launcher,
          " gave no name of the run, by which ranks know ", options.file,
          " from that of an earlier run; set Rendezvous::run to a name that is new each time");
  auto const ports = detail::ports_of(launch, options);
  // The address is not compared: rank 0's machine may be localhost for one rank and have a name for
  // another.
  auto const name = text(run, "\n", tcp ? ports.front() : 0, "\n", launch.size);
  detail::RendezvousInfo const info{.address = launch.address,
                                    .ports = ports,
                                    .run = collective::digest(name),
                                    .rank = launch.rank,
                                    .size = launch.size,
                                    .seconds = options.deadline_s};
  return invite(launch.rank, [&](std::span<std::byte> bytes) {
    if (!tcp) return detail::exchange_file(options.file, bytes, info);
    if (launch.rank == 0) return detail::Host(info, bytes).serve();
    detail::fetch(info, bytes);
  });
}

}  // namespace stagger::nccl
