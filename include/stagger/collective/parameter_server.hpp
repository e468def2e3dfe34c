// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server in this process: pipelines that each train on data of their own, one
///         model.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/clients.hpp>
#include <stagger/collective/late_answers.hpp>
#include <stagger/collective/policy.hpp>
#include <stagger/collective/same_workers.hpp>
#include <stagger/collective/server_layers.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_store.hpp>

namespace stagger::collective {

/// What a server does when a worker fails or goes, amid a stream or between steps.
enum class OnFailure : std::uint8_t {
  fail_fast,  ///< the streams of all others end too
  go_on,      ///< the others go on without it; what it has pushed stays, and it may come back
};

/// What a server is made for.
struct ServerOptions {
  int workers = 1;  ///< >= 1, each a pipeline
  int shards = 1;   ///< >= 1; layers are dealt out to them, and each has a lock of its own
  /// [workers] by which the server multiplies each one's gradients, or what its own steps have
  /// changed: its share of the data. Empty: 1 / workers each. With 1 for each, every push is a full
  /// step.
  std::vector<double> weights{};
  /// Whether it remembers what it does with each layer in which order, for ParameterServer::log. The
  /// memory for that grows with each push.
  bool log = false;
  OnFailure on_failure = OnFailure::fail_fast;
};
using ServerEvent = stagger::detail::StoreEvent;

namespace detail {

using stagger::detail::ByteRange;
using stagger::detail::ParameterLink;
using stagger::detail::ParameterListener;
using stagger::detail::ParameterStore;
using stagger::detail::VersionTag;

/// @throws Error  bad_configuration for options that cannot be
[[nodiscard]] [[gnu::cold]] inline ServerOptions const& possible(ServerOptions const& options) {
  if (options.workers < 1 || options.shards < 1)
    raise(Errc::bad_configuration, "a parameter server of ", options.workers, " workers and ",
          options.shards, " shards cannot be made; use at least 1 of each");
  auto const count = static_cast<std::size_t>(options.workers);
  if (!options.weights.empty() && options.weights.size() != count)
    raise(Errc::bad_configuration, options.weights.size(), " weights were given for ",
          counted(options.workers, "worker"), "; give one for each, or none");
  for (double const weight : options.weights)
    if (!(weight > 0 && weight <= 1))
      raise(Errc::bad_configuration, "gradients of a worker cannot be weighted by ", weight,
            "; use its share of the data, more than 0 and at most 1");
  return options;
}
[[nodiscard]] [[gnu::cold]] inline List<double> weights_of(ServerOptions const& options) {
  List<double> weights;
  weights.assign(options.weights.data(), options.weights.size());
  if (weights.empty())
    weights.assign(static_cast<std::size_t>(options.workers), 1.0 / options.workers);
  return weights;
}

inline void require_kept(int worker, std::uint32_t rounds, staleness::Adds adds, bool ready) {
  if (adds == staleness::Adds::in_worker_order && !ready)
    raise(Errc::bad_data, "worker ", worker, " takes weights with ", counted(rounds, "round"),
          ", which the server does not keep; let it take what it has asked for, in order");
}

/// @throws Error  likewise, for a model that does not go with them
[[gnu::cold]] inline void require_possible(ServerOptions const& options, WorkerRules const& rules) {
  if (rules.late != nullptr && options.on_failure == OnFailure::go_on)
    raise(Errc::bad_configuration,
          "layers that are late need what every worker pushes, so the others cannot go on without "
          "one that fails; use OnFailure::fail_fast, or a model without late layers");
}

[[gnu::cold]] inline void require_going_on(int worker, bool ended) {
  if (ended)
    raise(Errc::bad_configuration, "worker ", worker,
          " has ended its steps, and others go on with theirs; let it begin again when all have "
          "ended");
}

[[noreturn]] [[gnu::cold]] inline void refuse_not_finite(int worker, std::uint32_t push,
                                                         std::size_t layer) {
  raise(Errc::bad_data, "push ", push, " of worker ", worker, " has a number in layer ", layer,
        " that is not finite; it was not added: lower the rate, or look for what divides by 0");
}

/// For the other workers. @param pushes  that it had made
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr failure_of(int worker,
                                                                 std::uint32_t pushes) noexcept {
  try {
    return std::make_exception_ptr(Error(
        Errc::peer_failed, text("worker ", worker, " has failed after ", pushes,
                                " pushes, which ends the streams of the others; begin the next "
                                "one, which goes on from the server's weights")));
  } catch (...) {
    return std::current_exception();
  }
}

/// All layers, a lock for each shard, and the workers.
///
/// A worker that runs in several processes joins from each. Each is a client of its own, which asks
/// for the layers that it runs; what a layer contains is counted by worker.
class ServerInProcess {
 public:
  /// @param processes  in which a worker may run, at most
  explicit ServerInProcess(ServerOptions const& options, int processes = 1)
      : options_(possible(options)),
        clients_(options.workers, processes),
        layers_(options.shards, weights_of(options), options.log) {}

  /// @param digests  [layers] of the first values, which `layers` may lack unless they are wanted
  /// @return  the number of the client, by which all further calls name who makes them
  [[gnu::cold]] int join(int worker, std::span<LayerParameters const> layers,
                         List<std::uint64_t> const& digests, WorkerRules const& rules,
                         ParameterListener& listener) {
    std::lock_guard const lock(joining_);
    require_worker(worker);
    int const client = clients_.number_for(worker, rules);
    if (layers_.size() == 0) {
      require_possible(options_, rules);
      if (rules.late != nullptr)
        late_ = std::make_unique<LateAnswers>(rules, layers, clients_.workers(), clients_.size());
      layers_.take_over(layers, rules, late_.get());
    } else {
      layers_.compare(worker, layers, digests, rules);
    }
    layers_.reserve(rules.ahead);
    clients_[client].asks.assign(layers.size(), Ask{});
    clients_[client].processes = rules.processes;
    clients_[client].came = true;
    clients_[client].listener = &listener;
    return client;
  }
  /// Whether nobody has joined yet, so that the first values are wanted.
  [[nodiscard]] bool wants_values() {
    std::lock_guard const lock(joining_);
    return layers_.size() == 0;
  }
  void leave(int client) noexcept {
    end(client, true);
    forget_asks(client);
    std::lock_guard const lock(joining_);
    clients_[client].listener = nullptr;
    if (options_.on_failure != OnFailure::go_on || clients_.present(worker_of(client)) != 0) return;
    for (std::size_t l = 0; l < layers_.size(); ++l) {  // nor does anybody wait for its next stream
      std::lock_guard const shard(mutex(l));
      layers_[l].leave(worker_of(client));
      answer(l);
    }
  }
  [[nodiscard]] Clients::Attendance attendance() {
    std::lock_guard const lock(joining_);
    return clients_.attendance();
  }

  void begin(int client) {
    if (clients_[client].active.load()) end(client, true);
    std::lock_guard const lock(joining_);  // not while streams are being given up
    forget_asks(client);                   // of a stream that failed
    // Another process of the worker may have begun this stream, and have come to its end already.
    int const worker = worker_of(client);
    bool const first = !clients_.any_active(worker);
    for (std::size_t l = 0; l < layers_.size() && first; ++l) {
      std::lock_guard const shard(mutex(l));
      require_going_on(worker, layers_[l].waits_for_others(worker));
    }
    bool gone = false;
    for (std::size_t l = 0; l < layers_.size() && first; ++l) {
      std::lock_guard const shard(mutex(l));
      gone = layers_[l].enter(worker);
    }
    if (gone) layers_.come_back(worker);
    if (late_ != nullptr && !clients_.any_active()) late_->reset();
    clients_[client].active.store(true);
  }
  /// Pushes of a layer that the worker has made since the server began, or is taken to have made.
  [[nodiscard]] std::uint32_t pushes(int client, std::size_t l) {
    std::lock_guard const lock(mutex(l));
    return layers_[l].pushes(worker_of(client));
  }

  void read(int client, std::size_t l, std::byte* values) {
    std::lock_guard const lock(mutex(l));
    ParameterStore& layer = layers_[l];
    std::byte const* const from = layer.begin(worker_of(client));
    if (layer.bytes() != 0) std::memcpy(values, from, layer.bytes());
  }

  /// @throws Error  bad_data for values that are not all finite, of which nothing is added. Where
  ///                layers may be late, workers have looked themselves
  void push(int client, std::size_t l, std::byte const* values, bool last, ByteRange part = {}) {
    if (late_ == nullptr && !layers_[l].shape().all_finite(values))
      refuse_not_finite(worker_of(client), pushes(client, l) + 1, l);
    std::lock_guard const lock(mutex(l));
    clients_.require_active(client);
    layers_[l].push(worker_of(client), values, part);
    if (last) layers_[l].end(worker_of(client));
    answer(l);
  }
  void report(int client, double loss) {
    late_->add_loss(worker_of(client), loss, clients_[client].active);
  }
  void ask_late(int client, std::uint32_t step) {
    clients_.require_active(client);
    late_->ask(client, step, *clients_[client].listener, clients_[client].active);
  }

  void ask(int client, std::size_t l, Ask const& what) {
    std::lock_guard const lock(mutex(l));
    clients_.require_active(client);
    clients_[client].asks[l] = what;
    answer(l);
  }

  VersionTag take(int client, std::size_t l, std::uint32_t rounds, std::byte* values,
                  ByteRange part = {}) {
    ParameterStore& layer = layers_[l];
    std::unique_lock lock(mutex(l));
    clients_.require_active(client);
    int const worker = worker_of(client);
    std::uint32_t const start = layer.start(worker);
    std::uint32_t const pushes = start + (rounds == Ask::everything ? 0 : rounds);
    require_kept(worker, rounds, layers_.adds(),
                 rounds == 0 ? layer.keeps(pushes) : layer.ready(worker, pushes, part.first != 0));
    std::byte const* const from = layer.weights(worker, pushes, part.first != 0) + part.first;
    VersionTag const tag = layer.contained(worker, pushes);
    if (layers_.adds() == staleness::Adds::in_worker_order) lock.unlock();  // it stays as it is
    std::size_t const last = std::min(part.last, layer.bytes());
    if (last != 0) std::memcpy(values + part.first, from, last - part.first);
    return tag;
  }

  void end(int client, bool failed) noexcept {
    if (!clients_[client].active.exchange(false)) return;
    if (!failed) return go_on_without(client);
    std::lock_guard const lock(joining_);
    bool const goes_on = options_.on_failure == OnFailure::go_on;
    List<bool> told(static_cast<std::size_t>(clients_.size()));
    for (int n = 0; n < clients_.size(); ++n)
      told[n] =
          (!goes_on || worker_of(n) == worker_of(client)) && clients_[n].active.exchange(false);
    std::uint32_t pushes = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::lock_guard const shard(mutex(l));
      pushes = std::max(pushes, layers_[l].pushes(worker_of(client)));
      goes_on ? layers_[l].leave(worker_of(client)) : layers_[l].give_up();
      if (goes_on) answer(l);
    }
    if (late_ != nullptr) late_->reset();
    std::exception_ptr const lost = failure_of(worker_of(client), pushes);
    for (int n = 0; n < clients_.size(); ++n)
      if (told[n]) clients_[n].listener->lost(lost);
  }

  /// The slowest worker, of the layers that this one has asked for; empty if it waits for nobody.
  [[nodiscard]] std::string waits_for(int client) {
    int slowest = -1;
    std::uint32_t least = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::lock_guard const lock(mutex(l));
      for (int n = 0; n < options_.workers && clients_[client].asks[l].rounds != Ask::nothing;
           ++n) {
        if (n == worker_of(client) || layers_[l].ended(n)) continue;
        if (slowest >= 0 && layers_[l].pushes(n) >= least) continue;
        slowest = n;
        least = layers_[l].pushes(n);
      }
    }
    if (slowest < 0) return {};
    return text("worker ", slowest, ", which has made ", least, " pushes");
  }

  /// @throws Error  peer_failed where its stream has ended, by another's failure for instance
  void require_active(int client) const { clients_.require_active(client); }
  void require_worker(int number) const { clients_.require_worker(number); }

  /// @return  what `read` makes of the history of a layer
  template <class Read> [[nodiscard]] auto look_at(std::size_t l, Read read) {
    std::lock_guard const joining(joining_);
    if (l >= layers_.size())
      raise(Errc::bad_configuration, "the server has ", counted(layers_.size(), "layer"),
            ", but none with the number ", l);
    std::lock_guard const lock(mutex(l));
    return read(layers_[l].history());
  }
  /// As ParameterServer::log and missed.
  [[nodiscard]] std::vector<ServerEvent> log(std::size_t l) {
    if (!options_.log)
      raise(Errc::bad_configuration,
            "this server remembers nothing; make it with ServerOptions{.log = true}");
    return look_at(l, [](auto const& history) {
      return std::vector<ServerEvent>(history.log().begin(), history.log().end());
    });
  }
  [[nodiscard]] std::vector<std::uint64_t> missed(int worker, std::size_t l) {
    require_worker(worker);
    return look_at(l, [worker](auto const& history) {
      auto const& missed = history.missed(worker);
      return std::vector<std::uint64_t>(missed.begin(), missed.end());
    });
  }

 private:
  [[nodiscard]] std::mutex& mutex(std::size_t layer) { return layers_.mutex(layer); }
  [[nodiscard]] int worker_of(int client) const noexcept { return clients_.worker_of(client); }

  /// Of a worker that takes no further step: what it pushed last was not known to be the last.
  void go_on_without(int client) {
    bool const other = clients_.any_active(worker_of(client));  // process of it, which goes on
    if (late_ != nullptr) late_->leave(worker_of(client), client);
    for (std::size_t l = 0; l < layers_.size() && !other; ++l) {
      std::lock_guard const lock(mutex(l));
      ParameterStore& layer = layers_[l];
      if (layer.ended(worker_of(client)) || !layer.in_stream(worker_of(client))) continue;
      layer.end(worker_of(client));
      answer(l);
    }
  }

  /// Nobody calls its listener about them any more when this returns.
  void forget_asks(int client) {
    for (std::size_t l = 0; l < clients_[client].asks.size(); ++l) {
      std::lock_guard const lock(mutex(l));
      clients_[client].asks[l] = {};
    }
  }

  /// Tells workers of what they have asked for.
  void answer(std::size_t l) {
    ParameterStore const& layer = layers_[l];
    for (int n = 0; n < clients_.size(); ++n) {
      Client& each = clients_[n];
      if (!each.active.load() || each.asks[l].rounds == Ask::nothing) continue;
      auto const [asked, urgent] = each.asks[l];
      if (asked == Ask::everything
              ? layer.in_stream(worker_of(n))
              : !layer.ready(worker_of(n), layer.start(worker_of(n)) + asked, urgent))
        continue;
      each.asks[l] = {};
      asked == Ask::everything ? each.listener->arrived_last(l) : each.listener->arrived(l, asked);
    }
  }

  ServerOptions options_;
  Clients clients_;
  std::mutex joining_;
  std::unique_ptr<LateAnswers> late_;  // null: no layer is ever late
  ServerLayers layers_;
};

class LinkInProcess final : public ParameterLink {
 public:
  LinkInProcess(std::shared_ptr<ServerInProcess> server, int worker)
      : server_(std::move(server)), worker_(worker) {}

  void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
            ParameterListener& listener) override {
    List<std::uint64_t> digests;
    for (LayerParameters const& layer : layers) digests.push_back(values_digest(layer.values()));
    client_ = server_->join(worker_, layers, digests, rules, listener);
  }
  void leave() noexcept override { server_->leave(client_); }
  void begin() override { server_->begin(client_); }
  void read(std::size_t layer, std::byte* values) override {
    server_->read(client_, layer, values);
  }
  void push(std::size_t layer, std::byte const* values, bool last) override {
    server_->push(client_, layer, values, last);
  }
  void push_part(std::size_t layer, std::byte const* values, ByteRange part) override {
    server_->push(client_, layer, values, false, part);
  }
  void ask_part(std::size_t layer, std::uint32_t rounds, ByteRange part) override {
    server_->ask(client_, layer, {rounds, part.first != 0});
  }
  void take_part(std::size_t layer, std::uint32_t rounds, std::byte* values,
                 ByteRange part) override {
    server_->take(client_, layer, rounds, values, part);
  }
  void report(double loss) override { server_->report(client_, loss); }
  void ask_late(std::uint32_t step) override { server_->ask_late(client_, step); }
  void ask(std::size_t layer, std::uint32_t rounds) override {
    server_->ask(client_, layer, {rounds});
  }
  void ask_last(std::size_t layer) override { server_->ask(client_, layer, {Ask::everything}); }
  VersionTag take(std::size_t layer, std::uint32_t rounds, std::byte* values) override {
    return server_->take(client_, layer, rounds, values);
  }
  void take_last(std::size_t layer, std::byte* values) override {
    server_->take(client_, layer, Ask::everything, values);
  }
  void end(std::exception_ptr why) noexcept override { server_->end(client_, why != nullptr); }
  [[nodiscard]] std::string waits_for() const override { return server_->waits_for(client_); }

 private:
  std::shared_ptr<ServerInProcess> server_;
  int worker_;
  int client_ = 0;
};

}  // namespace detail

/// Collective policy: one worker of a ParameterServer.
class ServerWorker {
 public:
  using policy_tag = CollectiveTag;
  explicit ServerWorker(std::shared_ptr<detail::ParameterLink> link) : link_(std::move(link)) {}
  [[nodiscard]] std::shared_ptr<detail::ParameterLink> link() const { return link_; }

 private:
  std::shared_ptr<detail::ParameterLink> link_;
};

/// A server in this process. Its values are those of the worker whose pipeline is made first; it
/// lives as long as its workers.
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
  /// @throws Error  bad_configuration for counts below 1
  explicit ParameterServer(ServerOptions const& options)
      : server_(std::make_shared<detail::ServerInProcess>(options)) {}

  /// @param number  0 <= number < workers
  /// @throws Error  bad_configuration for another
  [[nodiscard]] ServerWorker worker(int number) const {
    server_->require_worker(number);
    return ServerWorker(std::make_shared<detail::LinkInProcess>(server_, number));
  }
  /// What it has done with a layer, in order: the pushes that it added, and the weights that workers
  /// took. Carried out again one after the other, these give the same bits.
  /// @throws Error  bad_configuration where it was not to remember them, or there is no such layer
  [[nodiscard]] std::vector<ServerEvent> log(std::size_t layer) const {
    return server_->log(layer);
  }
  /// [k] how many pushes of a worker were made from weights that lacked k pushes of others, which
  /// the server had added by then; the last counts those that lacked more. A wave is one push; it
  /// counts with the weights of its last minibatch.
  /// @throws Error  bad_configuration for a worker or a layer that is not there
  [[nodiscard]] std::vector<std::uint64_t> missed(int worker, std::size_t layer = 0) const {
    return server_->missed(worker, layer);
  }
  /// For a server that lets workers of other processes in.
  [[nodiscard]] std::shared_ptr<detail::ServerInProcess> const& home() const { return server_; }

 private:
  std::shared_ptr<detail::ServerInProcess> server_;
};

}  // namespace stagger::collective
