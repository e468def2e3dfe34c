// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plans for a schedule of the caller's choice.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/improve.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/workload.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

namespace stagger::plan {

/// Ranks Auto's candidates, and what lies around the best of them, by the iteration of any schedule
/// that flushes and has one stage on each rank, such as schedule::ZeroBubbleH1.
///
/// Transfers are pure delay, as in schedule::evaluate. Gradients follow a stage's last action. A
/// microbatch is held from its forward to the end of its backward.
template <SchedulePolicy Schedule> struct Scheduled {
  static_assert(Schedule::flushes,
                "plans are for schedules that flush: the gradients of an "
                "iteration are summed before its step");
  Schedule schedule{};
  Auto search{};
  long long simulations = 200;  ///< tables around the best candidate

  /// @throws Infeasible  where nothing fits in the order of early backward
  /// @throws Error       bad_configuration where the schedule takes none of the candidates
  [[nodiscard]] Plan plan(Workload const& w) const {
    auto const candidates = search.shortlist(w);
    Evaluator evaluator(w);
    std::optional<Candidate> best;
    std::string why = "it has several stages on a rank";
    auto const consider = [&](Draft const& draft) {
      auto plan = evaluator(draft, "auto");
      if (!plan) return false;
      try {
        if (!play(*plan, evaluator.times(), w)) {
          why = "it holds more microbatches than fit";
          return false;
        }
      } catch (Error const& error) {  // not for this number of stages or microbatches
        why = error.what();
        return false;
      }
      if (best && !(plan->simulated_s < best->plan.simulated_s * (1 - 1e-9))) return false;
      best = Candidate{draft, *std::move(plan)};
      return true;
    };
    if (schedule.chunks() == 1)
      for (auto const& c : candidates) consider(c.draft);
    if (!best)
      raise(Errc::bad_configuration, "no plan suits the schedule: ", why,
            "; choose another schedule");
    long long left = simulations;
    for (bool better = true; better && left > 0;) {
      better = false;
      for (auto const& draft : detail::neighbours(best->draft)) {
        if (left-- <= 0) break;
        better = consider(draft);
        if (better) break;
      }
    }
    best->plan.candidates = candidates.front().plan.candidates + simulations - std::max(0LL, left);
    return std::move(best->plan);
  }

 private:
  /// Puts the schedule's time, depths and memory into a plan; false where it does not fit.
  bool play(Plan& plan, std::vector<StageTime> const& times, Workload const& w) const {
    int const S = static_cast<int>(plan.stages.size());
    schedule::Table const table = schedule.table({.ranks = S, .microbatches = plan.microbatches});
    schedule::Costs costs;
    for (int i = 0; i < S; ++i) {
      auto const u = static_cast<std::size_t>(i);
      PlanStage const& stage = plan.stages[u];
      double const weight = times[2 * u].backward_s * weight_share(stage, plan, w);
      costs.stages.push_back({.forward_s = times[2 * u].forward_s,
                              .backward_input_s = times[2 * u].backward_s - weight,
                              .backward_weight_s = weight,
                              .transfer_s = stage.transfer_s});
    }
    auto const played = schedule::evaluate(table, costs);
    plan.simulated_s = 0;
    for (std::size_t r = 0; r < played.timeline.rows.size(); ++r) {
      auto const& row = played.timeline.rows[r];
      PlanStage& stage = plan.stages[r];
      plan.simulated_s = std::max(plan.simulated_s, row.back().end_s + stage.time.all_reduce_s);
      stage.memory_bytes += (played.peak_in_flight[r] - stage.warm_up) * stage.activation_bytes;
      if (stage.memory_bytes > stage.capacity_bytes) return false;
      stage.warm_up = 0;
      while (row[static_cast<std::size_t>(stage.warm_up)].action.kind == schedule::Kind::forward &&
             static_cast<std::size_t>(stage.warm_up) + 1 < row.size())
        ++stage.warm_up;
    }
    // The bound for more than one stage counts whole backwards; split ones may beat it.
    plan.lower_bound_s =
        std::min(plan.lower_bound_s, w.one_device_s() / static_cast<double>(w.devices().size()));
    plan.gap = plan.lower_bound_s > 0 ? plan.simulated_s / plan.lower_bound_s - 1 : 0;
    return true;
  }

  /// Part of a stage's backward that is the weight gradient.
  [[nodiscard]] static double weight_share(PlanStage const& stage, Plan const& plan,
                                           Workload const& w) {
    double weight = 0, all = 0;
    for (int l = stage.first; l <= stage.last; ++l) {
      auto const t =
          w.cluster().times(w.profile().layers[static_cast<std::size_t>(l)], stage.devices.front());
      weight += t.backward_weight_s;
      all += t.backward_s + (plan.recompute ? t.forward_s : 0);
    }
    return all > 0 ? weight / all : 0;
  }
};

}  // namespace stagger::plan
