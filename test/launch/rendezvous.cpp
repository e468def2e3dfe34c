// SPDX-License-Identifier: Apache-2.0
// What a launcher starts: finds out which rank it is, meets the others as nccl::Gpus does, and says
// whom it has met. On the stand-in for CUDA and NCCL, whose GPUs it takes from
// CUDA_VISIBLE_DEVICES, as CUDA would.
//
//     rendezvous             by the launcher's variables; STAGGER_FILE: through this file; compiled
//                            with OVER_MPI: over MPI
//     rendezvous free-port   names a port that is free
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <stagger/nccl/rendezvous.hpp>

#ifdef OVER_MPI
#include <stagger/mpi/session.hpp>
#endif

#include "cuda_stand_in/stand_in.hpp"

namespace sg = stagger;

namespace {

int free_port() {
  for (int port = 20000 + ::getpid() % 10000;; ++port) {
    int error = 0;
    if (sg::nccl::detail::listen_on(port, error)) return port;
  }
}

std::string meet() {
  if (char const* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    cuda_stand_in::Machine machine;
    std::string_view const list(visible);
    machine.devices = static_cast<int>(std::count(list.begin(), list.end(), ',')) + 1;
    cuda_stand_in::set_machine(machine);
  }
  auto const launch = sg::collective::find_launch();
  if (!launch) return "no launcher\n";
  sg::nccl::Rendezvous options;
  options.deadline_s = 30;
  if (char const* const file = std::getenv("STAGGER_FILE")) options.file = file;
  // Ids of the stand-in are 1, 2, ...: this one tells whose it is.
  ncclUniqueId id;
  for (int i = ::getpid() % 1000; i > 0; --i) ncclGetUniqueId(&id);
#ifdef OVER_MPI
  sg::mpi::Session const session;
  auto const invitation = sg::nccl::invite(launch->rank, [](std::span<std::byte> bytes) {
    MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  });
#else
  auto const invitation = sg::nccl::invite(*launch, options);
#endif
  std::uint64_t number = 0;
  std::memcpy(&number, invitation.id.internal, sizeof number);
  return sg::text("rank ", launch->rank, " of ", launch->size, " by ", launch->launcher, ": id ",
                  number, ", GPU ", sg::nccl::local_device(*launch), "\n");
}

}  // namespace

int main(int count, char** words) {
  std::string says;
  int result = 0;
  try {
    bool const port = count > 1 && std::strcmp(words[1], "free-port") == 0;
    says = port ? sg::text(free_port(), "\n") : meet();
  } catch (sg::Error const& error) {
    says = sg::text(error.what(), "\n");
    result = 1;
  }
  return std::fputs(says.c_str(), stdout) < 0 ? 1 : result;
}
