// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The layers that a parameter server keeps, and the rules on which its workers have
///         agreed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/detail/clients.hpp>
#include <stagger/collective/detail/durable_folder.hpp>
#include <stagger/collective/detail/late_answers.hpp>
#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/collective/server_options.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_store.hpp>

namespace stagger::collective::detail {

using stagger::detail::LayerParameters;
using stagger::detail::ParameterStore;

/// Adds a push to a layer, or keeps it.
/// @param l       the number of the layer
/// @throws Error  bad_data for one further ahead of other workers than the staleness model allows,
///                or for a part that does not fit the other parts of its round
inline void push_to(ParameterStore& layer, int worker, std::size_t l, std::byte const* values,
                    stagger::detail::ByteRange part) {
  if (!layer.workers()[worker].may_push())
    raise(Errc::bad_data, "worker ", worker, " makes push ", layer.pushes(worker) + 1, " of layer ",
          l,
          " without waiting for the other workers as its staleness model does; run the same "
          "version of the program at both ends");
  if (!layer.workers().fit(worker, part, layer.bytes()))
    raise(Errc::bad_data, "worker ", worker, " divides push ", layer.pushes(worker) + 1,
          " of layer ", l, " at byte ", part.first != 0 ? part.first : part.last,
          ", which does not fit what it or another worker has pushed of this round; let both ends "
          "run the same version of the program at both ends");
  layer.push(worker, values, part);
}

/// How many pushes of a layer a worker has made, added or not.
[[nodiscard]] inline std::uint32_t pushes_made(ParameterStore const& layer, int worker) {
  return layer.history().added(worker) +
         static_cast<std::uint32_t>(layer.workers()[worker].waiting.size());
}

/// What the layers of a shard share.
struct Shard {
  std::mutex lock;
  stagger::detail::StepBackup backup;
};

[[nodiscard]] [[gnu::cold]] inline std::unique_ptr<ParameterStore> make_store(
    LayerParameters const& like, stagger::detail::StoreRules const& rules,
    stagger::detail::StepBackup& backup) {
  return std::make_unique<ParameterStore>(like, rules, rules.weights.size(), &backup);
}

/// Layers are distributed over shards. Each shard has a lock, which the caller must hold while it
/// uses a layer. If a folder is given, layers continue from the state in it.
class StoredLayers {
 public:
  /// Number of layers; 0 until a worker has joined.
  [[nodiscard]] std::size_t size() const noexcept { return layers_.size(); }
  [[nodiscard]] std::mutex& mutex(std::size_t l) { return shards_[l % shards_.size()].lock; }
  [[nodiscard]] ParameterStore& operator[](std::size_t l) { return *layers_[l]; }

  /// Whether a worker has left, or has failed where the others go on without it.
  [[nodiscard]] bool gone(int worker) {
    return in_any([worker](auto const& layer) { return layer.workers()[worker].gone; });
  }
  /// Whether a worker is in a stream.
  /// @param has_pushed  and has pushed there
  [[nodiscard]] bool in_stream(int worker, bool has_pushed = false) {
    return in_any([=](auto const& layer) {
      stagger::detail::StoreWorker const& own = layer.workers()[worker];
      return own.in_stream(layer.streams()) && (!has_pushed || own.pushes != own.start);
    });
  }
  /// Whether a worker has been in a stream and has not left.
  [[nodiscard]] bool takes_part(int worker) {
    return in_any([worker](auto const& layer) {
      stagger::detail::StoreWorker const& own = layer.workers()[worker];
      return !own.gone && own.stream != stagger::detail::all_rounds;
    });
  }
  [[nodiscard]] staleness::Adds adds() const noexcept { return rules_.adds; }
  /// Whether a worker may push a layer now. @pre the layer's lock is held
  [[nodiscard]] bool has_turn(std::size_t l, int worker) const {
    return adds() != staleness::Adds::in_turn || layers_[l]->workers().has_turn(worker);
  }
  [[nodiscard]] ServerRecord const& record() const noexcept { return record_; }
  [[nodiscard]] bool logs() const noexcept { return store_rules_.log; }
  [[nodiscard]] bool durable() const noexcept { return folder_ != nullptr; }
  /// Writes the state of a layer to the folder, if there is one. @pre its lock is held
  /// @throws Error  io
  void keep(std::size_t l) {
    if (folder_ != nullptr) folder_->write(l, record_.run, *layers_[l]);
  }
  /// Likewise; an error is reported to the worker that pushes or reads next.
  void try_to_keep(std::size_t l) noexcept {
    try {
      keep(l);
    } catch (...) {  // DurableFolder keeps the error, which the next write throws
    }
  }
  /// @throws Error  io once a write has failed: weights may contain pushes that the folder lacks
  void require_kept() const {
    if (folder_ != nullptr) folder_->require_sound();
  }
  /// How many streams of a worker have ended by a failure, its own or another's.
  [[nodiscard]] std::uint32_t failures(int worker) const { return record_.failures[worker]; }

 protected:
  /// @throws Error  mismatch for a folder with another run, bad_data for one that is damaged, io if
  ///                it cannot be used
  explicit StoredLayers(ServerOptions const& options) : shards_(options.shards) {
    record_.run = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32U;
    record_.name = options.run;
    record_.goes_on = options.on_failure == OnFailure::go_on;
    record_.averages = options.average_changes;
    record_.weights.assign(options.weights.data(), options.weights.size());
    if (options.weights.empty())
      record_.weights.assign(static_cast<std::size_t>(options.workers), 1.0 / options.workers);
    record_.failures.assign(record_.weights.size(), 0);
    store_rules_.takes_over = record_.goes_on;
    store_rules_.log = options.log;
    store_rules_.weights = record_.weights;
    if (options.durable.empty()) return;
    folder_ = std::make_unique<DurableFolder>(options.durable);
    if (folder_->holds_run()) restore();
  }

  ~StoredLayers() = default;
  [[nodiscard]] FixedArray<std::unique_lock<std::mutex>> lock_all() {
    FixedArray<std::unique_lock<std::mutex>> locks(shards_.size());
    for (std::size_t s = 0; s < shards_.size(); ++s) locks[s] = std::unique_lock(shards_[s].lock);
    return locks;
  }
  [[nodiscard]] int workers() const noexcept { return static_cast<int>(record_.weights.size()); }
  FixedArray<Shard> shards_;
  WorkerRules rules_;
  stagger::detail::StoreRules store_rules_;
  FixedArray<std::unique_ptr<ParameterStore>> layers_;
  std::unique_ptr<DurableFolder> folder_;  // null: layers are kept in memory only
  ServerRecord record_;
  bool restored_ = false;

 private:
  /// Whether something holds in one of the layers. @param holds  (layer), its lock held
  template <class Holds> [[nodiscard]] bool in_any(Holds holds) {
    bool any = false;
    for (std::size_t l = 0; l < size() && !any; ++l) {
      std::lock_guard const lock(mutex(l));
      any = holds(*layers_[l]);
    }
    return any;
  }
  [[gnu::cold]] void restore() {
    ServerRecord found = folder_->read();
    auto const refuse = [&](std::string const& words) {
      raise(Errc::mismatch, "the folder ", folder_->path(), " has the run of a parameter server ",
            words, "; start it with the same options, or name another folder");
    };
    if (found.name != record_.name)
      refuse(text("with the name '", found.name, "', this one has the name '", record_.name, "'"));
    if (found.weights.size() != record_.weights.size())
      refuse(text("for ", counted(found.weights.size(), "worker"), ", this one is made for ",
                  record_.weights.size()));
    if (!std::equal(found.weights.begin(), found.weights.end(), record_.weights.begin()))
      refuse("with other weights for its workers");
    if (found.averages != record_.averages)
      refuse(found.averages ? "whose workers average their changes"
                            : "whose workers sum up their changes");
    if (found.goes_on != record_.goes_on) refuse("that does something else when a worker fails");
    record_ = std::move(found);
    rules_ = record_.rules.rules();
    store_rules_.pushes = rules_.pushes;
    store_rules_.adds = rules_.adds;
    store_rules_.optimizer.states = record_.states;
    FixedArray<std::unique_ptr<ParameterStore>> stores(record_.layers);
    for (std::size_t l = 0; l < stores.size(); ++l)
      stores[l] = folder_->read(l, record_.run, [&](LayerParameters const& like) {
        return make_store(like, store_rules_, shards_[l % shards_.size()].backup);
      });
    layers_ = std::move(stores);
    restored_ = true;
  }
};

/// How workers begin and end streams in all layers.
class ServerLayers : public StoredLayers {
 public:
  /// @throws Error  as StoredLayers
  explicit ServerLayers(ServerOptions const& options) : StoredLayers(options) {}

  /// Takes over the layers and rules of the worker that joins first.
  /// @param added  notified of each round of gradients, or null
  [[gnu::cold]] void take_over(std::span<LayerParameters const> layers, WorkerRules const& rules,
                               stagger::detail::AddedRounds* added) {
    rules_ = rules;
    store_rules_.pushes = rules.pushes;
    store_rules_.adds = rules.adds;
    store_rules_.optimizer = rules.optimizer;
    store_rules_.added = added;
    FixedArray<std::unique_ptr<ParameterStore>> stores(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l)
      stores[l] = make_store(layers[l], store_rules_, shards_[l % shards_.size()].backup);
    if (folder_ != nullptr) {
      record_.rules = WrittenRules::of(rules);
      record_.states = rules.optimizer.states;
      record_.layers = layers.size();
      for (std::size_t l = 0; l < layers.size(); ++l) folder_->write(l, record_.run, *stores[l]);
      folder_->write(record_);  // from now on the folder holds a run
    }
    layers_ = std::move(stores);
  }
  /// Compares the layers of a further worker with these.
  /// @param digests  [layers] digests of its first values
  /// @return         whether it is the first worker since the layers were read from a folder
  /// @throws Error   mismatch, naming what differs
  [[gnu::cold]] bool compare(int worker, std::span<LayerParameters const> layers,
                             List<std::uint64_t> const& digests, WorkerRules const& rules) {
    if (restored_) {  // the folder has words for how layers are late, and no functions
      std::string const own = late_words(rules);
      require_same_late(worker, own == record_.rules.late, own, record_.rules.late);
      rules_.late = rules.late;
      rules_.late_policy = rules.late_policy;
    }
    require_same_rules(worker, rules, rules_);
    if (layers.size() != size())
      raise(Errc::mismatch, "worker ", worker, " has ", counted(layers.size(), "layer"),
            ", the others have ", size(), "; workers train one model");
    for (std::size_t l = 0; l < layers.size(); ++l) {
      ParameterStore const& layer = *layers_[l];
      require_same_layer(worker, l, layers[l], layer.shape());
      std::lock_guard const lock(mutex(l));
      bool const has_first =
          layer.streams() == 0 && layer.history().total() == 0 && layer.rounds() == 0;
      if (has_first && digests[l] != values_digest({layer.first(worker), layer.bytes()}))
        raise(Errc::mismatch, "the first values of layer ", l, " of worker ", worker,
              " differ from those of the others; make all workers from one model, with one seed");
    }
    if (!std::exchange(restored_, false)) return false;
    rules_ = rules;
    store_rules_.optimizer = rules.optimizer;
    finish_failures();
    return true;
  }
  void notify(stagger::detail::AddedRounds* added) noexcept { store_rules_.added = added; }
  /// Makes room for workers that may be this many pushes ahead of the slowest.
  [[gnu::cold]] void reserve(std::size_t ahead) {
    for (std::size_t l = 0; l < size(); ++l) {
      std::lock_guard const lock(mutex(l));
      layers_[l]->reserve(ahead);
    }
  }
  /// A worker begins a stream, in all layers. One that has left comes back first.
  /// @param process  of the worker, which runs them
  /// @throws Error   bad_configuration while others are still in the stream that it has ended
  void enter(int worker, int process) {
    for (std::size_t l = 0; l < size(); ++l) {
      std::lock_guard const lock(mutex(l));
      require_over(l, worker);
    }
    for (std::size_t l = 0; l < size(); ++l) {
      std::lock_guard const lock(mutex(l));
      layers_[l]->enter(worker, process);
      try_to_keep(l);
    }
  }
  /// Likewise in one layer. @pre its lock is held
  void enter(std::size_t l, int worker, int process) {
    require_over(l, worker);
    layers_[l]->enter(worker, process);
  }
  /// A worker that had left comes back: the others wait for it from now on, in all layers. They
  /// must be in the same stream in all of them; if layers may be late, between two steps.
  /// @param process  of the worker, which begins its stream with that; -1: it begins it later
  /// @param late     of the model, or null
  /// @return         whether it has come back
  [[gnu::cold]] bool come_back(int worker, int process, LateAnswers* late) {
    auto const locks = lock_all();
    if (late == nullptr ? !in_one_stream() : !between_steps(worker, *late)) return false;
    for (std::size_t l = 0; l < size(); ++l) {
      if (process >= 0) layers_[l]->enter(worker, process);
      layers_[l]->come_back(worker);
      try_to_keep(l);
    }
    if (late != nullptr) late->come_back(worker);
    return true;
  }
  /// Called when a worker fails, before its stream, or that of every worker, is ended.
  void begin_failure(int worker) noexcept {
    for (std::size_t n = 0; n < record_.failures.size(); ++n)
      if (!record_.goes_on || static_cast<int>(n) == worker) ++record_.failures[n];
    try {
      if (folder_ != nullptr) folder_->write(record_);
    } catch (...) {  // DurableFolder keeps the error, which the next write throws
    }
  }
  /// In one layer, ends the stream of a worker that has failed, or of all workers. @pre its lock is
  /// held
  void fail(std::size_t l, int worker) noexcept {
    record_.goes_on ? layers_[l]->leave(worker) : layers_[l]->give_up();
    for (int n = 0; n < workers(); ++n)
      if (!record_.goes_on || n == worker) layers_[l]->workers()[n].failures = record_.failures[n];
    try_to_keep(l);
  }

 private:
  void require_over(std::size_t l, int worker) const {
    if (layers_[l]->bytes() != 0 && layers_[l]->workers()[worker].waits_for_others())
      raise(Errc::bad_configuration, "worker ", worker,
            " has ended its steps, and others go on with theirs; let it begin again when all have "
            "ended");
  }
  // With the locks of all layers:

  /// Whether all others are in the same stream in all layers. They are not while they end one.
  [[nodiscard]] bool in_one_stream() const {
    bool one = true;
    for (auto const& layer : layers_)
      for (int n = 0; n < workers(); ++n)
        one = one && (layer->ended(n) || layer->in_stream(n) == layers_[0]->in_stream(n));
    return one;
  }
  /// Whether everything of the last step with late layers is added, and nothing of the next.
  [[nodiscard]] bool between_steps(int worker, LateAnswers& late) const {
    bool between = late.between_steps();
    for (auto const& layer : layers_)
      between =
          between && layer->ready(worker, layer->rounds()) && !layer->workers()[worker].waits();
    return between;
  }
  /// Ends streams in the layers that a killed server had not reached.
  [[gnu::cold]] void finish_failures() {
    for (std::size_t l = 0; l < size(); ++l)
      for (int n = 0; n < workers(); ++n)
        if (layers_[l]->workers()[n].failures < record_.failures[n]) fail(l, n);
  }
};

/// A worker that others wait for in a layer.
struct Awaited {
  int worker = -1;  ///< -1: nobody
  int process = 0;  ///< of the worker, which runs the layer
  std::uint32_t made = 0;
};

/// The slowest other worker in the layers that a worker waits for.
/// @param asks  [layers] what the worker has asked for
[[nodiscard]] inline Awaited slowest_but(ServerLayers& layers, int worker, List<Ask> const& asks) {
  Awaited slowest;
  std::uint32_t least = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::lock_guard const lock(layers.mutex(l));
    ParameterStore const& layer = layers[l];
    auto const workers = static_cast<int>(layer.workers().size());
    for (int n = 0; n < workers && asks[l].rounds != Ask::nothing; ++n) {
      std::uint32_t const pushes = layer.workers()[n].progress();
      if (n == worker || layer.ended(n) || (slowest.worker >= 0 && pushes >= least)) continue;
      slowest = {n, layer.workers()[n].process, pushes_made(layer, n)};
      least = pushes;
    }
  }
  return slowest;
}

}  // namespace stagger::collective::detail
