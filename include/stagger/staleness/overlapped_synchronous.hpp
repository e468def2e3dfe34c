// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Overlapped synchronous parallelism: less important layers are synchronised while the
///         next step computes.
/// @source Chen et al., "OSP: Boosting Distributed Model Training with 2-stage Synchronization",
///         ICPP 2023.

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include <stagger/core/policy_numbers.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/staleness/overlapped/budget.hpp>
#include <stagger/staleness/overlapped/importance.hpp>
#include <stagger/staleness/overlapped/prediction.hpp>
#include <stagger/staleness/overlapped/selection.hpp>
#include <stagger/staleness/policy.hpp>

namespace stagger::staleness {

/// At the end of a step, workers wait for the gradients of urgent layers as in bulk synchronous
/// parallelism. Those of the late layers are exchanged while the next step computes, with a
/// prediction in their place. At the end of that step the weights contain the gradients of all
/// workers, and are equal on all of them.
///
/// The server chooses the late layers: after step i it scores each layer by the gradients of step i
/// and the values at which they were taken. The layers with the lowest scores, within a budget of
/// bytes, are late in step i + 1. In the first step nothing is late.
template <class Importance = overlapped::ParameterGradientProduct,
          class Selection = overlapped::FirstFit, class Budget = overlapped::LossTuned,
          class Prediction = overlapped::LocalGradient>
struct OverlappedSynchronous {
  using policy_tag = StalenessTag;
  /// A class whose static_assert says which inner policy is wrong; void if none is.
  using Fault = std::conditional_t<
      !overlapped::Importance<Importance>, overlapped::NotAnImportance<Importance>,
      std::conditional_t<
          !overlapped::Selection<Selection>, overlapped::NotASelection<Selection>,
          std::conditional_t<!overlapped::Budget<Budget>, overlapped::NotABudget<Budget>,
                             std::conditional_t<!overlapped::Prediction<Prediction>,
                                                overlapped::NotAPrediction<Prediction>, void>>>>;
  static constexpr bool synchronous = true;  // the stages of a worker end a step together
  static constexpr Pushes pushes = Pushes::gradients;
  static constexpr Adds adds = Adds::in_worker_order;

  Importance importance{};
  Selection selection{};
  Budget budget{};
  Prediction prediction{};
  overlapped::Normalisation normalisation = overlapped::Normalisation::sum;
  /// If true, late values of a layer replace predicted ones before its first forward of the step if
  /// they have arrived, so the bits depend on timing. If false, they do so after the computation,
  /// and the bits do not.
  bool immediate = false;

  [[nodiscard]] constexpr int minibatches() const noexcept { return 1; }
  [[nodiscard]] constexpr int needs(int step) const noexcept { return step; }  // of urgent layers
};

}  // namespace stagger::staleness

namespace stagger::detail {

/// The inner policies of a model, for the server.
template <class P> class LateChoiceOf final : public LateChoice {
 public:
  /// @throws Error  bad_configuration for numbers out of range
  explicit LateChoiceOf(P const& policy) : policy_(policy), budget_(policy.budget) {
    if constexpr (requires { policy.budget.check(); }) policy.budget.check();
    if constexpr (requires { policy.prediction.check(); }) policy.prediction.check();
  }
  [[nodiscard]] double score(ScoredLayer const& layer) const override {
    using staleness::overlapped::Normalisation;
    double const score = policy_.importance.score(layer);
    if (policy_.normalisation == Normalisation::sum) return score;
    return score / static_cast<double>(policy_.normalisation == Normalisation::per_element
                                           ? layer.elements()
                                           : layer.bytes());
  }
  void begin() noexcept override { budget_ = policy_.budget; }
  [[nodiscard]] double budget(EndedStep const& step) override { return budget_.bytes(step); }
  void select(std::span<LateCandidate> layers, double budget) const override {
    policy_.selection.pick(layers, budget);
  }

 private:
  P policy_;
  decltype(P::budget) budget_;  // a copy, with its state
};

/// The functions of an OverlappedSynchronous.
template <class Policy> struct LateCallsOf {
  using Prediction = decltype(Policy::prediction);
  static Policy const& of(void const* policy) { return *static_cast<Policy const*>(policy); }

  static std::unique_ptr<LateChoice> choice(void const* policy) {
    return std::make_unique<LateChoiceOf<Policy>>(of(policy));
  }
  static bool equal(void const* a, void const* b) {
    Policy const& x = of(a);
    Policy const& y = of(b);
    return x.importance == y.importance && x.selection == y.selection && x.budget == y.budget &&
           x.prediction == y.prediction && x.normalisation == y.normalisation;
  }
  static std::string words(void const* policy) {
    Policy const& x = of(policy);
    if (policy_digest(x.importance) == 0 || policy_digest(x.selection) == 0 ||
        policy_digest(x.budget) == 0 || policy_digest(x.prediction) == 0)
      return {};
    return "OverlappedSynchronous, " + policy_words(x.importance) + ", " +
           policy_words(x.selection) + ", " + policy_words(x.budget) + ", " +
           policy_words(x.prediction) + ", normalisation " +
           std::to_string(static_cast<int>(x.normalisation));
  }
  static void predict(void const* policy, LayerParameters& layer, std::byte* kept, ByteRange part) {
    Prediction const& prediction = of(policy).prediction;
    each(layer, kept, part, [&]<class T>(T* value, T* change, T const* mean, std::size_t size) {
      for (std::size_t i = 0; i < size; ++i) {
        T const before = value[i];
        value[i] = before + prediction.predict(change[i], mean == nullptr ? T{0} : mean[i]);
        change[i] = before;
      }
    });
  }
  static void remember(void const* policy, LayerParameters const& layer, std::byte* kept,
                       ByteRange part) {
    if constexpr (Prediction::remembers) {
      Prediction const& prediction = of(policy).prediction;
      each(layer, kept, part,
           [&]<class T>(T const* value, T const* before, T* mean, std::size_t size) {
             for (std::size_t i = 0; i < size; ++i)
               mean[i] = prediction.remember(mean[i], value[i] - before[i]);
           });
    }
  }
  /// Calls body(values, older values, kept, count) for each parameter, with its elements in a part
  /// of a layer.
  template <class Body>
  static void each(LayerParameters const& layer, std::byte* kept, ByteRange part, Body body) {
    for (std::size_t i = 0; i < layer.count(); ++i) {
      ByteRange const within = layer.within(i, part);
      std::size_t const first = within.first;
      std::byte* const there = kept == nullptr ? nullptr : kept + layer.range(i).first + first;
      auto* const newer = static_cast<std::byte*>(layer.views()[i].value) + first;
      auto* const older = static_cast<std::byte*>(layer.views()[layer.count() + i].value) + first;
      with_type(layer.declaration(i).type, [&]<class T>() {
        body(reinterpret_cast<T*>(newer), reinterpret_cast<T*>(older), reinterpret_cast<T*>(there),
             within.size() / sizeof(T));
      });
    }
  }
  static constexpr LateCalls calls{
      &choice, &equal, &words,
      std::same_as<Prediction, staleness::overlapped::NoPrediction> ? nullptr : &predict,
      Prediction::remembers ? &remember : nullptr};
};

/// If nothing is ever late, the model is bulk synchronous and needs no functions.
template <class I, class S, class B, class P>
inline constexpr bool sends_late<staleness::OverlappedSynchronous<I, S, B, P>> =
    !std::same_as<B, staleness::overlapped::NothingLate>;
template <class I, class S, class B, class P>
inline constexpr LateCalls const* late_calls_of<staleness::OverlappedSynchronous<I, S, B, P>> =
    std::same_as<B, staleness::overlapped::NothingLate>
        ? nullptr
        : &LateCallsOf<staleness::OverlappedSynchronous<I, S, B, P>>::calls;

}  // namespace stagger::detail
