// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The planner that ranks plans by simulation instead of the closed estimate.
/// @source Candidates: Fan et al., "DAPPLE", PPoPP 2021, and the partitioners; the ranking, the
///         search around the best ones and the bound are our own.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/partition/block.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/partition/min_max.hpp>
#include <stagger/partition/pipe_dream.hpp>
#include <stagger/plan/baselines.hpp>
#include <stagger/plan/dapple.hpp>
#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/improve.hpp>
#include <stagger/plan/infeasible.hpp>
#include <stagger/plan/partitioned.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

/// Ranks plans by their simulated iteration, over partitions, replicas, placements, warm-up depths,
/// recomputation, sizes of microbatches, and gradients sent together or while backwards run. Never
/// slower, simulated, than Dapple's plan of the same request.
///
/// Candidates are the best of DAPPLE's search for each number of stages, the cuts of Block and of
/// Even for each number of stages, data parallelism, the stages of MinMax and PipeDream, and
/// `others`; then plans near the best of them. Microbatches of a quarter to four times the
/// profile's batch are tried, unless the request fixes their size. Their times are assumed to be
/// proportional to their samples.
struct Auto {
  long long budget = 600'000;      ///< closed estimates for each size of microbatch
  long long simulations = 12'000;  ///< drafts simulated around the best candidates
  std::vector<Draft> others{};     ///< from partitioners of the caller's choice

  /// @throws Infeasible  where nothing fits
  [[nodiscard]] Plan plan(Workload const& w) const { return std::move(shortlist(w).front().plan); }

  /// The best plan and those found from other candidates, the best first, with their drafts.
  /// @throws Infeasible  where nothing fits
  [[nodiscard]] std::vector<Candidate> shortlist(Workload const& w) const {
    Shortage shortage;
    auto found = search(w, shortage);
    if (!found.empty()) return found;
    throw infeasible(w, shortage, [&](Request const& r) {
      Shortage other;
      Auto const quick{.budget = 50'000, .simulations = 0};
      return !quick.search(Workload(w.profile(), w.cluster(), r), other).empty();
    });
  }

 private:
  [[nodiscard]] static std::vector<int> sizes(Workload const& w) {
    if (w.request().microbatch > 0) return {w.request().microbatch};
    int const b = w.profile().batch;
    std::vector<int> all{b};
    for (long long const size : {b / 2LL, b / 4LL, 2LL * b, 4LL * b})
      if (size >= 1 && size <= w.request().batch &&
          std::find(all.begin(), all.end(), size) == all.end())
        all.push_back(static_cast<int>(size));
    return all;
  }

  [[nodiscard]] std::vector<Candidate> search(Workload const& w, Shortage& shortage) const {
    Evaluator evaluator(w);
    std::vector<Candidate> best;  // rising in simulated time
    long long evaluated = 0;
    auto const consider = [&](Draft draft) {
      constexpr std::size_t few = 8;
      ++evaluated;
      draft.gradients = Gradients::overlapped;  // never slower than together
      auto plan = evaluator(draft, "auto");
      if (!plan) return;
      auto const place =
          std::upper_bound(best.begin(), best.end(), plan->simulated_s,
                           [](double s, Candidate const& c) { return s < c.plan.simulated_s; });
      best.insert(place, {std::move(draft), *std::move(plan)});
      if (best.size() > few) best.pop_back();
    };
    bool const forced = w.request().recompute;
    std::vector<Draft> drafts = others;
    auto const ask = [&](auto const& partitioned) {
      try {
        drafts.push_back(partitioned.draft(w));
      } catch (Error const&) {  // the partitioner does not support this cluster, or nothing fits
      }
    };
    ask(Partitioned<partition::PipeDream>{});
    ask(Partitioned<partition::MinMax>{
        {.any_order = !w.group(w.devices()).alike(), .most_states = 1U << 20}});
    for (bool const recompute : {false, true}) {
      if (!recompute && forced) continue;
      for (int const size : sizes(w)) {
        auto const add = [&](Draft draft) {
          draft.microbatch = size;
          draft.recompute = recompute;
          consider(std::move(draft));
        };
        detail::DappleSearch by_estimate(
            w, Form::corrected, recompute && !forced ? budget / 8 : budget, size, recompute, true);
        for (auto const& found : by_estimate.run()) add(found.draft);
        evaluated += by_estimate.evaluated();
        if (shortage.needed <= 0) shortage = by_estimate.shortage();
        auto const seconds = detail::layer_seconds(w);
        int const most = std::min(w.layers(), static_cast<int>(w.devices().size()));
        for (int S = 1; S <= most; ++S) {
          add(detail::in_order(w, partition::Block::cuts(seconds, S)));
          add(detail::in_order(w, partition::Even{S}.cuts(w.layers())));
        }
        for (Draft const& draft : drafts) add(draft);
      }
    }
    try {  // with Dapple's own budget, so that this plan is never slower than Dapple's
      Plan const dapple = Dapple{}.plan(w);
      evaluated += dapple.candidates;
      consider(draft_of(dapple, w.microbatch()));
    } catch (Infeasible const&) {  // another candidate may fit
    }
    if (best.empty()) return best;
    long long left = simulations;
    auto const starts = best.size();
    for (std::size_t i = 0; i < starts && left > 0; ++i) {
      long long const share = std::max(1LL, left / static_cast<long long>(starts - i));
      long long const used = improve(evaluator, best[i], share);
      left -= used;
      evaluated += used;
    }
    std::sort(best.begin(), best.end(), [](Candidate const& a, Candidate const& b) {
      if (a.plan.simulated_s != b.plan.simulated_s) return a.plan.simulated_s < b.plan.simulated_s;
      return a.plan.stages.size() < b.plan.stages.size();
    });
    Candidate& first = best.front();
    Draft plain = first.draft;
    plain.gradients = Gradients::together;
    auto together = evaluator(plain, "auto");
    if (together && together->simulated_s <= first.plan.simulated_s)
      first = {std::move(plain), *std::move(together)};
    for (Candidate& c : best) c.plan.candidates = evaluated;
    return best;
  }
};

}  // namespace stagger::plan
