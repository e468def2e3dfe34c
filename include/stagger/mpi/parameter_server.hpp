// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server over an existing MPI: workers and layers lie in several processes.

#include <stagger/core/requirements.hpp>

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/error.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/mpi/detail/agreement.hpp>
#include <stagger/mpi/detail/connections.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/sharded_link.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/staleness/policy.hpp>
#include <stagger/staleness/synchronous.hpp>

namespace stagger::mpi {

/// The options of a server over processes; the same in all of them.
struct ServerOptions {
  int workers = 1;                ///< as in collective::ServerOptions
  std::vector<double> weights{};  ///< likewise
  bool average_changes = false;   ///< likewise
  bool log = false;               ///< likewise
  std::string run{};              ///< likewise
  /// [layers] the process that keeps each, as placement::Local{}.layer_nodes() answers. Empty: one
  /// after the other, as placement::RoundRobin over all processes.
  std::vector<int> layer_processes{};
  MPI_Comm processes = MPI_COMM_WORLD;  ///< only queried, never used for messages
  double deadline_s = 60;               ///< > 0: a process that is silent for so long counts as
                                        ///< failed
  double join_deadline_s = 60;  ///< > 0: for all processes to make the server, and workers to join
};

/// A parameter server of which each process keeps some layers and may run workers. All processes
/// make it together. MPI must run with MPI_THREAD_MULTIPLE as long as the server and its workers
/// exist, since a thread of each process answers requests, whatever else the process does. Every
/// process calls `serve` before it destroys the server: at once if it has no workers, otherwise
/// when its workers are destroyed.
///
/// @code
///     mpi::Session const session(mpi::Threads::multiple);
///     mpi::ParameterServer server({.workers = 2});                    // mpirun -n 2
///     {
///       auto train = pipeline.with(waves, server.worker(rank), loss, host::Threads{2});
///       run(train.stream(batch));
///     }
///     server.serve();
/// @endcode
class ParameterServer {
 public:
  /// @param optimizer  with which the server takes steps if workers push gradients; the same as
  /// theirs
  /// @param model      the workers' staleness model, if the server chooses late layers by it
  /// @throws Error  bad_configuration for options that are out of range, or an MPI that other
  /// threads may not call; mismatch if other processes have other options; deadline for processes
  /// that do not arrive
  template <OptimizerPolicy O = optimizer::Sgd, StalenessPolicy S = staleness::Synchronous>
  explicit ParameterServer(ServerOptions const& options, O const& optimizer = {},
                           S const& model = {})
      : options_(options), parts_(std::make_shared<detail::ServerParts>()) {
    auto rules = collective::detail::remote_rules(optimizer, model,
                                                  &stagger::detail::optimizer_call<false, O>,
                                                  stagger::detail::late_calls_of<S>);
    rules.model_bytes = std::numeric_limits<std::uint64_t>::max();
    start(rules);
  }

  /// @param number  0 <= number < workers; in all processes that it runs in
  /// @throws Error  bad_configuration for another
  [[nodiscard]] collective::ServerWorker worker(int number) const {
    parts_->server->require_worker(number);
    return collective::ServerWorker(std::make_shared<detail::ShardedLink>(parts_, number));
  }

  /// As collective::ParameterServer::log and missed, for a layer that this process keeps.
  /// @throws Error likewise, and for a layer that another process keeps, naming that process
  [[nodiscard]] std::vector<collective::ServerEvent> log(std::size_t layer) const {
    require_here(layer);
    return collective::detail::log_of(*parts_->server, layer);
  }
  [[nodiscard]] std::vector<std::uint64_t> missed(int worker, std::size_t layer) const {
    require_here(layer);
    return collective::detail::missed_of(*parts_->server, worker, layer);
  }

  /// Keeps this process's layers available until each worker has joined and left. A worker leaves
  /// when its trainer is destroyed, or when its process counts as failed.
  /// @throws Error deadline for a worker that does not join; bad_configuration if a worker of this
  ///         process has not left
  void serve() const {
    if (parts_->here.load() != 0)
      raise(Errc::bad_configuration,
            "a worker of this process has not left its parameter server; let its trainer go before "
            "serve()");
    if (!parts_->layers.serves(parts_->connections->rank())) return;
    for (;;) {
      auto const [missing, present] = parts_->server->attendance();
      if (missing < 0 && present == 0) return;
      std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - made_at_;
      if (missing >= 0 && waited.count() >= options_.join_deadline_s)
        raise(Errc::deadline, "worker ", missing, " has not joined the parameter server within ",
              options_.join_deadline_s, " s; see whether its process lives");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  static constexpr int locks = 8;  // of layers

  [[gnu::cold]] void start(collective::detail::RemoteRules const& rules) {
    require_callable();
    if (detail::level() < Threads::multiple)
      raise(Errc::bad_configuration, "MPI runs with ", name(detail::level()),
            ", and a parameter server answers on a thread of its own; initialise it with "
            "MPI_THREAD_MULTIPLE");
    if (!(options_.deadline_s > 0) || !(options_.join_deadline_s > 0))
      raise(Errc::bad_configuration, "a parameter server cannot wait for ", options_.deadline_s,
            " s for a message and ", options_.join_deadline_s,
            " s for workers; use positive times");
    detail::Exchange world(options_.processes, options_.join_deadline_s);
    for (int const process : options_.layer_processes)
      if (process < 0 || process >= world.size())
        raise(Errc::bad_configuration, "no process ", process,
              " can keep layers of the parameter server; there are processes 0 to ",
              world.size() - 1);
    detail::agree(world, facts(rules), options_.join_deadline_s);
    parts_->layers = {options_.layer_processes, world.size()};
    parts_->run = options_.run;
    parts_->workers = static_cast<std::size_t>(options_.workers);
    parts_->server = std::make_shared<collective::detail::ServerInProcess>(
        collective::ServerOptions{.workers = options_.workers,
                                  .shards = locks,
                                  .weights = options_.weights,
                                  .average_changes = options_.average_changes,
                                  .log = options_.log,
                                  .run = options_.run},
        world.size());
    parts_->connections = std::make_shared<detail::Connections>(
        detail::duplicate(options_.processes, options_.join_deadline_s), options_.deadline_s,
        parts_->server, rules);
  }

  [[nodiscard]] std::vector<collective::Fact> facts(
      collective::detail::RemoteRules const& rules) const {
    std::string weights;
    for (double const weight : options_.weights) weights += text(weight, " ");
    std::string processes;
    for (int const process : options_.layer_processes) processes += text(process, " ");
    return {{"ServerOptions::run", options_.run},
            {"ServerOptions::workers", std::to_string(options_.workers)},
            {"ServerOptions::weights", weights},
            {"ServerOptions::average_changes", options_.average_changes ? "true" : "false"},
            {"ServerOptions::layer_processes", processes},
            collective::detail::optimizer_fact(rules.optimizer),
            {"the staleness model that sends layers late",
             rules.late == nullptr ? "none" : rules.late->words(rules.late_policy)}};
  }

  [[gnu::cold]] void require_here(std::size_t layer) const {
    auto const& given = options_.layer_processes;
    if (!given.empty() && layer >= given.size()) return;  // the server says that there is none
    int const keeper = parts_->layers.of(layer);
    if (keeper != parts_->connections->rank())
      raise(Errc::bad_configuration, "process ", keeper, " keeps layer ", layer,
            " of the parameter server; ask there");
  }

  ServerOptions options_;
  std::shared_ptr<detail::ServerParts> parts_;
  std::chrono::steady_clock::time_point made_at_ = std::chrono::steady_clock::now();
};

}  // namespace stagger::mpi
