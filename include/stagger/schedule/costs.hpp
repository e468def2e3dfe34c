// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The costs of actions and messages, for `evaluate`, the lower bound and the search.

#include <vector>

#include <stagger/core/error.hpp>

namespace stagger::schedule {

/// Costs of one stage and one microbatch. A full backward costs `backward_input_s +
/// backward_weight_s`; a sequence slice costs its share of the microbatch.
struct StageCosts {
  double forward_s = 1;          ///< F, seconds
  double backward_input_s = 1;   ///< I, seconds
  double backward_weight_s = 1;  ///< W, seconds
  double transfer_s = 0;         ///< C, seconds over the edge to the next stage, either direction
  double activation_bytes = 0;   ///< bytes held from F to B, or from F to I
  double weight_share = 0.5;     ///< part of `activation_bytes` that stays from I to W, 0 to 1
  double reduce_s = 0;  ///< REDUCE_GRAD, seconds after all holders of the stage have reached it
};

/// Costs of every stage: `stages[s]` where given, else `each`.
struct Costs {
  StageCosts each{};                 ///< used for every stage while `stages` is empty
  std::vector<StageCosts> stages{};  ///< [stages], or empty
  double overlap_s = -1;  ///< cost of an overlapped pair; negative: the sum of its two actions

  /// Costs of one stage.
  /// @pre `stages` is empty or 0 <= stage < stages.size()
  [[nodiscard]] constexpr StageCosts const& of(int stage) const noexcept {
    return stages.empty() ? each : stages.data()[stage];
  }

  /// The same F, I, W and C for every stage, in seconds.
  [[nodiscard]] static constexpr Costs uniform(double forward_s, double backward_input_s,
                                               double backward_weight_s, double transfer_s = 0) {
    return Costs{.each = {.forward_s = forward_s,
                          .backward_input_s = backward_input_s,
                          .backward_weight_s = backward_weight_s,
                          .transfer_s = transfer_s}};
  }
};

namespace detail {

[[nodiscard]] constexpr bool is_cost(double value) noexcept {
  return value >= 0 && value <= 1e300;  // refuses NaN and infinity as well
}

}  // namespace detail

/// Checks that there is a line for each of `stages` stages and that every number is finite and not
/// negative.
/// @throws Error bad_data, naming stage, field and value
constexpr void require_costs(Costs const& costs, int stages) {
  if (!costs.stages.empty() && static_cast<int>(costs.stages.size()) != stages) {
    raise(Errc::bad_data, "costs are given for ", counted(costs.stages.size(), "stage"),
          " but the table has ", stages, "; give one line per stage");
  }
  int const given = costs.stages.empty() ? 1 : stages;
  for (int s = 0; s < given; ++s) {
    StageCosts const& c = costs.of(s);
    auto const check = [s](char const* field, double value, double most = 1e300,
                           char const* rule = "costs must be finite and not negative") {
      if (!detail::is_cost(value) || value > most)
        raise(Errc::bad_data, "stage ", s, " has ", field, " = ", value, "; ", rule);
    };
    check("forward_s", c.forward_s);
    check("backward_input_s", c.backward_input_s);
    check("backward_weight_s", c.backward_weight_s);
    check("transfer_s", c.transfer_s);
    check("activation_bytes", c.activation_bytes);
    check("reduce_s", c.reduce_s);
    check("weight_share", c.weight_share, 1, "a share is from 0 to 1");
  }
  if (!(costs.overlap_s <= 1e300))
    raise(Errc::bad_data, "an overlapped pair has overlap_s = ", costs.overlap_s,
          "; it must be finite, or negative where a pair costs what its two actions cost");
}

}  // namespace stagger::schedule
