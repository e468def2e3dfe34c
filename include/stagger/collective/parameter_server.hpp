// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server in this process, through which several pipelines train one model,
///         each on data of its own.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/detail/server_in_process.hpp>
#include <stagger/collective/policy.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

using stagger::detail::ParameterLink;
using stagger::detail::VersionTag;

/// See ParameterServer::log and missed.
[[nodiscard]] inline std::vector<ServerEvent> log_of(ServerInProcess& server, std::size_t l) {
  if (!server.layers().logs())
    raise(Errc::bad_configuration,
          "this server remembers nothing; make it with ServerOptions{.log = true}");
  return server.look_at(l, [](auto const& history) {
    return std::vector<ServerEvent>(history.log().begin(), history.log().end());
  });
}
[[nodiscard]] inline std::vector<std::uint64_t> missed_of(ServerInProcess& server, int worker,
                                                          std::size_t l) {
  server.require_worker(worker);
  return server.look_at(l, [worker](auto const& history) {
    auto const& missed = history.missed(worker);
    return std::vector<std::uint64_t>(missed.begin(), missed.end());
  });
}

class LinkInProcess final : public ParameterLink {
 public:
  LinkInProcess(std::shared_ptr<ServerInProcess> server, int worker)
      : server_(std::move(server)), worker_(worker) {}

  void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
            ParameterListener& listener) override {
    List<std::uint64_t> digests;
    for (LayerParameters const& layer : layers) digests.push_back(values_digest(layer.values()));
    client_ = server_->join(worker_, layers, digests, rules, listener);
    contains_.assign(layers.size() * workers(), 0);
  }
  void leave() noexcept override { server_->leave(client_); }
  [[nodiscard]] double change_factor() const override {
    return server_->layers().record().change_factor(worker_);
  }
  void begin() override { server_->begin(client_); }
  [[nodiscard]] bool begins() const noexcept override { return !server_->returns(client_); }
  std::uint32_t begin_part(std::uint32_t failures) override {
    return server_->begin(client_, failures);
  }
  void read(std::size_t layer, std::byte* values) override {
    server_->read(client_, layer, values);
  }
  void push(std::size_t layer, std::byte const* values, bool last, ByteRange part) override {
    server_->push(client_, layer, values, last, part, server_->all_finite(layer, values));
  }
  [[nodiscard]] bool has_turn(std::size_t layer) const override {
    return server_->has_turn(client_, layer);
  }
  void report(double loss) override { server_->report(client_, loss); }
  void ask_late(std::uint32_t step) override { server_->ask_late(client_, step); }
  void ask(std::size_t layer, std::uint32_t rounds, ByteRange part) override {
    server_->ask(client_, layer, {rounds, part.first != 0});
  }
  VersionTag take(std::size_t layer, std::uint32_t rounds, std::byte* values,
                  ByteRange part) override {
    std::span<std::uint32_t> const contains{contains_.data() + layer * workers(), workers()};
    server_->take(client_, layer, rounds, values, part, contains);
    return {contains, worker_};
  }
  void end(std::exception_ptr why) noexcept override { server_->end(client_, why != nullptr); }
  [[nodiscard]] int worker() const noexcept override { return worker_; }
  [[nodiscard]] std::size_t workers() const noexcept override { return server_->workers(); }
  [[nodiscard]] std::string waits_for() const override { return server_->waits_for(client_); }

 private:
  std::shared_ptr<ServerInProcess> server_;
  int worker_;
  int client_ = 0;
  List<std::uint32_t> contains_;  // [layers][workers] in the weights that were taken last
};

}  // namespace stagger::collective::detail

namespace stagger::collective {

/// Collective policy: one worker of a ParameterServer.
class ServerWorker {
 public:
  using policy_tag = CollectiveTag;
  explicit ServerWorker(std::shared_ptr<detail::ParameterLink> link) : link_(std::move(link)) {}
  [[nodiscard]] std::shared_ptr<detail::ParameterLink> link() const { return link_; }

 private:
  std::shared_ptr<detail::ParameterLink> link_;
};

/// A parameter server in this process. Its first values are those of the worker whose pipeline is
/// made first. It lives as long as its workers.
///
/// @code
///     collective::ParameterServer server({.workers = 2});
///     staleness::WaveSynchronous waves{.in_flight = 4, .distance = 0};
///     auto a = pipeline.with(schedule::Fifo{4}, waves, server.worker(0), loss, host::Threads{2});
///     auto b = pipeline.with(schedule::Fifo{4}, waves, server.worker(1), loss, host::Threads{2});
///     run_together(a.stream(batch_a), b.stream(batch_b));
/// @endcode
class ParameterServer {
 public:
  /// @throws Error  bad_configuration for options that are out of range or exclude each other
  explicit ParameterServer(ServerOptions const& options)
      : server_(std::make_shared<detail::ServerInProcess>(options)) {}

  /// @param number  0 <= number < workers
  /// @throws Error  bad_configuration for another
  [[nodiscard]] ServerWorker worker(int number) const {
    server_->require_worker(number);
    return ServerWorker(std::make_shared<detail::LinkInProcess>(server_, number));
  }
  /// What the server has done with a layer since it was made, in order: the pushes that it added, and
  /// the weights that workers took. Repeating these one after the other, from the values and states
  /// that it began with, gives the same bits.
  /// @throws Error  bad_configuration without ServerOptions::log, or if there is no such layer
  [[nodiscard]] std::vector<ServerEvent> log(std::size_t layer) const {
    return detail::log_of(*server_, layer);
  }
  /// [k] how many pushes of a worker were made from weights that lacked k pushes of others that the
  /// server had added by then; the last element also counts those that lacked more. A wave is one
  /// push; it counts with the weights of its last minibatch.
  /// @throws Error  bad_configuration for a worker or a layer that is not there
  [[nodiscard]] std::vector<std::uint64_t> missed(int worker, std::size_t layer = 0) const {
    return detail::missed_of(*server_, worker, layer);
  }
  /// For the servers that accept workers of other processes.
  [[nodiscard]] std::shared_ptr<detail::ServerInProcess> const& in_process() const {
    return server_;
  }

 private:
  std::shared_ptr<detail::ServerInProcess> server_;
};

}  // namespace stagger::collective
