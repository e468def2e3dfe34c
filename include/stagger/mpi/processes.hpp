// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: the ranks of one pipeline in several processes, over an existing MPI.

#include <stagger/core/requirements.hpp>

#include <mpi.h>

#include <cstddef>
#include <memory>

#include <stagger/engine/session.hpp>
#include <stagger/mpi/detail/port_types.hpp>
#include <stagger/mpi/processes_backend.hpp>
#include <stagger/mpi/session.hpp>

namespace stagger::mpi {

/// Device policy: the ranks are spread over the processes that mpirun or Slurm started, each of
/// which runs its own on the thread that takes the step.
///
/// Every process makes the same pipeline and takes the same steps with the same batches. A step
/// that one process cannot begin, or that they begin differently, fails in all of them, and all can
/// take the next one. A process keeps the parameters of its own stages up to date; see
/// Trainer::gather_parameters. Values that go from stage to stage are Portable. MPI is running
/// while the pipeline lives: see Session.
///
/// @code
///     mpi::Session const session;
///     auto train = Pipeline{...}.with(schedule::OneFOneB{}, mpi::Processes{});   // mpirun -n 4
/// @endcode
struct Processes {
  using policy_tag = DeviceTag;
  using Backend = ProcessesBackend;
  static constexpr DeviceTraits traits{.obeys_placement = true,
                                       .needs_every_place = true,
                                       .meets_types = true,
                                       .sums_while_running = true,
                                       .sums_by_library = true,
                                       .shards_states = true,
                                       .holds_own_stages = true,
                                       .gathers_parameters = true,
                                       .starts_together = true};

  MPI_Comm processes = MPI_COMM_WORLD;  ///< looked at, and never used for messages
  double meet_s = 60;  ///< for all processes to make the pipeline, or to lay out a program

  /// How many places a placement policy may spread the ranks over: processes. In order, process p
  /// of P runs the ranks from p N / P on.
  /// @throws Error  bad_configuration where MPI is not running
  [[nodiscard]] int places() const {
    require_callable();
    int size = 0;
    MPI_Comm_size(processes, &size);
    return size;
  }

  /// For Pipeline: the types of all layers.
  template <class Types> void meet() noexcept {
    ports = detail::PortTypes<Types>::table;
    port_count = detail::PortTypes<Types>::count;
  }
  detail::PortType const* ports = nullptr;
  std::size_t port_count = 0;
};

}  // namespace stagger::mpi

#ifdef STAGGER_SEPARATE_COMPILATION_MPI
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(mpi::Processes const&, List<Layer>,
                                                      Setup const&);
}
#else
#include <stagger/engine/make_session.hpp>
#endif
