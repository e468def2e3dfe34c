// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Where workers and their parameter server are: in this process, or in several.

#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/portable.hpp>

#include "run.hpp"
#include "settings.hpp"

namespace hetero {

/// What a process needs to train its workers.
struct Team {
  std::vector<std::size_t> own;  ///< the workers of this process
  std::function<stagger::collective::ServerWorker(std::size_t)> worker;  ///< one of those
  std::function<void()> start;  ///< returns when the workers of all processes are made
};

/// Trains the team's own workers, and writes what they did to their places.
/// @pre run.workers has a place for each worker
using Train = std::function<void(Team const&, Run& run)>;

/// Calls `train` in each process that `--device` asks for.
/// @param rate  of the server's optimizer
/// @return what all workers did, and the held-out loss of the first
/// @throws Error  what a process ended with
[[nodiscard]] Run train_in_team(Settings const& s, double rate, Train const& train);
/// The same for `--device tcp` and `--device mpi`.
[[nodiscard]] Run train_over_tcp(Settings const& s, double rate, Train const& train);
[[nodiscard]] Run train_over_mpi(Settings const& s, double rate, Train const& train);

/// With `--device mpi`, runs this program under mpirun, unless it was started so: then it
/// initialises MPI, and all processes but the first print and write nothing from now on.
/// @return the exit code of what ran; nothing in a process that is to go on
/// @throws Error  bad_configuration where there is no MPI, io where processes cannot be started
[[nodiscard]] std::optional<int> start_processes(Settings& s, int argc, char** argv);

/// What a process tells the others of its part of a run: what its workers did, and the held-out
/// loss where it has the first; or what it ended with.
[[nodiscard]] stagger::ByteWriter report_of(Team const& team, Run const& run);
[[nodiscard]] stagger::ByteWriter report_of(std::exception_ptr const& failure);

/// What all processes have told.
class Reports {
 public:
  explicit Reports(std::size_t workers) { run_.workers.resize(workers); }
  void add(std::span<std::byte const> report);
  void fail(stagger::Error const& why);
  /// Whether it is known why the run has failed: not only that another process has.
  [[nodiscard]] bool explained() const;
  [[nodiscard]] bool failed() const noexcept { return failure_.has_value(); }
  /// @throws Error  what a process ended with, if possible one that did not end since another had
  [[nodiscard]] Run take();

 private:
  Run run_;
  std::optional<stagger::Error> failure_{};
};

}  // namespace hetero
