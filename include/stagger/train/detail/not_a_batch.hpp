// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compiler errors for arguments that a trainer cannot take. Nothing here is
///         instantiated for correct arguments.

#include <concepts>
#include <span>
#include <type_traits>
#include <utility>

#include <stagger/core/stop_token.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/train/detail/policies.hpp>

namespace stagger::detail {

/// Whether a range of type R converts to a span of T.
template <class R, class T>
concept Spans = std::is_convertible_v<R&, std::span<T>>;

/// Likewise of what a step writes to later: it is no temporary, unless that is a view.
template <class R, class T>
concept Receives = Spans<R, T> && (std::is_lvalue_reference_v<R> ||
                                   std::ranges::enable_borrowed_range<std::remove_cvref_t<R>>);

/// The type of a step that cannot be compiled.
struct NoStep {
  static Step step() { return {nullptr, {}, {}}; }
};

template <class Trainer, class Input, class Target> struct BatchDoesNotFit : NoStep {
  static constexpr bool has_loss = !std::same_as<typename Trainer::Target, NoLoss::Target>;
  static constexpr bool inputs = std::same_as<typename Trainer::Input, Input>;
  static_assert(has_loss,
                "stagger: a step needs a loss; give Pipeline::with one, such as "
                "loss::MeanSquaredError<>{}");
  static_assert(!has_loss || inputs,
                "stagger: the batch's inputs are not the Input of the first stage: give a "
                "Batch<Input, Target>");
  static_assert(!has_loss || !inputs,
                "stagger: the batch's targets are not the Target of the loss: give a Batch<Input, "
                "Target>");
};

template <class Trainer, class Inputs, class Outputs> struct PredictionDoesNotFit : NoStep {
  static constexpr bool inputs = Spans<Inputs, typename Trainer::Input const>;
  static constexpr bool outputs = Spans<Outputs, typename Trainer::Output>;
  static_assert(inputs,
                "stagger: what is predicted from must be a std::vector or another span of the "
                "Input of the first stage");
  static_assert(!inputs || outputs,
                "stagger: what is predicted must be a std::vector or another span of the Output of "
                "the last stage, and not const");
  static_assert(!inputs || !outputs,
                "stagger: what is predicted would be written to a temporary that nobody can read: "
                "give predict a variable for the outputs");
};

template <class T> struct BatchInParts : NoStep {
  static_assert(std::is_void_v<T>,
                "stagger: a step takes inputs and targets together: give it one Batch<Input, "
                "Target>{inputs, targets}");
};

template <class T> struct TrainerIsConst : NoStep {
  static_assert(std::is_void_v<T>,
                "stagger: this trainer is const, but a step changes it, and an evaluation what it "
                "has laid out: declare it without const");
};

/// What is neither a Batch nor a token to stop.
template <class T>
concept PartOfBatch = !std::is_convertible_v<T const&, stagger::stop_token>;

/// The functions of a trainer that report wrong arguments.
template <class Trainer, class Input, class Output, class Target> struct WrongSteps {
  template <class X, class T> Step step(Batch<X, T> const&, stagger::stop_token = {}) {
    return BatchDoesNotFit<Trainer, X, T>::step();
  }
  template <class X, class T> Step stream(Batch<X, T> const&, stagger::stop_token = {}) {
    return BatchDoesNotFit<Trainer, X, T>::step();
  }
  template <class X, class T> Step evaluate(Batch<X, T> const&, stagger::stop_token = {}) {
    return BatchDoesNotFit<Trainer, X, T>::step();
  }
  template <class X, PartOfBatch T> Step step(X const&, T const&, stagger::stop_token = {}) {
    return BatchInParts<X>::step();
  }
  template <class X, PartOfBatch T> Step stream(X const&, T const&, stagger::stop_token = {}) {
    return BatchInParts<X>::step();
  }
  template <class X, PartOfBatch T> Step evaluate(X const&, T const&, stagger::stop_token = {}) {
    return BatchInParts<X>::step();
  }
  template <class X, class Y>
    requires(!Spans<X const, Input const> || !Receives<Y, Output>)
  Step predict(X const&, Y&&, stagger::stop_token = {}) {
    return PredictionDoesNotFit<Trainer, X const, Y>::step();
  }
  Step step(Batch<Input, Target> const&, stagger::stop_token = {}) const {
    return TrainerIsConst<Input>::step();
  }
  Step stream(Batch<Input, Target> const&, stagger::stop_token = {}) const {
    return TrainerIsConst<Input>::step();
  }
  Step evaluate(Batch<Input, Target> const&, stagger::stop_token = {}) const {
    return TrainerIsConst<Input>::step();
  }
  Step predict(std::span<Input const>, std::span<Output>, stagger::stop_token = {}) const {
    return TrainerIsConst<Input>::step();
  }
};

}  // namespace stagger::detail
