// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A lower bound of the makespan that no order of the same actions on the same ranks can
///         beat.

#include <algorithm>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/detail/entries.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>

namespace stagger::schedule {

/// A lower bound of the makespan over all orders of a table's actions, backwards split or not, with
/// every stage where the table has it. For each rank, with stages from s to t, it is the largest
/// of:
///   - start-up: nothing runs before the first value arrives, and nothing but forwards before the
///     first gradient does;
///   - drain: all input gradients follow the first gradient, and the last of them still has to
///     reach the first stage;
///   - memory: an activation is held until its microbatch has reached the last stage and come
///     back, and memory is limited.
/// With slices, the first gradient waits for all forwards of its microbatch, and each slice is held
/// while the later ones are. Of bidirectional tables only the first part of the start-up counts.
/// @throws Error bad_data for costs that are not finite and not negative, bad_schedule for an empty
///         table
/// Complexity: linear in the number of actions; O(n log n) with an in-flight limit.
[[nodiscard]] constexpr double lower_bound(Table const& table, Costs const& costs = {},
                                           Limits limits = {}) {
  require_costs(costs, table.stages);
  detail::require_playable(table);
  detail::Times const times = detail::stage_times(table, costs);
  Grid<int> const owner = detail::owners(table);
  int const S = table.stages;
  bool const two_ways = std::find(owner.begin(), owner.end(), detail::several) != owner.end();
  bool pairs = false, backwards = false;
  for (Action const& a : table.actions) {
    pairs = pairs || a.overlaps_next;
    backwards = backwards || gives_input_gradient(a.kind);
  }
  pairs = pairs && costs.overlap_s >= 0;  // at a cost of their own
  detail::Times shortest = times;         // an action in a pair may take no longer than the pair
  if (pairs) {
    for (auto& t : shortest) {
      t.forward = std::min(t.forward, costs.overlap_s);
      t.input = std::min(t.input, costs.overlap_s);
    }
  }
  // head[s]: from the start to the first forward of stage s; back[s]: from a forward's start at s
  // to its gradient; down[s]: from a gradient of s to the end of stage 0's.
  Grid<double> head(S), back(S), down(S), rest(S);
  for (int s = 1; s < S; ++s) {
    head[s] = head[s - 1] + shortest[s - 1].forward + times[s].link_forward;
    down[s] = down[s - 1] + shortest[s - 1].input + times[s - 1].link_backward;
  }
  for (int s = S; s-- > 0;) {
    back[s] = shortest[s].forward;
    if (s + 1 == S) continue;
    back[s] +=
        times[s + 1].link_forward + back[s + 1] + shortest[s + 1].input + times[s].link_backward;
    rest[s] = times[s + 1].link_forward + shortest[s + 1].forward + rest[s + 1];
  }

  // The first gradient of a microbatch needs the forwards of all its slices, one after the other on
  // every rank.
  double slowest = 0;
  for (auto const& t : shortest) slowest = std::max(slowest, t.forward);
  double const queue = (table.slices - 1) * slowest;

  double bound = 0;
  for (int r = 0; r < table.ranks(); ++r) {
    double work_s = 0, inputs_s = 0;  // all actions of the rank, and all its backwards as I
    double held_s = 0, kept_s = 0;    // activation seconds from F to I, and from I to W
    std::vector<double> forwards;
    int first = S, last = -1;
    bool second = false;
    for (Action const& a : table.row(r)) {
      if (!is_compute(a.kind)) continue;
      int const s = a.stage;
      first = std::min(first, a.stage);
      last = std::max(last, a.stage);
      bool const paired = pairs && (second || a.overlaps_next);
      work_s += !paired ? times[s].of(a.kind) : second ? 0.0 : costs.overlap_s;
      second = a.overlaps_next;
      if (a.kind == Kind::forward) {
        forwards.push_back(times[s].forward);
        held_s += back[s] + shortest[s].input +  // and while later slices go and come back
                  (table.slices - 1 - a.slice) * (shortest[s].forward + shortest[s].input);
        kept_s += pairs ? 0.0 : times[s].weight;
      }
      if (gives_input_gradient(a.kind)) inputs_s += shortest[s].input;
    }
    if (last < 0) continue;
    double const begin = two_ways ? std::min(head[first], head[last]) : head[first];
    bound = std::max(bound, begin + work_s);
    if (two_ways) continue;
    if (!backwards) {
      bound = std::max(bound, begin + work_s + rest[last]);
      continue;
    }
    if (limits.in_flight > 0 && static_cast<int>(forwards.size()) > limits.in_flight) {
      std::sort(forwards.begin(), forwards.end(), [](double a, double b) { return a > b; });
      forwards.erase(forwards.begin() + limits.in_flight, forwards.end());
    }
    double early = 0;  // work before the first gradient, at most
    for (double const forward_s : forwards) early += forward_s;
    double const gradient = head[last] + back[last] + queue;  // when the first one can be here
    bound = std::max(bound, gradient + work_s - early);
    double const last_weight = pairs ? 0.0 : times[0].weight;
    bound = std::max(bound, gradient + inputs_s + down[first] + last_weight);
    if (limits.memory > 0)
      bound = std::max(bound, begin + (held_s + limits.weight_share * kept_s) / limits.memory);
    if (limits.in_flight > 0) bound = std::max(bound, begin + (held_s + kept_s) / limits.in_flight);
  }
  return bound;
}

}  // namespace stagger::schedule
