// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The collective policy of programs that mpirun or Slurm starts: one rank per process.

#include <mpi.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/launcher.hpp>
#include <stagger/collective/policy.hpp>
#include <stagger/mpi/communicator.hpp>

namespace stagger::mpi {

/// Collective policy: the ranks are the processes of a communicator of MPI.
///
/// MPI is running for as long as communicators live: see Session.
struct World {
  using policy_tag = CollectiveTag;
  using communicator_type = Communicator;
  static constexpr bool offers_all_reduce = true;
  static constexpr bool offers_push_pull = false;

  AllReduce algorithm = AllReduce::slices;  ///< of calls that name none; the same on all ranks
  MPI_Comm processes = MPI_COMM_WORLD;      ///< looked at, and never used for messages
  double deadline_s = 60;                   ///< for all processes to call connect()

  /// This process's communicator: rank r is process r. Every process calls it; each call takes two
  /// communicators of MPI for the rest of the run.
  /// @param  ranks  that the program was made for
  /// @throws Error  Errc::bad_configuration for another number of processes, an MPI that is not
  ///                running or sees another number of processes than the launcher started;
  ///                Errc::deadline for processes that do not come
  [[nodiscard]] std::vector<Communicator> connect(int ranks) const {
    require_callable();
    int size = 0;
    int rank = 0;
    MPI_Comm_size(processes, &size);
    MPI_Comm_rank(processes, &rank);
    auto const launch = collective::find_launch();
    if (processes == MPI_COMM_WORLD && launch) require_launched(*launch, size);
    if (size != ranks) {
      throw Error(Errc::bad_configuration,
                  text("the program has ", counted(ranks, "rank"), ", but MPI started ",
                       counted(size, "process"), "; start it with mpirun -n ", ranks));
    }
    MPI_Comm const data = duplicate();
    MPI_Comm const control = duplicate();
    MPI_Comm const native = algorithm == AllReduce::iallreduce ? duplicate() : MPI_COMM_NULL;
    auto const connection = std::make_shared<detail::Connection>(data, control, rank, size);
    connection->spin = spin(launch);
    std::vector<int> members;
    for (int r = 0; r < size; ++r) members.push_back(r);
    auto context =
        connection->make(connection, connection->propose(), rank, std::move(members), algorithm);
    context->native = native;
    std::vector<Communicator> own;
    own.push_back(Communicator(std::move(context)));
    return own;
  }

  /// For back ends: how long to ask again at once. A core that another process waits for is left
  /// soon.
  [[nodiscard]] static std::chrono::microseconds spin(
      std::optional<collective::Launch> const& launch) {
    auto const cores = static_cast<int>(std::thread::hardware_concurrency());
    bool const shared = launch && cores > 0 && launch->local_size > cores;
    return std::chrono::microseconds(shared ? 20 : 1000);
  }
  /// For back ends: a communicator of MPI of its own, for the rest of the run. Every process calls
  /// it.
  /// @throws Error  Errc::deadline for processes that do not
  [[nodiscard]] MPI_Comm duplicate() const {
    int size = 0;
    MPI_Comm_size(processes, &size);
    MPI_Errhandler before = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(processes, &before);
    MPI_Comm_set_errhandler(processes, MPI_ERRORS_RETURN);
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Comm_idup(processes, &made, &request);
    auto const start = std::chrono::steady_clock::now();
    int done = 0;
    Waiting waiting(std::chrono::microseconds(0));
    while (code == MPI_SUCCESS && done == 0) {
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      auto const waited = std::chrono::steady_clock::now() - start;
      if (done == 0) waiting.pause(waited);
      if (done == 0 && std::chrono::duration<double>(waited).count() >= deadline_s) break;
    }
    MPI_Comm_set_errhandler(processes, before);
    MPI_Errhandler_free(&before);
    check(code, "MPI_Comm_idup", "this process");
    if (done == 0) {
      detail::troubled() = true;
      throw Error(Errc::deadline, text("not all ", size, " processes have come after ", deadline_s,
                                       " s; look for one that died or hangs"));
    }
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return made;
  }

 private:
  /// A program started by Slurm without its MPI plug-in runs as so many worlds of one process.
  static void require_launched(collective::Launch const& launch, int size) {
    if (launch.size == size) return;
    throw Error(
        Errc::bad_configuration,
        text(launch.launcher, " says that there are ", launch.size, " processes, but MPI sees ",
             size, "; start the program with the mpirun of this MPI, or with srun --mpi=pmix"));
  }
};

}  // namespace stagger::mpi
