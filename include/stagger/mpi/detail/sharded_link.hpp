// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's link to a parameter server whose layers lie in several processes.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/late_merger.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/remote_link.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/mpi/detail/connections.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::mpi::detail {

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
  std::size_t workers = 1;   ///< of all processes
  std::string run{};         ///< as ServerOptions::run
};

class PartConnector final : public collective::detail::Connector {
 public:
  PartConnector(ServerParts const& server, int process)
      : connections_(server.connections), run_(server.run), process_(process) {}
  [[nodiscard]] std::unique_ptr<collective::detail::Transport> connect(MessageEnd& end) override {
    return connections_->connect(process_, end);
  }
  [[nodiscard]] double deadline_s() const override { return connections_->deadline_s(); }
  [[nodiscard]] std::string name() const override { return text("process ", process_); }
  [[nodiscard]] std::string run() const override { return run_; }

 private:
  std::shared_ptr<Connections> connections_;
  std::string run_;
  int process_;
};

/// To each part of the server, the other layers of the model have no parameters, so that layers
/// have the same numbers everywhere.
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
      merger_ = std::make_unique<collective::detail::LateMerger>(rules, layers, server_->workers,
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
  void read(std::size_t l, std::byte* values) override { part_of(l).read(l, values); }
  void push(std::size_t l, std::byte const* values, bool last, ByteRange part) override {
    part_of(l).push(l, values, last, part);
  }
  void ask(std::size_t l, std::uint32_t rounds, ByteRange part) override {
    part_of(l).ask(l, rounds, part);
  }
  stagger::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values,
                                   ByteRange part) override {
    return part_of(l).take(l, rounds, values, part);
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
        std::make_unique<PartConnector>(*server_, process), worker_);
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

}  // namespace stagger::mpi::detail
