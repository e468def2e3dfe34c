// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The engine's data for gradient groups, and what back ends call of the part that adds
///         them up.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/collective/policy.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/step_part.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// A collective policy, its type erased.
struct GroupingChoice {
  using Groups = std::vector<collective::LayerGroup> (*)(void const* policy,
                                                         collective::Backward const&,
                                                         collective::CostLine);
  std::shared_ptr<void const> policy;
  Groups groups = nullptr;       // null: collective::grouping::Optimal
  int measured_steps = 5;        // steps whose medians it is given, after one warm-up step
  std::int64_t renew_every = 0;  // steps after which times are measured again; 0: never
  bool shard_optimizer = false;  // replicas in several processes each have a part of the state
  collective::By by = collective::By::slices;
};

template <class Collective, class Line = collective::CostLine> struct AskForGroups {
  static std::vector<collective::LayerGroup> of(void const* policy,
                                                collective::Backward const& backward, Line line) {
    return static_cast<Collective const*>(policy)->groups(backward, line);
  }
};

/// @throws Error  bad_configuration for counts below 0
template <SumPolicy Collective>
[[nodiscard]] [[gnu::cold]] GroupingChoice grouping_of(Collective collective) {
  if (collective.measured_steps < 0 || collective.renew_every < 0)
    raise(Errc::bad_configuration, "gradients cannot be grouped after ", collective.measured_steps,
          " steps and again after ", collective.renew_every, "; use counts of at least 0");
  auto const policy = std::make_shared<Collective const>(std::move(collective));
  return {policy,
          &AskForGroups<Collective>::of,
          policy->measured_steps,
          policy->renew_every,
          policy->shard_optimizer,
          policy->by};
}

/// The way in which processes that share a pipeline choose the same gradient groups. Null in one
/// process.
struct GroupingPeers {
  void* self = nullptr;
  /// Sends every process the times [groups] that were measured where the first holder of each group
  /// runs; elsewhere they are 0. Sums over several processes get the times of the line fitted to
  /// their link.
  void (*share)(void* self, double* backward_s, double* sum_s) = nullptr;
  /// Lets one process choose the groups for all. Null: each chooses, from the same times.
  void (*choose)(void* self, void (*choose)(Machine&), List<GradientGroup>& groups) = nullptr;
};

/// The current gradient groups, and the measurements for choosing them.
struct GroupingRun {
  enum class Phase : std::uint8_t {
    layers,   // every layer is a group, to measure backward and sums
    whole,    // every stage is a group, to measure sums of another size
    decided,  // the policy has chosen the groups
  };
  List<GradientGroup> groups;  // for the next program
  Phase phase = Phase::decided;
  bool taking = false;                  // whether the current step is measured
  bool warmed_up = false;               // whether the phase has had its warm-up step
  std::size_t steps = 0;                // steps measured in this phase
  std::int64_t decided_at = 0;          // step of the last decision
  List<double> backward_s;              // [steps][groups] on the first holder of the stage
  List<double> sum_s;                   // likewise
  List<double> layer_s;                 // [layers] medians
  List<double> sample_bytes, sample_s;  // of single sums

  /// Whether training steps are being measured to choose gradient groups.
  [[nodiscard]] bool measures() const noexcept {
    return phase != Phase::decided && !groups.empty();
  }
};

/// Gradient groups, which are added up, or pushed, while backward runs.
class GradientGroupPart : public StepPart {
 public:
  /// For back ends without a clock: records when such an instruction ran, in seconds since the step
  /// began.
  virtual void note(Machine&, RankState&, Instruction const&, double start_s, double end_s) = 0;
  /// The groups of the next program.
  [[nodiscard]] virtual List<GradientGroup> const* groups(Machine&) = 0;
};

}  // namespace stagger::detail
