// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Descriptions of the workers of a parameter server that exchange waves: their costs, and
///         the links that they share.
/// @source Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 5.

#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/links.hpp>

namespace stagger::schedule {

/// The properties of a worker on which the others depend.
struct WaveWorker {
  Costs costs{};            ///< of its stages, one minibatch
  std::vector<int> cuts{};  ///< [stages - 1] first layer of each stage after the first
  /// [layers] the server's link for the changes of each layer; -1: none, they arrive at once.
  /// Empty: the first link, or none if there is none.
  std::vector<int> layer_links{};

  [[nodiscard]] constexpr int stages() const noexcept { return static_cast<int>(cuts.size()) + 1; }
};

/// A copy of the staleness model of the workers, of any type that has `minibatches` and `needs` as
/// staleness/policy.hpp describes them: staleness::WaveSynchronous or one of your own.
class WaveModel {
 public:
  constexpr WaveModel() = default;  ///< none
  template <class P>
    requires(!std::same_as<P, WaveModel>) && requires(P const policy) {
      { policy.minibatches() } -> std::same_as<int>;
      { policy.needs(0) } -> std::same_as<int>;
    }
  constexpr WaveModel(P policy) : erased_(new Of<P>(std::move(policy))) {}
  constexpr WaveModel(WaveModel const& other)
      : erased_(other.erased_ == nullptr ? nullptr : other.erased_->copy()) {}
  constexpr WaveModel(WaveModel&& other) noexcept
      : erased_(std::exchange(other.erased_, nullptr)) {}
  constexpr WaveModel& operator=(WaveModel other) noexcept {
    std::swap(erased_, other.erased_);
    return *this;
  }
  constexpr ~WaveModel() { delete erased_; }

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return erased_ != nullptr; }
  /// Throws what its own check() does, if it has one. @pre there is a model, here and below
  constexpr void check() const { erased_->check(); }
  /// Minibatches in one push.
  [[nodiscard]] constexpr int minibatches() const { return erased_->minibatches(); }
  /// Pushes of every worker that the weights of a minibatch contain at least.
  [[nodiscard]] constexpr int needs(int minibatch) const { return erased_->needs(minibatch); }

 private:
  struct Erased {
    constexpr virtual ~Erased() = default;
    [[nodiscard]] constexpr virtual Erased* copy() const = 0;
    constexpr virtual void check() const = 0;
    [[nodiscard]] constexpr virtual int minibatches() const = 0;
    [[nodiscard]] constexpr virtual int needs(int minibatch) const = 0;
  };
  template <class P> struct Of final : Erased {
    P policy;
    constexpr explicit Of(P p) : policy(std::move(p)) {}
    constexpr ~Of() override = default;  // which g++ 12 has to see for constant expressions
    [[nodiscard]] constexpr Erased* copy() const override { return new Of(policy); }
    constexpr void check() const override {
      if constexpr (requires { policy.check(); }) policy.check();
    }
    [[nodiscard]] constexpr int minibatches() const override { return policy.minibatches(); }
    [[nodiscard]] constexpr int needs(int m) const override { return policy.needs(m); }
  };

  Erased* erased_ = nullptr;
};

/// The properties that all workers have in common.
struct WaveServer {
  int in_flight = 1;  ///< Nm >= 1: minibatches of a worker at once
  WaveModel model{};  ///< of all workers; a push of its `minibatches` is a wave
  std::vector<std::uint64_t> layer_bytes{};  ///< [layers] of a push and of an answer
  std::vector<Links> links{};                ///< to where layers are kept
};

}  // namespace stagger::schedule
