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
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/schedule/catalog.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/proof/bound.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/search/exact.hpp>
#include <stagger/schedule/search/fill.hpp>
#include <stagger/schedule/search/fill_chunks.hpp>
#include <stagger/schedule/search/rounds.hpp>
#include <stagger/schedule/search/rounds_v.hpp>
#include <stagger/schedule/search/warm_ups.hpp>

namespace stagger::schedule {

/// What the search found.
struct Found {
  Table table{};
  double makespan_s = 0;
  /// no order within the limits can beat this, without overlapped pairs or with those that a
  /// schedule of the mapping has
  double lower_bound_s = 0;
  /// makespan / bound - 1; 0 proves the order optimal
  [[nodiscard]] constexpr double gap() const noexcept {
    return lower_bound_s > 0 ? makespan_s / lower_bound_s - 1 : 0;
  }
};

/// Never worse, under the same costs, than any synchronous schedule of this library on the same
/// mapping that keeps the same limits, whatever its parameters, nor than the published zero-bubble
/// heuristics. The shortest of all orders without overlapped pairs for P <= 3 and MS <= 4 with one
/// stage on each rank; with several (looped or zigzag) for PV <= 4 and M <= 4, and for PV <= 6 and
/// M <= 2. A limit on memory is used to the last half of an activation.
///
/// A microbatch is whole unless the stages can run slices of it. With S slices, limits count slices
/// as `peak_in_flight` does, and the schedules it is held against are those that cut microbatches
/// into as many.
struct Auto {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  Costs costs{};                      ///< for each stage, or the same for all
  Limits limits{};                    ///< what a rank may hold
  int chunks_per_rank = 1;            ///< V >= 1
  Mapping mapping = Mapping::looped;  ///< zigzag: V even; bidirectional: V = 1, P and M even
  int slices = 1;                     ///< S >= 1, sequence slices of a microbatch; above 1: V = 1

  /// Stages on each rank, V.
  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  any P and M
  /// @throws Error bad_configuration, or bad_data for costs that are not finite and not negative
  [[nodiscard]] Table table(Shape shape) const { return search(shape).table; }

  /// The table with its makespan and bound.
  /// Complexity: O(PMS log P) for each of 12 to 20 rules, and O(PMS) for each range of 1F1B's
  /// warm-ups that has to be looked at, none where weight gradients fill the gaps; with room for
  /// fewer than P microbatches also OneFOneB's search of counts for each limit that could help,
  /// together about a second at P = 64. Beyond that, for P <= 3 and MS <= 4, at most some 10^5
  /// partial orders. With several chunks: O(PVM) for each legal group size; where exact, up to some
  /// tenths of a second.
  [[nodiscard]] Found search(Shape shape) const {
    check(shape);
    if (shape.chunks > 1 || mapping == Mapping::bidirectional) return search_chunks(shape);
    // Slices run as microbatches of their own would, save that the last rank's gradients come in
    // blocks of S: units here. Any order of them can be renamed so that each stage takes forwards
    // in rising order, and backwards by microbatches and in each from its last slice to its first.
    Shape const units{shape.ranks, shape.microbatches * slices};
    auto const times = unit_times(shape);
    Found best;
    best.makespan_s = std::numeric_limits<double>::infinity();
    auto const unlimited = limits.in_flight == 0 && limits.memory == 0;
    auto const keep = [&](Table&& table) {
      if (table.stages == 0 || (!unlimited && !fits(table))) return;
      double const s = seconds(table, times);
      if (s >= best.makespan_s) return;
      best.makespan_s = s;
      best.table = std::move(table);
    };
    best.lower_bound_s =
        lower_bound(cut(detail::split_backwards(GPipe{}.table(units)), shape), costs, limits);
    auto const done = [&] { return best.makespan_s <= best.lower_bound_s * (1 + 1e-12); };
    auto const take = [&](std::vector<int> const& counts) {
      if (counts.empty()) return;
      best.table = detail::split_backwards(detail::early_backward(units, counts, 0, shape.ranks));
      if (slices > 1) {
        for (double const part : {1.0, 0.5, 0.0})
          keep(detail::refill(best.table, times, limits, part));
      }
    };
    if (slices == 1) {
      each_published(units, [&](Table const& table) { keep(detail::split_backwards(table)); });
    }
    detail::WarmUps warm_ups(units, slices, times, limits);
    for (int gap = 1; gap <= 4 && !done(); ++gap) take(warm_ups.gap(gap, best.makespan_s));
    if (!done()) keep(detail::split_backwards(GPipe{}.table(units)));

    double const actions = 3.0 * units.ranks * units.microbatches;
    int left = static_cast<int>(std::clamp(120000.0 / actions, 4.0, 12.0));
    for (detail::FillRule const& rule : rules()) {
      if (done() || left-- == 0) break;
      Table table = detail::fill(units, times, limits, rule, best.makespan_s, slices);
      if (table.stages > 0) best.table = std::move(table);
    }
    for (unsigned ways = 0; slices == 1 && ways < 8 && !done(); ++ways) {
      detail::RoundRule const rule{(ways & 1U) != 0, (ways & 2U) != 0, (ways & 4U) != 0};
      keep(detail::Rounds(units, times, limits, rule, best.makespan_s).table());
    }
    if (!done()) take(warm_ups.shortest(best.makespan_s));
    if (!done() && units.ranks <= 3 && units.microbatches <= 4) {
      std::vector<std::size_t> owner;
      for (std::size_t s = 0; s < times.size(); ++s) owner.push_back(s);
      Table table = detail::exact(units, times, owner, limits, best.makespan_s, slices);
      if (table.stages > 0) best.table = std::move(table);
    }
    require_found(best, slices);
    best.table = cut(std::move(best.table), shape);
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
      double const s = seconds(table, times);
      if (s >= best.makespan_s) return;
      best.makespan_s = s;
      best.table = std::move(table);
    };
    auto const consider = [&](Table whole) {
      // A pair that costs what its parts cost ends no sooner than they do one after the other.
      for (Action& a : whole.actions) a.overlaps_next = a.overlaps_next && costs.overlap_s >= 0;
      Table table = detail::split_backwards(whole);
      bool const pairs = std::any_of(table.actions.begin(), table.actions.end(),
                                     [](Action const& a) { return a.overlaps_next; });
      if (times.empty()) {
        times = detail::stage_times(table, costs);
        best.lower_bound_s = lower_bound(table, costs, limits);
      }
      if (pairs)
        best.lower_bound_s = std::min(best.lower_bound_s, lower_bound(table, costs, limits));
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
    std::vector<std::size_t> rank_of;
    for (int s = 0; s < shape.stages(); ++s) rank_of.push_back(static_cast<std::size_t>(owner(s)));
    for (int s = 0; two_ways && s < P; ++s) rank_of.push_back(static_cast<std::size_t>(P - 1 - s));
    for (detail::ChunkRule const& rule : chunk_rules(shape)) {
      if (best.makespan_s <= best.lower_bound_s * (1 + 1e-12)) break;
      Table table = detail::FillChunks(shape, rank_of, times, limits, rule).table(best.makespan_s);
      if (table.stages > 0) consider(std::move(table));
    }
    each_published(shape, consider);
    if ((turns || (P == 1 && !two_ways)) && V == 2) consider_rounds(shape, times, consider);
    if (!two_ways && shape.stages() <= 6 && M <= (shape.stages() <= 4 ? 4 : 3) &&
        best.makespan_s > best.lower_bound_s * (1 + 1e-12)) {
      // To be exact with six stages and three microbatches would take seconds.
      std::size_t const most = M == 3 && shape.stages() > 4 ? 300 : 0;
      Table table = detail::exact(shape, times, rank_of, limits, best.makespan_s, 1, most);
      if (table.stages > 0) best.table = std::move(table);
    }
    require_found(best, two_ways ? 2 : V);
    return best;
  }

  /// Calls `with(table)` for each schedule of the catalog with this mapping, for each group size
  /// that makes a difference.
  template <class With> void each_published(Shape shape, With const& with) const {
    bool const two_ways = mapping == Mapping::bidirectional;
    for_each_line([&]<class P>(CatalogLine<P> const& line) {
      if constexpr (P::flushes && !requires(P policy) { policy.slices; }) {
        bool const alike = shape.ranks == 1 && !two_ways;  // looped and zigzag
        bool const here =
            line.mapping == mapping || (alike && line.mapping != Mapping::bidirectional);
        P policy = detail::with_chunks<P>(shape.chunks);
        if (!line.trains || !here || policy.chunks() != shape.chunks) return;
        auto const made = [&] {
          Table table;
          try {
            table = policy.table(shape);
          } catch (Error const&) {  // not for this shape
            return false;
          }
          with(table);
          return true;
        };
        bool legal = made();
        if constexpr (requires { policy.group; }) {
          int const most = shape.chunks > 1 || !legal ? shape.microbatches : 0;
          for (policy.group = shape.ranks; policy.group <= most; ++policy.group) {
            legal = made();
            if (legal && shape.chunks == 1) break;  // where all groups are alike
          }
        }
      }
    });
  }

  static void require_found(Found const& best, int least) {
    if (best.table.stages > 0) return;
    raise(Errc::bad_configuration,
          "schedule auto found no order within the limits; give each rank room for ", least,
          " activations or more");
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
    require(slices >= 1, "auto", Count::slices, slices, 1, "a microbatch has at least one slice");
    require(slices == 1 || (shape.chunks == 1 && mapping == Mapping::looped), "auto", Count::slices,
            slices, 1, "microbatches are cut where each rank has one stage");
    long long const most = ((1LL << 31) - 1) / 4 / shape.ranks / shape.microbatches;
    int const cuts = static_cast<int>(std::min(32767LL, most / std::max(1, shape.chunks)));
    require(slices <= cuts, "auto", Count::slices, slices, cuts,
            "slices are counted in 15 bits and actions in 31");
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
      raise(Errc::bad_configuration, "schedule auto cannot have memory for ", limits.memory,
            " activations; give at least 1, or 0 for no limit");
    }
    if (!(limits.weight_share >= 0 && limits.weight_share <= 1)) {
      raise(Errc::bad_configuration, "schedule auto cannot have a weight share of ",
            limits.weight_share, "; give 0 to 1");
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

  /// Likewise for several chunks, over 400 of them; windows as parts of the way and of the limits.
  [[nodiscard]] std::vector<detail::ChunkRule> chunk_rules(Shape shape) const {
    int const P = shape.ranks;
    double const room = limits.memory > 0 ? limits.memory : limits.in_flight;
    int const stages = mapping == Mapping::bidirectional ? 2 : shape.chunks;
    int const roomy = room > 0 ? std::max(1, static_cast<int>(1.5 * room / stages)) : 2;
    return {{true, true, 1.0, 3 * P / 4 + 1},  {true, true, 1.0, roomy},
            {false, true, 1.0, P / 2 + 1},     {true, false, 0.5, roomy},
            {true, true, 0.5, P + 1},          {false, true, 1.0, roomy},
            {false, true, 0.5, 5 * P / 4 + 1}, {false, false, 1.0, P / 4 + 1},
            {true, true, 0.0, 3 * P / 2 + 1},  {false, true, 1.0, 3 * P / 4 + 1},
            {true, true, 0.5, P / 2 + 1},      {true, true, 0.0, roomy},
            {true, false, 1.0, 5 * P / 4 + 1}, {false, true, 0.0, 0},
            {false, true, 1.0, 5 * P / 4 + 1}, {true, true, 1.0, P / 2 + 1}};
  }

  /// [P], of a slice.
  [[nodiscard]] std::vector<detail::StageTimes> unit_times(Shape shape) const {
    Table one = GPipe{}.table({shape.ranks, 1});
    one.slices = slices;
    return detail::stage_times(one, costs);
  }

  /// Units as slices of microbatches.
  [[nodiscard]] Table cut(Table&& table, Shape shape) const {
    if (slices == 1) return std::move(table);
    table.microbatches = shape.microbatches;
    table.slices = slices;
    for (Action& a : table.actions) {
      int const slice = a.microbatch % slices;
      a.microbatch /= slices;
      a.slice = static_cast<std::int16_t>(a.kind == Kind::forward ? slice : slices - 1 - slice);
    }
    return std::move(table);
  }

  [[nodiscard]] double seconds(Table const& table,
                               std::vector<detail::StageTimes> const& times) const {
    double last = 0;
    detail::play(
        table, times, costs.overlap_s,
        [&](std::size_t, std::size_t, double, double end, double) { last = std::max(last, end); });
    return last;
  }

  /// In a pair the forward takes its room before the backward gives its own back.
  [[nodiscard]] bool fits(Table const& table) const {
    for (int r = 0; r < table.ranks(); ++r) {
      detail::Room room;
      Action const* held = nullptr;  // first of a pair
      for (Action const& a : table.row(r)) {
        if (a.overlaps_next && a.kind != Kind::forward) {
          held = &a;
          continue;
        }
        if (a.kind == Kind::forward && !room.takes(limits)) return false;
        room.run(a.kind, limits);
        if (held != nullptr) room.run(held->kind, limits);
        held = nullptr;
      }
    }
    return true;
  }
};

static_assert(SchedulePolicy<Auto>);
template <> inline constexpr std::string_view catalog_name<Auto> = "auto";

}  // namespace stagger::schedule
