// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Two-stage synchronisation (OSP) at a parameter server in this process: tells workers
///         which layers are late.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

/// The late layers of a step for all workers, with a lock of its own. An error while they are
/// chosen ends the step of each worker that asks.
class LateAnswers final : public stagger::detail::AddedRounds {
 public:
  /// @throws Error  bad_configuration for numbers of the policy that are out of range
  [[gnu::cold]] LateAnswers(stagger::detail::WorkerRules const& rules,
                            std::span<stagger::detail::LayerParameters const> layers,
                            std::size_t workers, std::size_t clients)
      : layers_(rules.late->choice(rules.late_policy), stagger::detail::bytes_to_send(layers),
                workers, workers, !rules.in_parts),
        workers_(workers),
        asks_(clients) {}

  void add(stagger::detail::ScoredLayer const& layer) noexcept override {
    answer_after([&] {
      double const score = layers_.choice().score(layer);
      std::lock_guard const lock(mutex_);
      return layers_.add_score(static_cast<std::size_t>(layer.number()), score);
    });
  }
  /// @param active  whether the worker's steps go on; if not, the losses have been reset
  void add_loss(int worker, double loss, std::atomic<bool> const& active) noexcept {
    answer_after([&] {
      std::lock_guard const lock(mutex_);
      if (!active.load()) return false;
      return layers_.add_loss(static_cast<std::size_t>(worker), loss);
    });
  }
  /// @param step    of the worker's stream; one that waits to come back asks for its first
  /// @param told    notified of the late layers, now or once they are chosen; until reset()
  /// @throws Error  the error of the choice; mismatch for a step whose choice is not kept any more
  /// @param active  as for add_loss
  void ask(int client, std::uint32_t step, stagger::detail::ParameterListener& told,
           std::atomic<bool> const& active) {
    std::lock_guard const lock(mutex_);
    if (!active.load()) return;  // the worker is told why elsewhere
    if (failure_) std::rethrow_exception(failure_);
    Asked& own = asks_[client];
    if (there(static_cast<std::size_t>(client)) &&
        own.first + step + (layers_.chooses() ? 0U : 1U) < layers_.step())
      raise(Errc::mismatch, "a worker asks which layers are late in step ", step,
            ", but those of step ", layers_.step() - own.first,
            " have been chosen; take the steps of all workers in turn");
    own.told = &told;
    own.step = step;
    answer();
  }

  // For workers that go on without one that is gone.

  /// Whether a worker takes part.
  [[nodiscard]] bool has(int worker) {
    std::lock_guard const lock(mutex_);
    return layers_.has(static_cast<std::size_t>(worker));
  }
  /// Late layers are chosen without a worker from now on.
  void lose(int worker) noexcept {
    answer_after([&] {
      std::lock_guard const lock(mutex_);
      for (std::size_t c = first_of(worker); c < asks_.size(); c += workers_)
        asks_[c].told = nullptr;
      return layers_.lose(static_cast<std::size_t>(worker));
    });
  }
  /// If all workers have gone, the first that comes back begins anew.
  void start_over_if_deserted() noexcept {
    std::lock_guard const lock(mutex_);
    if (layers_.has_any()) return;
    layers_.reset();
    failure_ = nullptr;
  }
  [[nodiscard]] bool between_steps() {
    std::lock_guard const lock(mutex_);
    return layers_.between_steps();
  }
  /// The next step is the worker's first. @pre between_steps()
  void come_back(int worker) noexcept {
    std::lock_guard const lock(mutex_);
    layers_.come_back(static_cast<std::size_t>(worker));
    for (std::size_t c = first_of(worker); c < asks_.size(); c += workers_)
      asks_[c].first = layers_.step();
    answer();
  }

  /// A process of a worker takes no further step.
  void leave(int client) noexcept {
    std::lock_guard const lock(mutex_);
    asks_[client].told = nullptr;
  }
  /// All workers begin again.
  void reset() noexcept {
    std::lock_guard const lock(mutex_);
    layers_.reset();
    failure_ = nullptr;
    for (Asked& asked : asks_) asked = {};
  }

 private:
  /// Calls `body`; if the late layers are then known, or an error occurred, answers all clients
  /// that ask.
  /// @param body  () -> whether the late layers are known after it
  template <class Body> void answer_after(Body body) noexcept {
    bool chosen = false;
    std::exception_ptr failure;
    try {
      chosen = body();
    } catch (...) {
      failure = std::current_exception();
    }
    std::lock_guard const lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    if (chosen || failure) answer();
  }
  struct Asked {
    stagger::detail::ParameterListener* told = nullptr;  // null: nobody
    std::uint32_t step = 0;
    std::uint32_t first = 0;  // the step in which the worker's stream has begun
  };

  /// Clients are numbered by worker, then by process.
  [[nodiscard]] static std::size_t first_of(int worker) noexcept {
    return static_cast<std::size_t>(worker);
  }
  [[nodiscard]] bool there(std::size_t client) const noexcept {
    return layers_.has(client % workers_);
  }
  /// Answers those whose step has been chosen for; others may be a step ahead, or gone.
  void answer() noexcept {
    for (std::size_t c = 0; c < asks_.size(); ++c) {
      auto const [told, step, first] = asks_[c];
      bool const known = there(c) && first + step <= layers_.step();
      if (told == nullptr || (!failure_ && !known)) continue;
      asks_[c].told = nullptr;
      if (failure_)
        told->lost(failure_);
      else if (layers_.chooses())
        told->late_layers(step, layers_.late());
      else
        told->late_scores(step, layers_.scores(step), layers_.loss(step));
    }
  }

  std::mutex mutex_;
  stagger::detail::LateLayers layers_;
  std::size_t workers_;
  FixedArray<Asked> asks_;  // [clients] whom to answer
  std::exception_ptr failure_;
};

}  // namespace stagger::collective::detail
