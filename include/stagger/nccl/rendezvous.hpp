// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Inviting all ranks the way their launcher allows: over TCP, through a file, or with a
/// broadcast of one's own.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <thread>

#include <stagger/collective/launcher.hpp>
#include <stagger/nccl/detail/tcp.hpp>
#include <stagger/nccl/invitation.hpp>

namespace stagger::nccl {

/// How ranks of one run find each other.
struct Rendezvous {
  double deadline_s = 60;  ///< longest wait for the others
  int port = 0;            ///< on rank 0's machine; 0: the one that the launcher told
  std::string
      file{};  ///< on a file system that all see, new for each run; used where no address was told
};

namespace detail {

inline void exchange_file(std::string const& path, std::span<std::byte> bytes, int rank,
                          Meeting const& meeting) {
  auto const open = [](std::string const& name, char const* how) {
    return std::fopen(name.c_str(), how);
  };
  if (rank == 0) {  // written beside it and renamed: nobody reads half of it
    std::string const beside = path + ".new";
    auto* const file = open(beside, "wb");
    bool good = file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    good = file != nullptr && std::fclose(file) == 0 && good;
    if (!good || std::rename(beside.c_str(), path.c_str()) != 0)
      throw stagger::Error(Errc::io, text("rank 0 cannot write ", path,
                                          "; give a file in a folder that all ranks see"));
    return;
  }
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    if (auto* const file = open(path, "rb"); file != nullptr) {
      bool const all = std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size();
      std::fclose(file);
      if (all) return;
    }
    if (meeting.left_ms() == 0)
      throw stagger::Error(
          Errc::deadline,
          text("rank ", rank, " waited ", meeting.seconds, " s for rank 0 to write ", path,
               "; see whether it was started and sees the same folder"));
  }
}

}  // namespace detail

/// Invites the ranks of a launched program. Over MPI, use `invite` with a broadcast instead.
/// @throws Error  deadline where a rank does not come; io for a port or a file that cannot be had;
///                bad_configuration where the launcher told no address and `options` names no file,
///                or for another NCCL than rank 0's
[[nodiscard]] inline Invitation invite(collective::Launch const& launch,
                                       Rendezvous const& options = {}) {
  detail::Meeting meeting;
  meeting.address = launch.address;
  meeting.port = options.port != 0 ? options.port : launch.port;
  meeting.seconds = options.deadline_s;
  meeting.end = std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(options.deadline_s));
  bool const tcp = !launch.address.empty() && meeting.port != 0;
  if (!tcp && options.file.empty())
    throw stagger::Error(
        Errc::bad_configuration,
        text(launch.launcher,
             " told no address of rank 0: set MASTER_ADDR and MASTER_PORT, give "
             "Rendezvous::file, or broadcast over MPI with nccl::invite(rank, broadcast)"));
  return invite(launch.rank, [&](std::span<std::byte> bytes) {
    if (!tcp) return detail::exchange_file(options.file, bytes, launch.rank, meeting);
    if (launch.rank == 0) return detail::serve(meeting, bytes, launch.size - 1);
    detail::fetch(meeting, bytes, launch.rank);
  });
}

}  // namespace stagger::nccl
