// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The part of a parameter server that does not depend on where its workers are.

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

#include <stagger/collective/detail/clients.hpp>
#include <stagger/collective/detail/entrance.hpp>
#include <stagger/collective/detail/late_answers.hpp>
#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/collective/detail/server_layers.hpp>
#include <stagger/collective/server_options.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_store.hpp>

namespace stagger::collective {

using ServerEvent = stagger::detail::StoreEvent;

namespace detail {

using stagger::detail::ByteRange;
using stagger::detail::ParameterListener;

/// What a server has, and how it ends streams.
class ServerStreams {
 public:
  [[nodiscard]] Entrance& entrance() noexcept { return entrance_; }

 protected:
  ServerStreams(ServerOptions const& options, int processes)
      : options_(possible(options)), clients_(options.workers, processes), layers_(options) {}
  ~ServerStreams() = default;

  /// A client has joined; those who wait to join can do so, too. If it has left before, others who do
  /// not go on without it wait for it from now on. @pre joining_ is held
  [[gnu::cold]] void take_in(int client, std::size_t layers, WorkerRules const& rules,
                             ParameterListener& listener) {
    Client& own = clients_[client];
    own.asks.assign(layers, Ask{});
    own.processes = rules.processes;
    own.timed = rules.clock != nullptr;
    own.came = true;
    own.listener = &listener;
    entrance_.wake();
    if (!goes_on() && layers_.gone(worker_of(client))) wait_to_return(client);
  }

  [[gnu::cold]] void make_late(WorkerRules const& rules, std::span<LayerParameters const> layers) {
    if (rules.late != nullptr)
      late_ = std::make_unique<LateAnswers>(rules, layers, clients_.workers(), clients_.size());
  }
  [[nodiscard]] std::mutex& mutex(std::size_t layer) { return layers_.mutex(layer); }
  [[nodiscard]] int worker_of(int client) const noexcept { return clients_.worker_of(client); }

  /// @param worker  the failed worker, or unknown_worker
  /// @param why     told to those whose streams end; null: that another worker has failed
  /// @pre   joining_ is held
  void fail(int worker, std::exception_ptr const& why = nullptr) noexcept {
    layers_.begin_failure(worker);
    List<bool> const told = clients_.stop(worker, !goes_on());
    if (goes_on_late()) late_->lose(worker);
    std::uint32_t pushes = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::lock_guard const shard(mutex(l));
      if (worker != unknown_worker) pushes = std::max(pushes, pushes_made(layers_[l], worker));
      layers_.fail(l, worker);
      if (goes_on()) answer(l);
    }
    if (late_ != nullptr) goes_on() ? late_->start_over_if_deserted() : late_->reset();
    admit();
    std::exception_ptr const lost = why ? why : failure_of(worker, pushes);
    for (int n = 0; n < clients_.size(); ++n) {
      if (!goes_on() || worker_of(n) == worker) clients_[n].undone = why;
      if (told[n]) clients_[n].listener->lost(lost);
    }
    end_undone();
  }
  /// Ends the streams of those whose pushes were in a step that was undone. @pre joining_ is held
  void end_undone() noexcept {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::unique_lock shard(mutex(l));
      auto& workers = layers_[l].workers();
      if (!workers.undone()) continue;
      int const worker = workers.take_undone();
      while (!goes_on() && workers.take_undone() >= 0) continue;
      if (worker < 0) answer(l);
      shard.unlock();
      // Of the others, rounds may be complete now, in any layer, and be undone too.
      if (worker >= 0) return fail(goes_on() ? worker : unknown_worker, overflow_of(l));
    }
  }

  [[nodiscard]] bool goes_on() const noexcept { return options_.on_failure == OnFailure::go_on; }
  [[nodiscard]] bool goes_on_late() const noexcept { return goes_on() && late_ != nullptr; }
  /// Called at the end of each call that may end a step or a stream, so that its caller cannot
  /// begin the next one before workers that wait to come back have been let in, nor if the step was
  /// undone.
  void admit_returning() {
    if (!returning_.load() && !undone_.load()) return;
    std::lock_guard const lock(joining_);
    if (undone_.exchange(false)) end_undone();
    admit();
  }
  /// Lets those who wait for that come back, unless the others are ending a stream or, if layers
  /// may be late, amid a step. @pre joining_ is held
  void admit() {
    if (!returning_.exchange(false)) return;
    for (int n = 0; n < clients_.size(); ++n) {
      Client& own = clients_[n];
      if (!own.returns.load()) continue;
      bool const begins = own.active.load();
      if (!layers_.come_back(worker_of(n), begins ? clients_.process_of(n) : -1, late_.get())) {
        returning_.store(true);
        continue;
      }
      own.returns.store(false);
      own.listener->begins();
    }
  }
  /// The worker of a client has left before, and waits until it can come back. @pre likewise
  void wait_to_return(int client) {
    clients_[client].returns.store(true);
    returning_.store(true);
    admit();
  }
  /// The layers have been read from a folder: their workers are expected to join again. @pre
  /// joining_ is held
  [[gnu::cold]] void expect_all() {
    layers_.notify(late_.get());
    bool any = false;
    for (int n = 0; n < options_.workers; ++n) {
      clients_[n].awaited.store(layers_.takes_part(n));
      any = any || layers_.in_stream(n);
    }
    if (late_ != nullptr && any) fail(unknown_worker);  // see ServerInProcess::lose
    end_undone();  // the server was killed before it had ended these streams
  }
  /// The worker has left: nobody waits for it until it joins again. @pre likewise
  void depart(int worker) noexcept {
    if (late_ != nullptr) late_->lose(worker);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::lock_guard const shard(mutex(l));
      layers_[l].leave(worker);
      keep_and_answer(l);
    }
    end_undone();
    if (late_ != nullptr) late_->start_over_if_deserted();
    admit();
  }
  /// A worker that has left may join again. Parts of a server hear of that at different times, and
  /// must let it into the same stream.
  /// @throws Error  bad_configuration. @pre likewise
  [[gnu::cold]] void require_welcome(int worker, WorkerRules const& rules) {
    if (rules.in_parts && clients_.any_active() && layers_.gone(worker))
      raise(Errc::bad_configuration, "worker ", worker,
            " joins again while others are in their steps or streams; over processes let it join "
            "when these have ended");
  }

  /// A process of a worker that runs none of the layers here begins its stream when it speaks of
  /// late layers.
  void begin_without_layers(int client) {
    Client& own = clients_[client];
    if (!own.begins) return;
    std::lock_guard const lock(joining_);
    own.begins = false;
    own.active.store(!clients_.lost_before(client, layers_.failures(worker_of(client))));
  }

  /// In layers that the process has run, the last push was not marked as the last. @pre likewise
  void go_on_without(int client) {
    int const worker = worker_of(client);
    clients_[client].returns.store(false);
    if (late_ != nullptr) late_->leave(client);
    if (late_ != nullptr && !clients_.active(worker)) late_->lose(worker);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      std::lock_guard const lock(mutex(l));
      ParameterStore& layer = layers_[l];
      bool const runs = layer.workers()[worker].process == clients_.process_of(client);
      if (!runs || layer.ended(worker) || !layer.in_stream(worker)) continue;
      layer.end(worker);
      keep_and_answer(l);
    }
    end_undone();
    admit();
  }

  /// As ServerInProcess::end. @pre likewise
  void end_stream(int client, bool failed) noexcept {
    Client& own = clients_[client];
    own.begins = false;
    bool const awaited = failed && own.awaited.load() && layers_.in_stream(worker_of(client));
    if (!own.active.exchange(false) && !awaited) return;
    failed || goes_on_late() ? fail(worker_of(client)) : go_on_without(client);
  }

  /// Drops the client's requests; when this returns, its listener is not called for them any more.
  void forget_asks(int client) {
    for (std::size_t l = 0; l < clients_[client].asks.size(); ++l) {
      std::lock_guard const lock(mutex(l));
      clients_[client].asks[l] = {};
    }
  }

  /// As ServerInProcess::waits_for. @param asks_all  whether the client waits in all layers
  [[nodiscard]] [[gnu::cold]] std::string words_for_slowest(int client, bool asks_all) {
    List<Ask> all;
    if (asks_all) all.assign(layers_.size(), Ask{Ask::everything});
    Awaited const slowest =
        slowest_but(layers_, worker_of(client), asks_all ? all : clients_[client].asks);
    if (slowest.worker < 0) return {};
    std::lock_guard const lock(joining_);
    return clients_.words_for(slowest.worker, slowest.process, slowest.made);
  }

  void keep_and_answer(std::size_t l) noexcept {
    layers_.try_to_keep(l);
    answer(l);
  }
  void answer(std::size_t l) {
    if (layers_[l].workers().undone()) undone_.store(true);
    clients_.answer(l, layers_[l]);
  }

  ServerOptions options_;
  Clients clients_;
  Entrance entrance_;
  std::mutex joining_;
  std::unique_ptr<LateAnswers> late_;   // null: the model has no late layers
  std::atomic<bool> returning_{false};  // whether a worker waits to come back
  std::atomic<bool> undone_{false};     // whether a step was undone and nobody told
  ServerLayers layers_;
};

/// All layers, a lock for each shard, and the workers.
///
/// A worker that runs in several processes joins from each of them. Each process is a client, which
/// asks for the layers that it runs; pushes are counted by worker.
class ServerInProcess : private ServerStreams {
 public:
  /// @param processes  most processes in which a worker may run
  explicit ServerInProcess(ServerOptions const& options, int processes = 1)
      : ServerStreams(options, processes) {}

  /// @param digests  [layers] of the first values, which `layers` has only if they are wanted
  /// @return  the number of the client, which it passes to all further calls
  [[gnu::cold]] int join(int worker, std::span<LayerParameters const> layers,
                         List<std::uint64_t> const& digests, WorkerRules const& rules,
                         ParameterListener& listener) {
    std::lock_guard const lock(joining_);
    int const client = clients_.number_for(worker, rules);
    require_welcome(worker, rules);
    if (layers_.size() == 0) {
      require_possible(options_, rules);
      make_late(rules, layers);
      layers_.take_over(layers, rules, late_.get());
    } else if (layers_.compare(worker, layers, digests, rules)) {
      make_late(rules, layers);
      expect_all();
    }
    if (!layers_.in_stream(worker)) clients_[client].awaited.store(false);
    layers_.reserve(rules.ahead);
    take_in(client, layers.size(), rules, listener);
    return client;
  }
  /// Where workers of other processes wait until they can join.
  using ServerStreams::entrance;
  /// Whether no worker has joined yet, so that first values are wanted.
  [[nodiscard]] bool wants_values() {
    std::lock_guard const lock(joining_);
    return layers_.size() == 0;
  }
  void leave(int client) noexcept {
    std::lock_guard const lock(joining_);  // another worker may join once the failure is told
    clients_[client].returns.store(false);
    end_stream(client, true);
    forget_asks(client);
    clients_[client].listener = nullptr;
    if (clients_.present(worker_of(client)) == 0) depart(worker_of(client));
  }
  /// Whether streams go on over another connection. They do not where layers may be late: which are
  /// late in a step is not kept in the folder.
  [[nodiscard]] bool resumes() const noexcept { return layers_.durable() && late_ == nullptr; }
  /// The server stops. Its folder has the worker as one that joins again; without a folder it has
  /// left. If streams go on over another connection, its own does then.
  void lose(int client) noexcept {
    if (!layers_.durable()) return leave(client);
    std::lock_guard const lock(joining_);
    clients_[client].returns.store(false);
    if (!resumes()) end_stream(client, true);
    forget_asks(client);
    clients_[client].awaited.store(clients_[client].active.exchange(false));
    clients_[client].listener = nullptr;
  }
  [[nodiscard]] bool awaits_any() const noexcept { return clients_.any_awaited(); }
  void give_up_awaited() noexcept {
    std::lock_guard const lock(joining_);
    for (int n = 0; n < clients_.size(); ++n) {
      if (!clients_[n].awaited.exchange(false)) continue;
      if (layers_.in_stream(worker_of(n))) fail(worker_of(n));
      if (clients_.present(worker_of(n)) == 0) depart(worker_of(n));
    }
  }
  [[nodiscard]] Clients::Attendance attendance() {
    std::lock_guard const lock(joining_);
    return clients_.attendance();
  }

  /// @param failures  after which the worker's stream has begun with other parts of the server, or
  ///                  any_failures. Those that this part has not heard of happen now, so that it
  ///                  counts each of them once, when the first who knows of it tells. If it has
  ///                  heard of more, the stream is lost at once.
  /// @return  how many streams of the worker have ended by a failure, for `resume`
  std::uint32_t begin(int client, std::uint32_t failures = stagger::detail::any_failures) {
    std::lock_guard const lock(joining_);  // not while streams are being ended
    Client& own = clients_[client];
    int const worker = worker_of(client);
    // One that has not pushed may begin again because it was not answered.
    bool const awaited = own.awaited.exchange(false) && layers_.in_stream(worker, true);
    if (own.active.exchange(false) || awaited) fail(worker);
    forget_asks(client);  // of a stream that failed
    failures = possible_failures(worker, failures, layers_.failures(worker));
    while (layers_.failures(worker) < failures)
      fail(goes_on() ? worker : unknown_worker);  // the first counts its own alone
    own.failures = failures;
    if (clients_.lost_before(client, layers_.failures(worker))) return failures;
    // Processes of one worker may be in different streams: each begins when it reads a layer here.
    own.begins = own.processes != 1;
    // With late layers also one that has ended its stream, since choices are made without it.
    bool const returns = layers_.gone(worker) || (late_ != nullptr && !late_->has(worker));
    if (!own.begins && !returns) layers_.enter(worker, clients_.process_of(client));
    if (late_ != nullptr && !goes_on() && !clients_.any_active()) late_->reset();
    own.active.store(!own.begins);
    if (returns)
      wait_to_return(client);
    else
      admit();  // whom this worker must wait for in its stream
    clients_.require_timely(client, goes_on(), late_ != nullptr);
    return failures;
  }
  /// Whether the stream that the worker has begun waits until the worker can come back. Its
  /// listener is told then; before that it reads no weights.
  [[nodiscard]] bool returns(int client) const noexcept {
    return clients_[client].active.load() && clients_[client].returns.load();
  }
  /// The worker wants to go on with its stream, or to end it, over another connection.
  /// @param failures  as `begin` returned. @return null, or why that is not possible
  [[nodiscard]] std::exception_ptr resume(int client, std::uint32_t failures) {
    std::lock_guard const lock(joining_);
    if (failures != layers_.failures(worker_of(client))) return clients_.why_ended(client);
    forget_asks(client);
    clients_[client].awaited.store(false);
    clients_[client].active.store(true);
    return nullptr;
  }
  [[nodiscard]] ServerLayers const& layers() const noexcept { return layers_; }
  [[nodiscard]] std::size_t workers() const noexcept { return clients_.workers(); }
  /// Pushes of a layer that the worker has made since the server began, or is taken to have made.
  [[nodiscard]] std::uint32_t pushes(int client, std::size_t l) {
    std::lock_guard const lock(mutex(l));
    return layers_[l].pushes(worker_of(client));
  }

  void read(int client, std::size_t l, std::byte* values) {
    Client& own = clients_[client];
    auto const begins = own.begins ? std::unique_lock(joining_) : std::unique_lock<std::mutex>();
    if (own.begins) own.begins = !clients_.lost_before(client, layers_.failures(worker_of(client)));
    std::lock_guard const lock(mutex(l));
    layers_.require_kept();
    ParameterStore& layer = layers_[l];
    bool const in_stream = own.begins || own.active.load();
    if (in_stream && !own.returns.load())
      layers_.enter(l, worker_of(client), clients_.process_of(client));
    if (std::exchange(own.begins, false)) own.active.store(true);
    std::byte const* const from = layer.begin(worker_of(client));
    if (in_stream) layers_.keep(l);
    if (layer.bytes() != 0) std::memcpy(values, from, layer.bytes());
  }

  /// Whether values of a push are all finite. If layers may be late, workers look before they push,
  /// whatever their options say, and step() undoes what is not finite all the same.
  /// @param values  [bytes of the layer]
  [[nodiscard]] bool all_finite(std::size_t l, std::byte const* values, ByteRange part = {}) {
    return late_ != nullptr || layers_[l].shape().all_finite(values, part);
  }
  /// @param finite  whether all values are finite
  /// @throws Error  bad_data if they are not, and nothing is added. Likewise as push_to
  void push(int client, std::size_t l, std::byte const* values, bool last, ByteRange part,
            bool finite) {
    int const worker = worker_of(client);
    if (!finite)
      raise(Errc::bad_data, "push ", pushes(client, l) + 1, " of worker ", worker,
            " has a number in layer ", l,
            " that is not finite; that layer's push was not added, and those of other layers "
            "before it stay: lower the rate, or look for what divides by 0");
    {
      std::lock_guard const lock(mutex(l));
      clients_.require_active(client);
      push_to(layers_[l], worker, l, values, part);
      if (last) layers_[l].end(worker);
      layers_.keep(l);
      answer(l);
    }
    admit_returning();
  }
  [[nodiscard]] bool has_turn(int client, std::size_t l) {
    std::lock_guard const lock(mutex(l));
    return layers_.has_turn(l, worker_of(client));
  }
  void report(int client, double loss) {
    begin_without_layers(client);
    late_->add_loss(worker_of(client), loss, clients_[client].active);
    admit_returning();
  }
  void ask_late(int client, std::uint32_t step) {
    begin_without_layers(client);
    if (!clients_[client].returns.load()) clients_.require_active(client);
    late_->ask(client, step, *clients_[client].listener, clients_[client].active);
  }

  void ask(int client, std::size_t l, Ask const& what) {
    std::lock_guard const lock(mutex(l));
    clients_.require_active(client);
    clients_[client].ask(l, what);
    answer(l);
  }

  /// Copies weights to the worker.
  /// @param rounds    that they contain of its stream, or Ask::everything
  /// @param contains  [workers] is set to what they contain, as VersionTag; or empty
  /// @throws Error    bad_data for weights that the server does not keep
  void take(int client, std::size_t l, std::uint32_t rounds, std::byte* values, ByteRange part = {},
            std::span<std::uint32_t> contains = {}) {
    std::unique_lock lock(mutex(l));
    clients_.require_active(client);
    layers_.require_kept();
    ParameterStore& layer = layers_[l];
    int const worker = worker_of(client);
    bool const late = part.first != 0;
    std::uint32_t const pushes = layer.start(worker) + (rounds == Ask::everything ? 0 : rounds);
    bool const exact = layers_.adds() == staleness::Adds::in_worker_order;
    if (exact && !(rounds == 0 ? layer.keeps(pushes) : layer.ready(worker, pushes, late)))
      raise(Errc::bad_data, "worker ", worker, " takes weights with ", counted(rounds, "round"),
            ", which the server does not keep; let it take what it has asked for, in order");
    std::byte const* const from = layer.weights(worker, pushes, late) + part.first;
    if (!contains.empty()) layer.workers().contained(worker, pushes, layers_.adds(), contains);
    if (exact) lock.unlock();  // snapshots are constant
    std::size_t const last = std::min(part.last, layer.bytes());
    if (last != 0) std::memcpy(values + part.first, from, last - part.first);
  }

  /// Ends a stream of a client, which then gets no further notifications of it.
  void end(int client, bool failed) noexcept {
    std::lock_guard const lock(joining_);
    end_stream(client, failed);
  }

  /// The slowest worker in the layers that this client has asked for, as text; empty if it waits
  /// for no other worker.
  [[nodiscard]] std::string waits_for(int client) {
    bool asks_all = clients_[client].returns.load();
    for (std::size_t l = 0; !asks_all && l < layers_.size(); ++l) asks_all = !has_turn(client, l);
    return words_for_slowest(client, asks_all);
  }

  void require_active(int client) const { clients_.require_active(client); }
  void require_worker(int number, int process = 0) const {
    clients_.require_worker(number, process);
  }
  /// @throws Error  mismatch for a worker of another run
  void require_run(int worker, std::string const& name) const {
    require_same_run(worker, name, options_.run);
  }
  /// @return  the result of `read` for the history of a layer
  template <class Read> [[nodiscard]] auto look_at(std::size_t l, Read read) {
    std::lock_guard const lock(joining_);
    if (l >= layers_.size())
      raise(Errc::bad_configuration, "the server has ", counted(layers_.size(), "layer"),
            ", but none with the number ", l, "; layers count from 0");
    std::lock_guard const shard(mutex(l));
    return read(layers_[l].history());
  }
};

}  // namespace detail
}  // namespace stagger::collective
