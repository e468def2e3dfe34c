// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The policies that run a plan.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/schedule/early_backward.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger {

/// 1F1B with the warm-up that a plan has for each stage.
struct PlannedOrder {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;  ///< `table` ensures that no count rises

  std::vector<int> warm_up{1};  ///< [stages] forwards before the first backward

  /// One stage on each rank.
  [[nodiscard]] int chunks() const noexcept { return 1; }

  /// @throws Error  bad_configuration for another number of ranks than stages were planned,
  ///                bad_schedule for a count that is below 1 or rises
  [[nodiscard]] schedule::Table table(Shape shape) const {
    schedule::require_counts("a plan's order", shape, 1);
    if (std::cmp_not_equal(warm_up.size(), shape.ranks))
      raise(Errc::bad_configuration, "a plan of ", counted(warm_up.size(), "stage"),
            " cannot be run by ", counted(shape.ranks, "position"), "; cut the model as it says");
    for (std::size_t s = 0; s < warm_up.size(); ++s)
      if (warm_up[s] < 1 || (s > 0 && warm_up[s] > warm_up[s - 1]))
        raise(Errc::bad_schedule, "stage ", s, " of the plan runs ", warm_up[s],
              " forwards before its first backward; let no count be below 1 or rise");
    return schedule::detail::early_backward(shape, warm_up, 0, shape.ranks);
  }
};

static_assert(SchedulePolicy<PlannedOrder>);

/// Policies that run a plan; made by `planned`.
struct Planned {
  partition::Cuts cuts{};
  PlannedOrder schedule{};
  Options options{};  ///< with the plan's replicas and recomputation
  /// Rank r is on the r-th device of the plan's stages, numbered without gaps. Only for device
  /// policies with a place for each rank; with others, use the default placement.
  placement::ExplicitMap placement{};
  int microbatches = 1;  ///< to divide each batch into

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(placement.places.size()); }
};

/// The arguments of `Pipeline::with` that run a plan. The caller divides each batch into
/// `Planned::microbatches` of nearly equal size.
///
/// @code
///     Planned const run = planned(plan);
///     auto train = Pipeline{model}.with(run.cuts, run.schedule, run.options,
///                                       host::Threads{run.ranks()}, loss::CrossEntropy<>{});
/// @endcode
/// @param options  all options that a plan does not determine
/// @throws Error   bad_configuration for a plan without stages, or a stage without a device
[[nodiscard]] inline Planned planned(plan::Plan const& plan, Options options = {}) {
  if (plan.stages.empty())
    raise(Errc::bad_configuration, "a plan without stages cannot be run; plan first");
  Planned run;
  run.microbatches = plan.microbatches;
  run.schedule.warm_up.clear();
  std::vector<int> counts, devices;
  bool replicated = false;
  for (auto const& stage : plan.stages) {
    if (stage.devices.empty())
      raise(Errc::bad_configuration, "the stage of layers ", stage.first, " to ", stage.last,
            " has no device; give it one or more");
    if (stage.first > 0) run.cuts.first_layers.push_back(stage.first);
    run.schedule.warm_up.push_back(stage.warm_up);
    counts.push_back(stage.replicas());
    replicated = replicated || stage.replicas() > 1;
    devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  }
  std::vector<int> rising = devices;
  std::sort(rising.begin(), rising.end());
  for (int const device : devices)
    run.placement.places.push_back(
        static_cast<int>(std::lower_bound(rising.begin(), rising.end(), device) - rising.begin()));
  options.replicas = replicated ? Replicas::even(counts.data(), counts.size()) : Replicas{};
  options.recompute = plan.recompute;
  run.options = options;
  return run;
}

}  // namespace stagger
