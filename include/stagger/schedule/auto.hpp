// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Auto: the best order found for given costs and memory, with its distance from a proven bound.
/// @source In the spirit of the heuristics of Qi et al., arXiv 2401.10241, section 3; the exact search for small
///         pipelines and the bound are our own.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <stagger/schedule/bound.hpp>
#include <stagger/schedule/evaluate.hpp>
#include <stagger/schedule/exact.hpp>
#include <stagger/schedule/fill.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/schedule/zero_bubble_h2.hpp>

namespace stagger::schedule {

/// What the search found.
struct Found {
  Table table{};
  double makespan_s = 0;
  double lower_bound_s = 0;  ///< no order within the limits can beat this
  /// makespan / bound - 1; 0 proves the order optimal
  [[nodiscard]] constexpr double gap() const noexcept { return lower_bound_s > 0 ? makespan_s / lower_bound_s - 1 : 0; }
};

/// One stage on each rank, backwards split. Never worse than GPipe, 1F1B, ZB-H1 or ZB-H2 within the same limits, under
/// the same costs; the shortest of all orders for P <= 3 and M <= 4.
struct Auto {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  Costs costs{};    ///< for each stage, or the same for all
  Limits limits{};  ///< what a rank may hold

  /// One stage on each rank.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration, or bad_data for costs that are not finite and not negative
  [[nodiscard]] Table table(Shape shape) const { return search(shape).table; }

  /// The table with its makespan and bound.
  /// Complexity: O(PM log P) for each of 4 to 12 rules; beyond that, for P <= 3 and M <= 4, at most some 10^5 partial orders.
  [[nodiscard]] Found search(Shape shape) const {
    check(shape);
    Found best;
    best.makespan_s = std::numeric_limits<double>::infinity();
    auto const unlimited = limits.in_flight == 0 && limits.memory == 0;
    auto const consider = [&](Table const& whole) {
      Table table = detail::split_backwards(whole);
      if (!unlimited && !fits(table)) return;
      double const s = seconds(table);
      if (s >= best.makespan_s) return;
      best.makespan_s = s;
      best.table = std::move(table);
    };
    consider(ZeroBubbleH1{}.table(shape));
    best.lower_bound_s = lower_bound(best.table.stages > 0 ? best.table : detail::split_backwards(GPipe{}.table(shape)), costs, limits);
    auto const done = [&] { return best.makespan_s <= best.lower_bound_s * (1 + 1e-12); };
    if (!done()) consider(ZeroBubbleH2{}.table(shape));
    double longest_link = 0;
    for (int stage = 0; stage < shape.ranks; ++stage) longest_link = std::max(longest_link, costs.of(stage).transfer_s);
    int const limit = limits.in_flight > 0 ? limits.in_flight : static_cast<int>(std::min(limits.memory, 1e9));
    for (int gap = 1; gap <= (longest_link > 0 ? 4 : 2) && !done(); ++gap) {
      consider(OneFOneB{.warmup = static_cast<Warmup>(gap)}.table(shape));
      bool const binds = limit >= 1 && limit < gap * shape.ranks - (gap - 1);
      if (binds) consider(OneFOneB{.warmup = static_cast<Warmup>(gap), .in_flight = limit}.table(shape));
    }
    if (!done()) consider(GPipe{}.table(shape));

    auto const times = own_times(shape);
    double const actions = 3.0 * shape.ranks * shape.microbatches;
    int left = static_cast<int>(std::clamp(120000.0 / actions, 4.0, 12.0));
    for (detail::FillRule const& rule : rules()) {
      if (done() || left-- == 0) break;
      Table table = detail::fill(shape, times, limits, rule, best.makespan_s);
      if (table.stages > 0) best.table = std::move(table);
    }
    if (!done() && shape.ranks <= 3 && shape.microbatches <= 4) {
      Table table = detail::exact(shape, times, limits, best.makespan_s);
      if (table.stages > 0) best.table = std::move(table);
    }
    return best;
  }

 private:
  void check(Shape shape) const {
    require_counts("auto", shape, 1);
    require_costs(costs, shape.ranks);
    require(limits.in_flight >= 0, "auto", Count::in_flight, limits.in_flight, 1, "a limit is at least 1, or 0 for none");
    bool const memory = limits.memory == 0 || (limits.memory >= 1 && std::isfinite(limits.memory));
    if (!memory) {
      throw Error(Errc::bad_configuration, "schedule auto cannot have memory for " + std::to_string(limits.memory) +
                                               " activations; give at least 1, or 0 for no limit");
    }
    if (!(limits.weight_share >= 0 && limits.weight_share <= 1)) {
      throw Error(Errc::bad_configuration, "schedule auto cannot have a weight share of " + std::to_string(limits.weight_share) + "; give 0 to 1");
    }
  }

  /// Rules in the order in which they help, chosen over 1200 random shapes, costs and limits: each one is that which
  /// lowers the mean distance from the best of all 30 most, given those before it.
  [[nodiscard]] static std::vector<detail::FillRule> rules() {
    return {{2, 0.0, true}, {0, 0.5, true}, {0, 0.0, false}, {2, 0.5, true}, {2, 0.5, false}, {1, 0.0, true},
            {3, 0.0, true}, {2, 1.0, false}, {1, 0.5, false}, {2, 0.0, false}, {3, 0.5, false}, {4, 0.5, true}};
  }

  [[nodiscard]] std::vector<detail::StageTimes> own_times(Shape shape) const {
    return detail::stage_times(GPipe{}.table({shape.ranks, 1}), costs);
  }

  [[nodiscard]] double seconds(Table const& table) const {
    double last = 0;
    detail::play(table, detail::stage_times(table, costs), costs.overlap_s,
                 [&](std::size_t, std::size_t, double, double end, double) { last = std::max(last, end); });
    return last;
  }

  [[nodiscard]] bool fits(Table const& table) const {
    for (int r = 0; r < table.ranks(); ++r) {
      detail::Room room;
      for (Action const& a : table.row(r)) {
        if (a.kind == Kind::forward) {
          if (!room.takes(limits)) return false;
          room.held += 1;
          ++room.live;
        } else if (a.kind == Kind::backward_input) {
          room.held -= 1 - limits.weight_share;
        } else {
          room.held -= limits.weight_share;
          --room.live;
        }
      }
    }
    return true;
  }
};

static_assert(SchedulePolicy<Auto>);

}  // namespace stagger::schedule
