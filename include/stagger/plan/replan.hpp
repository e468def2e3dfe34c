// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A plan for the remaining devices after some were lost.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/plan/baselines.hpp>
#include <stagger/plan/dapple.hpp>
#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/improve.hpp>
#include <stagger/plan/infeasible.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

/// Plans again quickly: keeps the old stages as far as possible, simulates plans near them, and
/// compares these with a short search from scratch. Devices keep their numbers.
struct Replan {
  long long budget = 200'000;     ///< closed estimates
  long long simulations = 2'000;  ///< drafts around the old plan

  /// @param before  the plan that ran
  /// @param w       the same profile and cluster; its request leaves out the devices that are lost
  /// @throws Infeasible if nothing fits on the remaining devices
  /// @throws Error       mismatch for a plan whose stages are not the profile's layers in order
  [[nodiscard]] Plan plan(Plan const& before, Workload const& w) const {
    int planned = 0;  // layers
    for (PlanStage const& s : before.stages)
      if (s.first == planned && s.last >= s.first) planned = s.last + 1;
    if (planned != w.layers() || before.stages.back().last + 1 != planned)
      raise(Errc::mismatch, "the stages of the plan hold ", counted(planned, "layer"),
            " one after the other, the profile has ", w.layers(),
            "; give the profile that the plan was made for");
    Evaluator evaluator(w);
    std::optional<Candidate> best;
    long long evaluated = 0;
    auto const consider = [&](Draft draft) {
      ++evaluated;
      draft.recompute = before.recompute || w.request().recompute;
      auto plan = evaluator(draft, "replan");
      if (plan && (!best || plan->simulated_s < best->plan.simulated_s))
        best = Candidate{std::move(draft), *std::move(plan)};
    };
    for (auto& draft : kept(before, w)) consider(std::move(draft));
    if (w.layers() >= static_cast<int>(w.devices().size())) consider(detail::straight(w));
    consider({.stages = {{0, w.layers(), w.devices()}}, .gradients = Gradients::overlapped});
    detail::DappleSearch search(w, Form::corrected, budget, 0,
                                before.recompute || w.request().recompute, true);
    auto const found = search.run();
    evaluated += search.evaluated();
    for (std::size_t i = 0; i < found.size() && i < 4; ++i) consider(found[i].draft);
    if (!best) throw infeasible(w, search.shortage());
    evaluated += improve(evaluator, *best, simulations);
    best->plan.candidates = evaluated;
    return std::move(best->plan);
  }

 private:
  /// The old stages without the lost devices. A stage that has lost all its devices takes one of a
  /// neighbour's, or is merged with it.
  [[nodiscard]] static std::vector<Draft> kept(Plan const& before, Workload const& w) {
    Draft old = draft_of(before, 0);
    for (auto& s : old.stages)
      std::erase_if(s.devices, [&](int id) {
        return !std::binary_search(w.devices().begin(), w.devices().end(), id);
      });
    std::vector<Draft> all{old};
    for (std::size_t i = 0; i < old.stages.size(); ++i) {
      if (!old.stages[i].devices.empty()) continue;
      std::vector<Draft> next;
      auto const empty = [](Assignment const& s) { return s.devices.empty(); };
      for (Draft const& d : all) {
        for (std::size_t j = 0; j < d.stages.size(); ++j) {
          if (d.stages[j].devices.size() < 2) continue;
          Draft lent = d;  // each stage in between passes a device to the next
          auto& from = lent.stages[j].devices;
          auto const at = std::find_if(lent.stages.begin(), lent.stages.end(), empty);
          at->devices.push_back(from.back());
          from.pop_back();
          next.push_back(std::move(lent));
        }
        auto const at = std::find_if(d.stages.begin(), d.stages.end(), empty);
        auto const place = at - d.stages.begin();
        for (bool const forward : {true, false}) {
          if (forward ? at + 1 == d.stages.end() : place == 0) continue;
          Draft joined = d;
          auto const here = joined.stages.begin() + place;
          if (forward)
            (here + 1)->first = here->first;
          else
            (here - 1)->end = here->end;
          joined.stages.erase(here);
          next.push_back(std::move(joined));
        }
      }
      if (next.size() > 64) next.resize(64);
      all = std::move(next);
    }
    return all;
  }
};

}  // namespace stagger::plan
