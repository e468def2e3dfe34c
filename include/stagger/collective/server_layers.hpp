// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The layers that a parameter server has, and what the workers have agreed on that train
///         them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include <stagger/collective/same_workers.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_store.hpp>

namespace stagger::collective::detail {

using stagger::detail::LayerParameters;
using stagger::detail::ParameterStore;

/// Layers are dealt out to shards, and each shard has a lock, which who uses a layer holds.
class ServerLayers {
 public:
  /// @param shards   >= 1
  /// @param weights  [workers]
  /// @param log      whether they remember what happened
  ServerLayers(int shards, List<double> weights, bool log) : shards_(shards) {
    store_rules_.weights = std::move(weights);
    store_rules_.log = log;
  }

  /// 0 until a worker has joined.
  [[nodiscard]] std::size_t size() const noexcept { return layers_.size(); }
  [[nodiscard]] std::mutex& mutex(std::size_t l) { return shards_[l % shards_.size()]; }
  [[nodiscard]] ParameterStore& operator[](std::size_t l) { return *layers_[l]; }
  [[nodiscard]] ParameterStore const& operator[](std::size_t l) const { return *layers_[l]; }

  /// Of the worker that joins first.
  /// @param added  sees each round of gradients, or null
  [[gnu::cold]] void take_over(std::span<LayerParameters const> layers, WorkerRules const& rules,
                               stagger::detail::AddedRounds* added) {
    rules_ = rules;
    store_rules_.pushes = rules.pushes;
    store_rules_.adds = rules.adds;
    store_rules_.optimizer = rules.optimizer;
    store_rules_.added = added;
    FixedArray<std::unique_ptr<ParameterStore>> stores(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l)
      stores[l] =
          std::make_unique<ParameterStore>(layers[l], store_rules_, store_rules_.weights.size());
    layers_ = std::move(stores);
  }
  /// With a further worker.
  /// @param digests  [layers] of its first values
  /// @throws Error   mismatch, naming what differs
  [[gnu::cold]] void compare(int worker, std::span<LayerParameters const> layers,
                             List<std::uint64_t> const& digests, WorkerRules const& rules) {
    require_same_rules(worker, rules, rules_);
    if (layers.size() != size())
      raise(Errc::mismatch, "worker ", worker, " has ", counted(layers.size(), "layer"),
            ", the others have ", size(), "; workers train one model");
    for (std::size_t l = 0; l < layers.size(); ++l) {
      ParameterStore const& layer = *layers_[l];
      require_same_layer(worker, l, layers[l], layer.shape());
      std::lock_guard const lock(mutex(l));
      if (layer.streams() == 0 && layer.history().total() == 0 &&
          digests[l] != values_digest({layer.first(worker), layer.bytes()}))
        raise(Errc::mismatch, "the first values of layer ", l, " of worker ", worker,
              " differ from those of the others; make all workers from one model, with one seed");
    }
  }
  /// Makes room for what waits. @param ahead  pushes that a worker may have made beyond the slowest
  [[gnu::cold]] void reserve(std::size_t ahead) {
    for (std::size_t l = 0; l < size(); ++l) {
      std::lock_guard const lock(mutex(l));
      layers_[l]->reserve(ahead);
    }
  }
  /// A worker that was gone is waited for again, in all layers at once.
  /// @throws Error  bad_configuration while the streams of the others have ended in some layers only
  [[gnu::cold]] void come_back(int worker) {
    FixedArray<std::unique_lock<std::mutex>> locks(shards_.size());
    for (std::size_t s = 0; s < shards_.size(); ++s) locks[s] = std::unique_lock(shards_[s]);
    for (auto const& layer : layers_)
      for (int n = 0; n < static_cast<int>(store_rules_.weights.size()); ++n)
        if (!layer->ended(n) && layer->in_stream(n) != layers_[0]->in_stream(n))
          raise(Errc::bad_configuration, "worker ", worker,
                " comes back while the others end their streams; let it begin again when all have "
                "ended");
    for (auto const& layer : layers_) {
      layer->enter(worker);
      layer->come_back(worker);
    }
  }
  [[nodiscard]] staleness::Adds adds() const noexcept { return rules_.adds; }

 private:
  FixedArray<std::mutex> shards_;
  WorkerRules rules_;
  stagger::detail::StoreRules store_rules_;
  FixedArray<std::unique_ptr<ParameterStore>> layers_;
};

}  // namespace stagger::collective::detail
