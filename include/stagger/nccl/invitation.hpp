// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The data that rank 0 sends to all other ranks before they can join a communicator.

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include <stagger/nccl/error.hpp>

namespace stagger::nccl {

/// A version number of NCCL such as 22809 as text: "2.28.9".
[[nodiscard]] inline std::string version_text(int version) {
  return text(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

/// The version of NCCL that this process runs with.
[[nodiscard]] inline int version() {
  int version = 0;
  static_cast<void>(ncclGetVersion(&version));
  return version;
}

/// NCCL's unique id, and the version that made it.
struct Invitation {
  ncclUniqueId id{};
  int version = 0;
};

/// Makes an invitation on rank 0 and broadcasts it to every rank.
///
/// @param broadcast  (std::span<std::byte>) -> void: called once on each rank; copies rank 0's
///                   bytes to all, over MPI, a socket or a file
/// @throws Error bad_configuration if the version of NCCL differs from that of rank 0, naming both
template <class Broadcast> [[nodiscard]] Invitation invite(int rank, Broadcast broadcast) {
  Invitation invitation;
  if (rank == 0) {
    ncclResult_t const result = ncclGetUniqueId(&invitation.id);
    if (result != ncclSuccess) detail::fail(result, "make a unique id", nullptr, rank);
    invitation.version = version();
  }
  std::array<std::byte, sizeof(Invitation)> bytes{};
  std::memcpy(bytes.data(), &invitation, sizeof invitation);
  broadcast(std::span<std::byte>(bytes));
  std::memcpy(&invitation, bytes.data(), sizeof invitation);
  if (invitation.version != version())
    raise(Errc::bad_configuration, "rank ", rank, " runs with NCCL ", version_text(version()),
          " and rank 0 with ", version_text(invitation.version), "; install the same NCCL on all");
  return invitation;
}

}  // namespace stagger::nccl
