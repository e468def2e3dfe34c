// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server over an existing MPI: workers and layers lie in several processes.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/collective/late_merger.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/remote_link.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/mpi/detail/agreement.hpp>
#include <stagger/mpi/detail/connections.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/staleness/policy.hpp>
#include <stagger/staleness/synchronous.hpp>

namespace stagger::mpi {

namespace detail {

using stagger::detail::ByteRange;
using stagger::detail::LayerParameters;
using stagger::detail::ParameterDeclaration;
using stagger::detail::ParameterLink;
using stagger::detail::ParameterListener;
using stagger::detail::WorkerRules;

/// The assignment of layers to the processes that keep them.
struct LayerProcesses {
  std::vector<int> given{};  ///< [layers]; empty: in turn
  int processes = 1;
  [[nodiscard]] int of(std::size_t layer) const {
    return given.empty() ? static_cast<int>(layer % static_cast<unsigned>(processes))
                         : given[layer];
  }
  /// Whether workers join the process. If layers are kept in turn they join all processes, since a
  /// process without workers does not know how many layers there are.
  [[nodiscard]] bool serves(int process) const {
    return given.empty() || std::find(given.begin(), given.end(), process) != given.end();
  }
};

/// The part of the server in this process, and the connections to the others.
struct ServerParts {
  LayerProcesses layers{};
  std::shared_ptr<collective::detail::ServerInProcess> server{};  ///< of this process
  std::shared_ptr<Connections> connections{};
  std::atomic<int> here{0};  ///< workers of this process that have joined
  std::string run{};         ///< as ServerOptions::run
};

class PartConnector final : public collective::detail::Connector {
 public:
  PartConnector(std::shared_ptr<ServerParts> server, int process)
      : server_(std::move(server)), process_(process) {}
  [[nodiscard]] std::unique_ptr<collective::detail::Transport> connect(MessageEnd& end) override {
    return server_->connections->connect(process_, end);
  }
  [[nodiscard]] double deadline_s() const override { return server_->connections->deadline_s(); }
  [[nodiscard]] std::string name() const override { return text("process ", process_); }
  [[nodiscard]] std::string run() const override { return server_->run; }

 private:
  std::shared_ptr<ServerParts> server_;
  int process_;
};

/// A worker's link to a server whose layers lie in several processes. To each part of the server,
/// the other layers of the model have no parameters, so that layers have the same numbers
/// everywhere.
class ShardedLink final : public ParameterLink {
 public:
  ShardedLink(std::shared_ptr<ServerParts> server, int worker)
      : server_(std::move(server)),
        worker_(worker),
        parts_(static_cast<std::size_t>(server_->layers.processes)) {}
  ShardedLink(ShardedLink const&) = delete;
  ShardedLink& operator=(ShardedLink const&) = delete;
  ~ShardedLink() override { leave(); }

  [[gnu::cold]] void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
                          ParameterListener& listener) override {
    LayerProcesses const& kept = server_->layers;
    if (!kept.given.empty() && kept.given.size() != layers.size())
      raise(Errc::bad_configuration, "ServerOptions::layer_processes has ",
            counted(kept.given.size(), "layer"), ", worker ", worker_, " has ", layers.size(),
            "; name a process for each layer");
    WorkerRules own = rules;
    own.process = server_->connections->rank();
    own.processes = processes_;
    own.in_parts = true;
    if (rules.late != nullptr)
      merger_ = std::make_unique<collective::detail::LateMerger>(rules, layers, workers(),
                                                                 parts_.size(), listener);
    ++server_->here;
    joined_ = true;
    try {
      for (int p = 0; p < kept.processes; ++p) {
        if (!kept.serves(p)) continue;
        FixedArray<LayerParameters> const part = layers_of(p, layers);
        auto link = link_to(p);
        link->join({part.data(), part.size()}, own,
                   merger_ == nullptr ? listener : merger_->add(p, {part.data(), part.size()}));
        parts_[p] = std::move(link);
      }
    } catch (...) {
      leave();
      throw;
    }
  }
  void leave() noexcept override {
    if (!std::exchange(joined_, false)) return;
    for (auto& part : parts_) {
      if (part != nullptr) part->leave();
      part = nullptr;
    }
    --server_->here;
  }
  [[nodiscard]] double change_factor() const override {
    double factor = 1;
    for (auto const& part : parts_)
      if (part != nullptr) factor = part->change_factor();  // the same in all
    return factor;
  }

  void begin() override {
    if (merger_ != nullptr) merger_->begin();
    // The part in this process says at once after how many failures, any other when asked.
    auto const own = static_cast<std::size_t>(server_->connections->rank());
    std::uint32_t failures = stagger::detail::any_failures;
    if (parts_[own] != nullptr) failures = parts_[own]->begin_part(failures);
    for (std::size_t p = 0; p < parts_.size(); ++p)
      if (p != own && parts_[p] != nullptr) failures = parts_[p]->begin_part(failures);
  }
  [[nodiscard]] bool begins() const noexcept override {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](auto const& part) { return part == nullptr || part->begins(); });
  }
  void read(std::size_t l, std::byte* values) override { part_of(l).read(l, values); }
  void push(std::size_t l, std::byte const* values, bool last, ByteRange part) override {
    part_of(l).push(l, values, last, part);
  }
  void hand_over(std::size_t l, stagger::detail::ParameterBlock& values) override {
    part_of(l).hand_over(l, values);
  }
  void ask(std::size_t l, std::uint32_t rounds, ByteRange part) override {
    part_of(l).ask(l, rounds, part);
  }
  stagger::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values,
                                   ByteRange part) override {
    return part_of(l).take(l, rounds, values, part);
  }
  stagger::detail::VersionTag take_over(std::size_t l, std::uint32_t rounds,
                                        stagger::detail::ParameterBlock& values) override {
    return part_of(l).take_over(l, rounds, values);
  }
  void report(double loss) override {
    for (auto const& part : parts_)
      if (part != nullptr) part->report(loss);
  }
  void ask_late(std::uint32_t step) override {
    if (step == 0) return merger_->tell_first();
    for (auto const& part : parts_)
      if (part != nullptr) part->ask_late(step);
  }
  void end(std::exception_ptr why) noexcept override {
    for (auto const& part : parts_)
      if (part != nullptr) part->end(why);
  }
  [[nodiscard]] bool span(int processes) noexcept override {
    processes_ = processes;
    return processes <= server_->layers.processes;
  }
  [[nodiscard]] int worker() const noexcept override { return worker_; }
  [[nodiscard]] std::size_t workers() const noexcept override { return server_->server->workers(); }
  [[nodiscard]] std::string waits_for() const override {
    for (auto const& part : parts_)
      if (part != nullptr)
        if (std::string words = part->waits_for(); !words.empty()) return words;
    return {};
  }

 private:
  [[nodiscard]] ParameterLink& part_of(std::size_t layer) {
    return *parts_[server_->layers.of(layer)];
  }
  [[nodiscard]] std::unique_ptr<ParameterLink> link_to(int process) const {
    if (process == server_->connections->rank())
      return std::make_unique<collective::detail::LinkInProcess>(server_->server, worker_);
    return std::make_unique<collective::detail::RemoteLink>(
        std::make_unique<PartConnector>(server_, process), worker_);
  }
  /// The model as the server in a process sees it, with values of its own: a worker over processes
  /// may not have made them yet.
  [[nodiscard]] FixedArray<LayerParameters> layers_of(
      int process, std::span<LayerParameters const> layers) const {
    FixedArray<LayerParameters> part(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l) {
      List<ParameterDeclaration> declarations;
      for (std::size_t i = 0; server_->layers.of(l) == process && i < layers[l].count(); ++i) {
        std::byte const* const values = layers[l].values().data();
        declarations.push_back(values == nullptr ? layers[l].declaration(i)
                                                 : layers[l].declaration(i, values));
      }
      part[l].adopt(std::move(declarations), static_cast<int>(l), 0);
      part[l].release_gradients();
    }
    return part;
  }

  std::shared_ptr<ServerParts> server_;
  int worker_;
  int processes_ = 1;  // that the worker runs in
  bool joined_ = false;
  std::unique_ptr<collective::detail::LateMerger> merger_;  // null: no layer is ever late
  FixedArray<std::unique_ptr<ParameterLink>> parts_;        // [processes]; null: keeps nothing
};

}  // namespace detail

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
  ///                   theirs
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
      raise(
          Errc::bad_configuration,
          "a worker of this process has not left its parameter server; destroy its trainer before "
          "serve()");
    if (!parts_->layers.serves(parts_->connections->rank())) return;
    for (;;) {
      auto const [missing, present] = parts_->server->attendance();
      if (missing < 0 && present == 0) return;
      std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - made_at_;
      if (missing >= 0 && waited.count() >= options_.join_deadline_s)
        raise(Errc::deadline, "worker ", missing, " has not joined the parameter server within ",
              options_.join_deadline_s, " s; check that its process is still running");
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
    stagger::detail::require_deadline("ServerOptions::deadline_s", options_.deadline_s);
    stagger::detail::require_deadline("ServerOptions::join_deadline_s", options_.join_deadline_s);
    detail::Exchange world(options_.processes, options_.join_deadline_s);
    for (int const process : options_.layer_processes)
      if (process < 0 || process >= world.size())
        raise(Errc::bad_configuration, "no process ", process,
              " can keep layers of the parameter server; there are processes 0 to ",
              world.size() - 1);
    detail::agree(world, facts(rules), options_.join_deadline_s);
    parts_->layers = {options_.layer_processes, world.size()};
    parts_->run = options_.run;
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
