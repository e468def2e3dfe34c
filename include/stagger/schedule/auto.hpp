// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Auto: the best order found for given costs and memory, with its distance from a proven
/// bound.
/// @source In the spirit of the heuristics of Qi et al., arXiv 2401.10241, section 3; the exact
/// search for small
///         pipelines and the bound are our own.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/schedule/bound.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/dual_pipe_v.hpp>
#include <stagger/schedule/evaluate.hpp>
#include <stagger/schedule/exact.hpp>
#include <stagger/schedule/fill.hpp>
#include <stagger/schedule/forward_only.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/hanayo.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/looped_bfs.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/rounds.hpp>
#include <stagger/schedule/rounds_v.hpp>
#include <stagger/schedule/v_1f1b.hpp>
#include <stagger/schedule/v_half.hpp>
#include <stagger/schedule/v_min.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/schedule/zero_bubble_h2.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>

namespace stagger::schedule {

/// What the search found.
struct Found {
  Table table{};
  double makespan_s = 0;
  double lower_bound_s = 0;  ///< no order within the limits can beat this
  /// makespan / bound - 1; 0 proves the order optimal
  [[nodiscard]] constexpr double gap() const noexcept {
    return lower_bound_s > 0 ? makespan_s / lower_bound_s - 1 : 0;
  }
};

/// Never worse, under the same costs, than any synchronous schedule of this library on the same
/// mapping that keeps the same limits, nor than the published zero-bubble heuristics. The shortest
/// of all orders without overlapped pairs for P <= 3 and M <= 4 with one stage on each rank; with
/// several (looped or zigzag) for PV <= 4 and M <= 4, and for PV <= 6 and M <= 2.
///
/// Microbatches stay whole: a slice has costs and memory of its own, so seq-1f1b answers another
/// question and is not considered. Of 1F1B's warm-ups all gaps up to 200 000 / (3PM) are tried, and
/// at least up to 4, or 2 without transfers; wider ones are left to the rules, which fill as far
/// ahead as the limits allow.
struct Auto {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  Costs costs{};                      ///< for each stage, or the same for all
  Limits limits{};                    ///< what a rank may hold
  int chunks_per_rank = 1;            ///< V >= 1
  Mapping mapping = Mapping::looped;  ///< zigzag: V even; bidirectional: V = 1, P and M even

  /// Stages on each rank, V.
  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  any P and M
  /// @throws Error bad_configuration, or bad_data for costs that are not finite and not negative
  [[nodiscard]] Table table(Shape shape) const { return search(shape).table; }

  /// The table with its makespan and bound.
  /// Complexity: O(PM log P) for each of 12 to 20 rules; beyond that, for P <= 3 and M <= 4, at
  /// most some 10^5 partial orders. With several chunks: O(PVM) for each legal group size; where
  /// exact, up to some tenths of a second.
  [[nodiscard]] Found search(Shape shape) const {
    check(shape);
    if (shape.chunks > 1 || mapping == Mapping::bidirectional) return search_chunks(shape);
    Found best;
    best.makespan_s = std::numeric_limits<double>::infinity();
    auto const unlimited = limits.in_flight == 0 && limits.memory == 0;
    auto const keep = [&](Table&& table) {
      if (table.stages == 0 || (!unlimited && !fits(table))) return;
      double const s = seconds(table);
      if (s >= best.makespan_s) return;
      best.makespan_s = s;
      best.table = std::move(table);
    };
    auto const consider = [&](Table const& whole) { keep(detail::split_backwards(whole)); };
    consider(ZeroBubbleH1{}.table(shape));
    best.lower_bound_s = lower_bound(
        best.table.stages > 0 ? best.table : detail::split_backwards(GPipe{}.table(shape)), costs,
        limits);
    auto const done = [&] { return best.makespan_s <= best.lower_bound_s * (1 + 1e-12); };
    if (!done()) consider(ZeroBubbleH2{}.table(shape));
    double longest_link = 0;
    for (int stage = 0; stage < shape.ranks; ++stage)
      longest_link = std::max(longest_link, costs.of(stage).transfer_s);
    int const limit =
        limits.in_flight > 0 ? limits.in_flight : static_cast<int>(std::min(limits.memory, 1e9));
    double const actions = 3.0 * shape.ranks * shape.microbatches;
    int gaps = std::max(longest_link > 0 ? 4 : 2,
                        static_cast<int>(std::min(200000 / actions, shape.microbatches - 1.0)));
    // Under a limit, wider gaps than this make the same table.
    int const widest = limit >= shape.ranks ? limit - shape.ranks + 1 : limit;
    if (limit >= 1) gaps = std::min(gaps, widest);
    for (int gap = 1; gap <= gaps && !done(); ++gap) {
      auto const warmup = static_cast<Warmup>(gap);
      int const wanted = std::min(gap * (shape.ranks - 1) + 1, shape.microbatches);
      consider(limit >= 1 && limit < wanted
                   ? OneFOneB{.warmup = warmup, .in_flight = limit}.table(shape)
                   : OneFOneB{.warmup = warmup}.table(shape));
    }
    if (!done()) consider(GPipe{}.table(shape));

    auto const times = own_times(shape);
    int left = static_cast<int>(std::clamp(120000.0 / actions, 4.0, 12.0));
    for (detail::FillRule const& rule : rules()) {
      if (done() || left-- == 0) break;
      Table table = detail::fill(shape, times, limits, rule, best.makespan_s);
      if (table.stages > 0) best.table = std::move(table);
    }
    for (unsigned ways = 0; ways < 8 && !done(); ++ways) {
      detail::RoundRule const rule{(ways & 1U) != 0, (ways & 2U) != 0, (ways & 4U) != 0};
      keep(detail::Rounds(shape, times, limits, rule, best.makespan_s).table());
    }
    if (!done() && shape.ranks <= 3 && shape.microbatches <= 4) {
      std::vector<std::size_t> owner;
      for (std::size_t s = 0; s < times.size(); ++s) owner.push_back(s);
      Table table = detail::exact(shape, times, owner, limits, best.makespan_s);
      if (table.stages > 0) best.table = std::move(table);
    }
    return best;
  }

 private:
  /// Several chunks, or two directions: the schedules of the mapping, each as it is and with its
  /// weight gradients laid anew, and the order in which forwards and backwards of all chunks run as
  /// soon as they can.
  [[nodiscard]] Found search_chunks(Shape shape) const {
    int const P = shape.ranks, M = shape.microbatches, V = shape.chunks;
    Found best;
    best.makespan_s = std::numeric_limits<double>::infinity();
    std::vector<detail::StageTimes> times;
    auto const keep = [&](Table&& table) {
      if (table.stages == 0 || !fits(table)) return;
      double const s = seconds(table);
      if (s >= best.makespan_s) return;
      best.makespan_s = s;
      best.table = std::move(table);
    };
    auto const consider = [&](Table const& whole) {
      Table table = detail::split_backwards(whole);
      bool const pairs = std::any_of(table.actions.begin(), table.actions.end(),
                                     [](Action const& a) { return a.overlaps_next; });
      if (times.empty()) {
        times = detail::stage_times(table, costs);
        best.lower_bound_s = lower_bound(table, costs, limits);
      }
      if (!pairs) {
        for (double const part : {1.0, 0.5, 0.0}) keep(detail::refill(table, times, limits, part));
      }
      keep(std::move(table));
    };
    std::vector<detail::Lane> lanes;
    bool const turns = mapping == Mapping::zigzag, two_ways = mapping == Mapping::bidirectional;
    auto const owner = [P, turns](int s) {
      return turns && s / P % 2 == 1 ? P - 1 - s % P : s % P;
    };
    // Windows down to one microbatch in flight: the last one fits whatever else does.
    for (int window = M; window >= 1; window = window > 2 * P ? 2 * P
                                               : window > P   ? P
                                                              : window / 2) {
      lanes.clear();
      if (two_ways) {
        int const each = (window + 1) / 2;
        detail::add_lanes(lanes, P, 0, M / 2, each, [](int s) { return s; });
        detail::add_lanes(lanes, P, M / 2, M, each, [P](int s) { return P - 1 - s; });
      } else {
        detail::add_lanes(lanes, shape.stages(), 0, M, window, owner);
      }
      auto const better = [](detail::Candidate const& a, detail::Candidate const& b,
                             std::vector<detail::Lane> const& all) {
        auto const key = [&](detail::Candidate const& c) {
          int const rank = c.kind == Kind::backward_input ? 0 : c.kind == Kind::forward ? 1 : 2;
          return std::tuple(rank, c.microbatch - all[c.lane].first, -all[c.lane].stage, c.lane);
        };
        return key(a) < key(b);
      };
      consider(detail::greedy(lanes, shape, costs, detail::Backwards::split, better));
    }
    if (two_ways) {
      consider(Chimera{}.table(shape));
      if (M >= 2 * P) consider(DualPipe{}.table(shape));
    } else if (!turns) {
      for (int group = 0; group <= M; group = group == 0 ? P : group + 1) {
        bool const legal =
            group == 0 ? M % std::max(1, M / P) == 0 : M >= P && (M % group == 0 || M % group >= P);
        if (!legal) continue;
        consider(Interleaved{.chunks_per_rank = V, .group = group}.table(shape));
        consider(ZeroBubbleH1{.chunks_per_rank = V, .group = group}.table(shape));
      }
      consider(LoopedBfs{.chunks_per_rank = V}.table(shape));
    } else {
      if (V == 2) {
        consider(ZeroBubbleV{}.table(shape));
        consider(VHalf{}.table(shape));
        consider(VMin{}.table(shape));
        consider(V1F1B{}.table(shape));
        if (M >= 2 * P) consider(DualPipeV{}.table(shape));
        consider_rounds(shape, times, consider);
      }
      if (M % P == 0) consider(Hanayo{.waves = V / 2}.table(shape));
    }
    if (!two_ways && shape.stages() <= 6 && M <= (shape.stages() <= 4 ? 4 : 2) &&
        best.makespan_s > best.lower_bound_s * (1 + 1e-12)) {
      std::vector<std::size_t> rank_of;
      for (int s = 0; s < shape.stages(); ++s)
        rank_of.push_back(static_cast<std::size_t>(owner(s)));
      Table table = detail::exact(shape, times, rank_of, limits, best.makespan_s);
      if (table.stages > 0) best.table = std::move(table);
    }
    if (best.table.stages == 0) {
      throw Error(Errc::bad_configuration,
                  "schedule auto found no order within the limits; give each rank room for " +
                      std::to_string(two_ways ? 2 : V) + " activations or more");
    }
    return best;
  }

  /// The published rules for a V know one cost for all stages: here the mean, and each its own.
  template <class Consider>
  void consider_rounds(Shape shape, std::vector<detail::StageTimes> const& times,
                       Consider&& consider) const {
    detail::StageTimes mean;
    for (detail::StageTimes const& t : times) {
      mean.forward += t.forward / static_cast<double>(times.size());
      mean.input += t.input / static_cast<double>(times.size());
      mean.weight += t.weight / static_cast<double>(times.size());
    }
    std::vector<detail::StageTimes> alike(times.size(), mean);
    for (std::size_t s = 0; s < times.size(); ++s) {
      alike[s].link_forward = times[s].link_forward;
      alike[s].link_backward = times[s].link_backward;
    }
    for (unsigned ways = 0; ways < 8; ++ways) {
      std::vector<double> spare;
      double least = std::numeric_limits<double>::infinity();
      for (;;) {  // again with the idle time of the run before, as long as that falls
        detail::RoundsV rounds(shape, (ways & 4U) != 0 ? times : alike, limits, (ways & 1U) != 0,
                               (ways & 2U) != 0, spare);
        Table const table = rounds.table();
        if (table.stages == 0) break;
        consider(table);
        spare = rounds.idle();
        double const most = *std::max_element(spare.begin(), spare.end());
        if (most >= least) break;
        least = most;
      }
    }
  }

  void check(Shape shape) const {
    require_counts("auto", shape, chunks_per_rank);
    require(mapping != Mapping::zigzag || shape.chunks % 2 == 0, "auto", Count::chunks,
            shape.chunks, shape.chunks + 1, "zigzag needs an even number of them");
    if (mapping == Mapping::bidirectional) {
      require(shape.chunks == 1, "auto", Count::chunks, shape.chunks, 1,
              "the bidirectional mapping has one");
      require(shape.ranks % 2 == 0, "auto", Count::ranks, shape.ranks, shape.ranks + 1,
              "ranks pair up from both ends, so their number is even");
      require(shape.microbatches % 2 == 0, "auto", Count::microbatches, shape.microbatches,
              shape.microbatches + 1, "half of them enter at each end, so their number is even");
    }
    require_costs(costs, shape.stages());
    require(limits.in_flight >= 0, "auto", Count::in_flight, limits.in_flight, 1,
            "a limit is at least 1, or 0 for none");
    bool const memory = limits.memory == 0 || (limits.memory >= 1 && std::isfinite(limits.memory));
    if (!memory) {
      throw Error(Errc::bad_configuration, "schedule auto cannot have memory for " +
                                               std::to_string(limits.memory) +
                                               " activations; give at least 1, or 0 for no limit");
    }
    if (!(limits.weight_share >= 0 && limits.weight_share <= 1)) {
      throw Error(Errc::bad_configuration, "schedule auto cannot have a weight share of " +
                                               std::to_string(limits.weight_share) +
                                               "; give 0 to 1");
    }
  }

  /// Rules in the order in which they help, chosen over 1200 random shapes, costs and limits: each
  /// one is that which lowers the mean distance from the best of all 30 most, given those before
  /// it.
  [[nodiscard]] static std::vector<detail::FillRule> rules() {
    return {{2, 0.0, true},  {0, 0.5, true},  {0, 0.0, false}, {2, 0.5, true},
            {2, 0.5, false}, {1, 0.0, true},  {3, 0.0, true},  {2, 1.0, false},
            {1, 0.5, false}, {2, 0.0, false}, {3, 0.5, false}, {4, 0.5, true}};
  }

  [[nodiscard]] std::vector<detail::StageTimes> own_times(Shape shape) const {
    return detail::stage_times(GPipe{}.table({shape.ranks, 1}), costs);
  }

  [[nodiscard]] double seconds(Table const& table) const {
    double last = 0;
    detail::play(
        table, detail::stage_times(table, costs), costs.overlap_s,
        [&](std::size_t, std::size_t, double, double end, double) { last = std::max(last, end); });
    return last;
  }

  [[nodiscard]] bool fits(Table const& table) const {
    for (int r = 0; r < table.ranks(); ++r) {
      detail::Room room;
      for (Action const& a : table.row(r)) {
        if (a.kind == Kind::forward && !room.takes(limits)) return false;
        room.run(a.kind, limits);
      }
    }
    return true;
  }
};

static_assert(SchedulePolicy<Auto>);

}  // namespace stagger::schedule
