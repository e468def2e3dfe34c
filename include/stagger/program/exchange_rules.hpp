// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The freedom that a staleness model gives several workers: how far they may be apart, and
///         whether it can be taken by step.

#include <algorithm>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

/// How many pushes a worker may be ahead of the slowest, as far as the first minibatches show it,
/// and some that come much later; a stream may end with each of them. Where the number still grows
/// behind the first half of those, it has no limit.
[[nodiscard]] [[gnu::cold]] inline std::uint32_t most_ahead(StalenessModel const& model) {
  // A step that pushes in turn ends behind its own push.
  if (model.adds == staleness::Adds::in_turn && !model) return 1;
  constexpr int first = 1 << 16;
  constexpr int last = 1 << 29;
  int most = 1;
  int needed = 0;
  int of_first_half = 0;
  for (int m = 0; m <= last; m < first ? ++m : m *= 2) {
    needed = std::max(needed, model.needs(model.policy, m));
    most = std::max(most, m / model.push_minibatches + 1 - needed);
    if (m < first / 2) of_first_half = most;
  }
  return most == of_first_half ? static_cast<std::uint32_t>(most) : WorkerRules::unlimited;
}

/// Refuses a model for steps by whose weights a worker would lack its own gradients.
[[noreturn]] [[gnu::cold]] inline void refuse_without_own(int needs, int m) {
  raise(Errc::bad_configuration, "the staleness model needs ", counted(needs, "push"),
        " of every worker at minibatch ", m,
        " and adds in the order of workers, so that a worker would lack its own; "
        "let it add on arrival, or push changes");
}

/// Refuses a staleness model that takes a mean, unless it is known to when compiled.
[[gnu::cold]] inline void require_pushes_in_steps(StalenessModel const& model) {
  if (averages(model.pushes))
    raise(Errc::bad_configuration,
          "a staleness model that pushes weights says so when it is compiled; take "
          "staleness::LocalSgd, or let the model push gradients or changes");
}
/// Refuses a staleness model whose steps would never get what they need.
[[gnu::cold]] inline void require_possible_steps(StalenessModel const& model) {
  bool const mean = averages(model.pushes);
  if (!mean && model.push_minibatches != 1)
    raise(Errc::bad_configuration,
          "a step is one push; let a staleness model that pushes several minibatches at a time "
          "be taken by stream: synchronous = false");
  if (mean && model.adds != staleness::Adds::in_worker_order)
    raise(Errc::bad_configuration,
          "a mean of weights is taken once all workers have pushed theirs; let the staleness "
          "model add in the order of workers");
  constexpr int looked_at = 256;  // minibatches for which the model is checked
  for (int m = 0; m < looked_at; ++m) {
    int const needs = std::max(0, model.needs(model.policy, m));
    int const made = m / model.push_minibatches;
    if (needs > made)
      raise(Errc::bad_configuration, "the staleness model needs ", counted(needs, "push"),
            " of every worker at minibatch ", m, ", before which a worker makes only ", made,
            "; let it need fewer");
    if (needs < made && model.pushes == staleness::Pushes::gradients &&
        model.adds == staleness::Adds::in_worker_order)
      refuse_without_own(needs, m);
  }
}

}  // namespace stagger::detail
