// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A search for better plans near a good one, by simulation.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/plan.hpp>

namespace stagger::plan {

/// A draft and its plan.
struct Candidate {
  Draft draft{};
  Plan plan{};
};

namespace detail {

/// Drafts one step away: a cut moved, a device given to a neighbour, two stages joined, a stage
/// split.
[[nodiscard]] inline std::vector<Draft> neighbours(Draft const& d) {
  std::vector<Draft> all;
  auto const& s = d.stages;
  for (std::size_t i = 0; i + 1 < s.size(); ++i) {
    for (int const by : {-1, 1, -2, 2, -4, 4}) {
      int const cut = s[i].end + by;
      if (cut <= s[i].first || cut >= s[i + 1].end) continue;
      Draft next = d;
      next.stages[i].end = next.stages[i + 1].first = cut;
      all.push_back(std::move(next));
    }
    for (bool const forth : {true, false}) {
      std::size_t const from = forth ? i : i + 1, to = forth ? i + 1 : i;
      if (s[from].devices.size() < 2) continue;
      Draft next = d;
      auto& source = next.stages[from].devices;
      auto& target = next.stages[to].devices;
      auto const moved = forth ? source.end() - 1 : source.begin();
      target.insert(std::upper_bound(target.begin(), target.end(), *moved), *moved);
      source.erase(moved);
      all.push_back(std::move(next));
    }
    Draft joined = d;
    auto& target = joined.stages[i];
    auto const& other = s[i + 1];
    target.end = other.end;
    target.devices.insert(target.devices.end(), other.devices.begin(), other.devices.end());
    std::sort(target.devices.begin(), target.devices.end());
    joined.stages.erase(joined.stages.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    all.push_back(std::move(joined));
  }
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i].devices.size() < 2 || s[i].end - s[i].first < 2) continue;
    Draft split = d;
    std::size_t const half = s[i].devices.size() / 2;
    int const middle = s[i].first + (s[i].end - s[i].first) / 2;
    auto const given = s[i].devices.begin() + static_cast<std::ptrdiff_t>(half);
    Assignment const behind{middle, s[i].end, {given, s[i].devices.end()}};
    split.stages[i].end = middle;
    split.stages[i].devices.resize(half);
    split.stages.insert(split.stages.begin() + static_cast<std::ptrdiff_t>(i) + 1, behind);
    all.push_back(std::move(split));
  }
  return all;
}

}  // namespace detail

/// Hill climbing: moves to better neighbours until there is none.
/// @param most  how many may be evaluated
/// @return      how many were
inline long long improve(Evaluator& evaluator, Candidate& best, long long most) {
  long long evaluated = 0;
  for (bool better = true; better;) {
    better = false;
    for (auto& draft : detail::neighbours(best.draft)) {
      if (evaluated >= most) return evaluated;
      ++evaluated;
      auto plan = evaluator(draft, best.plan.policy);
      if (!plan || !(plan->simulated_s < best.plan.simulated_s * (1 - 1e-9))) continue;
      best = {std::move(draft), *std::move(plan)};
      better = true;
      break;
    }
  }
  return evaluated;
}

}  // namespace stagger::plan
