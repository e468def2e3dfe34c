// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Two-stage synchronisation (OSP) with several servers that each keep some layers: each
///         sends the scores of its layers to every worker, and all workers make the same choice.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

/// Stands between a worker and its links to the servers.
class LateMerger {
 public:
  /// @param layers   layers of the whole model
  /// @param workers  how many workers train it
  /// @param servers  how many servers there are; the first one sends the loss
  /// @throws Error   bad_configuration for numbers of the policy that are out of range
  [[gnu::cold]] LateMerger(stagger::detail::WorkerRules const& rules,
                           std::span<stagger::detail::LayerParameters const> layers,
                           std::size_t workers, std::size_t servers,
                           stagger::detail::ParameterListener& listener)
      : listener_(listener),
        layers_(rules.late->choice(rules.late_policy), stagger::detail::bytes_to_send(layers),
                workers, 1, true),
        servers_(servers) {}

  /// Adds a server, and returns the listener for its messages.
  /// @param layers  [layers] those that this server keeps; the others have no parameters
  [[gnu::cold]] stagger::detail::ParameterListener& add(
      int server, std::span<stagger::detail::LayerParameters const> layers) {
    Server& added = servers_[server];
    added.merger = this;
    added.bytes = stagger::detail::bytes_to_send(layers);
    for (std::uint64_t const bytes : added.bytes) added.has_layers = added.has_layers || bytes != 0;
    added.tells_loss = !std::exchange(has_loss_, true);
    return added;
  }
  /// Called when a stream begins. Resets the budget, so that all workers choose alike, including
  /// one that has just been started.
  void begin() noexcept {
    std::lock_guard const lock(mutex_);
    layers_.forget();
  }
  /// Says what is late in the first step: nothing.
  void tell_first() noexcept {
    std::lock_guard const lock(mutex_);
    listener_.late_layers(0, layers_.late());
  }

 private:
  struct Server final : stagger::detail::ParameterListener {
    LateMerger* merger = nullptr;
    List<std::uint64_t> bytes{};  // [layers] 0: another server keeps it
    bool has_layers = false;      // with parameters
    bool tells_loss = false;

    void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
      merger->listener_.arrived(layer, rounds);
    }
    void late_scores(std::uint32_t step, std::span<double const> scores,
                     double loss) noexcept override {
      merger->take(*this, step, scores, loss);
    }
    void lost(std::exception_ptr why) noexcept override { merger->listener_.lost(std::move(why)); }
  };

  void take(Server const& from, std::uint32_t step, std::span<double const> scores,
            double loss) noexcept {
    if (!from.tells_loss && !from.has_layers) return;
    std::lock_guard const lock(mutex_);
    try {
      if (step != layers_.step() + 1)
        raise(Errc::mismatch, "a server has scores for what is late in step ", step,
              ", where those for step ", layers_.step() + 1,
              " are missing; use one version of the library everywhere");
      bool chosen = false;
      for (std::size_t l = 0; l < scores.size(); ++l)
        if (from.bytes[l] != 0) chosen = layers_.add_score(l, scores[l]) || chosen;
      if (from.tells_loss) chosen = layers_.add_loss(0, loss) || chosen;
      if (chosen) listener_.late_layers(layers_.step(), layers_.late());
    } catch (...) {
      listener_.lost(std::current_exception());
    }
  }

  stagger::detail::ParameterListener& listener_;
  std::mutex mutex_;
  stagger::detail::LateLayers layers_;
  FixedArray<Server> servers_;
  bool has_loss_ = false;  // whether this server sends the loss
};

}  // namespace stagger::collective::detail
