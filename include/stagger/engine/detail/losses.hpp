// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The losses of a step's microbatches, their weights, and the metrics computed from them.

#include <cstddef>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/request.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// What a step's metrics depend on, apart from its losses.
struct StepFacts {
  double terms = 0;
  std::size_t microbatches = 0;
  std::size_t parts = 1;  // losses of each microbatch
  bool compares = false;  // has a loss
};

/// @param losses  [parts][microbatches]
[[nodiscard]] inline Metrics metrics_of(StepFacts const& step, double const* losses,
                                        double gradient_norm, int skipped = 0) noexcept {
  Metrics metrics;
  metrics.terms = step.terms;
  metrics.gradient_norm = gradient_norm;
  metrics.skipped = skipped;
  if (!step.compares) return metrics;
  double sum = 0;
  for (std::size_t m = 0; m < step.microbatches; ++m)
    for (std::size_t part = 0; part < step.parts; ++part)
      sum += losses[part * step.microbatches + m];
  metrics.loss = step.terms > 0 ? sum / step.terms : 0;
  return metrics;
}

/// Memory for losses, which the ranks write, and for weights, which they read.
class Losses {
 public:
  /// @param parts  most ranks that compute a loss of the same microbatch
  explicit Losses(std::size_t parts) : parts_(parts) {}

  /// @param slots  most steps in flight
  [[gnu::cold]] void make_room(Program const& program, std::size_t slots) {
    auto const microbatches = static_cast<std::size_t>(program.microbatches);
    losses_.resize(std::max(losses_.size(), slots * parts_ * microbatches));
    scales_.resize(std::max(scales_.size(), microbatches));
    terms_.resize(scales_.size());
  }

  /// Sets the step's pointers to losses and weights, and counts the terms of the targets.
  /// @throws Error  bad_data for a number of terms with which no gradient could be weighed
  void begin(StepArguments& arguments, Program const& program, std::size_t slot) {
    facts_ = {0, static_cast<std::size_t>(program.microbatches), parts_, arguments.loss != nullptr};
    losses_of_slot_ = losses_.data() + slot * facts_.microbatches * parts_;
    if (parts_ > 1) std::fill_n(losses_of_slot_, facts_.microbatches * parts_, 0.0);
    arguments.losses = facts_.compares ? losses_of_slot_ : nullptr;
    if (!facts_.compares) return;
    for (std::size_t m = 0; m < facts_.microbatches; ++m)
      terms_[m] =
          arguments.targets.first == nullptr
              ? 0
              : require_terms(arguments.loss_ops.terms(arguments.loss, arguments.targets[m]), m);
    arguments.scales = scales_.data();
    arguments.terms = &facts_.terms;
  }
  /// [microbatches] of the targets that were given, until `weigh`.
  [[nodiscard]] double* terms() noexcept { return terms_.data(); }
  /// Computes the weights: every term of a minibatch counts the same, however unequal its
  /// microbatches are.
  void weigh(Program const& program) {
    if (!facts_.compares) return;
    auto const minibatches = static_cast<std::size_t>(program.updates);
    for (std::size_t begin = 0, k = 0; k < minibatches; ++k) {
      std::size_t const end = begin + facts_.microbatches / minibatches;
      double terms = 0;
      for (std::size_t m = begin; m < end; ++m) terms += terms_[m];
      for (; begin < end; ++begin) scales_[begin] = terms > 0 ? 1 / terms : 0;
      facts_.terms += terms;
    }
  }

  /// Facts of the step that was begun last.
  [[nodiscard]] StepFacts const& facts() const noexcept { return facts_; }
  [[nodiscard]] double* values() const noexcept { return losses_of_slot_; }

 private:
  std::size_t parts_;
  StepFacts facts_;
  double* losses_of_slot_ = nullptr;
  List<double> losses_;  // [slots][parts][microbatches]
  List<double> scales_;  // [microbatches] 1 / terms of the minibatch
  List<double> terms_;   // [microbatches]
};

}  // namespace stagger::detail
