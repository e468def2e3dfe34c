// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Auto: the best order found for given costs and memory, with its distance from a proven
///         bound.
/// @source In the spirit of the heuristics of Qi et al., arXiv 2401.10241, section 3; the exact
///         search for small pipelines and the bound are our own.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/catalog.hpp>
#include <stagger/schedule/detail/search/exact.hpp>
#include <stagger/schedule/detail/search/fill.hpp>
#include <stagger/schedule/detail/search/rounds.hpp>
#include <stagger/schedule/detail/search/rounds_v.hpp>
#include <stagger/schedule/detail/search/warm_ups.hpp>
#include <stagger/schedule/detail/search/weight_gradients.hpp>
#include <stagger/schedule/proof/bound.hpp>
#include <stagger/schedule/proof/detail/play.hpp>

namespace stagger::schedule {

/// The result of the search.
struct Found {
  Table table{};
  double makespan_s = 0;
  /// lower bound of the makespan within the limits, without overlapped pairs or with those of a
  /// schedule of the mapping
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
/// M <= 2. A limit on memory is used in steps of half an activation.
///
/// A microbatch is whole unless the stages can run slices of it. With S slices, limits count slices
/// as `peak_in_flight` does, and the result is never worse than that of a schedule with as many
/// slices.
struct Auto {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;

  Costs costs{};                      ///< for each stage, or the same for all
  Limits limits{};                    ///< limits on what a rank holds
  int chunks_per_rank = 1;            ///< V >= 1
  Mapping mapping = Mapping::looped;  ///< zigzag: V even; bidirectional: V = 1, P and M even
  int slices = 1;                     ///< S >= 1, sequence slices of a microbatch; above 1: V = 1

  [[nodiscard]] constexpr int chunks() const noexcept { return chunks_per_rank; }

  /// @param shape  any P and M
  /// @throws Error bad_configuration, or bad_data for costs that are not finite and not negative
  [[nodiscard]] Table table(Shape shape) const { return search(shape).table; }

  /// The table with its makespan and bound.
  /// Complexity: O(PMS log P) for each of 12 to 20 rules, and O(PMS) for each range of 1F1B's
  /// warm-ups that has to be looked at, none where weight gradients fill the gaps; with room for
  /// fewer than P microbatches also OneFOneB's search of counts for each limit that could help,
  /// together about a second at P = 64. In addition, for P <= 3 and MS <= 4, at most about 10^5
  /// partial orders. With several chunks: O(PVM) for each legal group size; where exact, up to some
  /// tenths of a second.
  [[nodiscard]] Found search(Shape shape) const;

 private:
  void check(Shape shape) const {
    require_counts("auto", shape, chunks_per_rank);
    require(slices <= 1 || (shape.chunks == 1 && mapping == Mapping::looped), "auto", Count::slices,
            slices, 1, "microbatches are cut where each rank has one stage");
    require_slices("auto", shape, slices);
    require(mapping != Mapping::zigzag || shape.chunks % 2 == 0, "auto", Count::chunks,
            shape.chunks, shape.chunks + 1, "zigzag needs an even number of them");
    if (mapping == Mapping::bidirectional) require_bidirectional("auto", shape);
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
};

template <> inline constexpr std::string_view catalog_name<Auto> = "auto";

namespace detail {

/// One run of `Auto::search`: the shortest table so far, and where to look for a shorter one.
class Search {
 public:
  Search(Auto const& wanted, Shape shape) : wanted_(wanted), shape_(shape) {
    best_.makespan_s = std::numeric_limits<double>::infinity();
  }

  [[nodiscard]] Found run() {
    bool const chunks = shape_.chunks > 1 || two_ways();
    if (chunks)
      search_chunks();
    else
      search_stages();
    if (best_.table.stages == 0) {
      int const least = !chunks ? wanted_.slices : two_ways() ? 2 : shape_.chunks;
      raise(Errc::bad_configuration,
            "schedule auto found no order within the limits; give each rank room for ", least,
            " activations or more");
    }
    return std::move(best_);
  }

 private:
  /// One stage on each rank.
  ///
  /// Slices run as microbatches of their own would, except that the last rank's gradients come in
  /// blocks of S. A slice is called a unit here. Any order of units can be renamed so
  /// that each stage takes forwards in rising order, and backwards by microbatches, in each from
  /// its last slice to its first.
  void search_stages() {
    int const slices = wanted_.slices;
    Limits const& limits = wanted_.limits;
    Shape const units{shape_.ranks, shape_.microbatches * slices};
    Table one = GPipe{}.table({shape_.ranks, 1});
    one.slices = slices;
    times_ = stage_times(one, wanted_.costs);
    Table const gpipe = split_backwards(GPipe{}.table(units));
    best_.lower_bound_s = lower_bound(slice(gpipe), wanted_.costs, limits);
    auto const take = [&](WarmUps::Counts const& counts) {
      if (counts.empty()) return;
      best_.table = split_backwards(early_backward(units, counts, 0, shape_.ranks));
      if (slices > 1) keep_refilled(best_.table);
    };
    if (slices == 1)
      each_published(units, [&](Table const& table) { keep(split_backwards(table)); });
    WarmUps warm_ups(units, slices, times_, limits);
    for (int gap = 1; gap <= 4 && !done(); ++gap) take(warm_ups.gap(gap, best_.makespan_s));
    if (!done()) keep(gpipe);

    double const actions = 3.0 * units.ranks * units.microbatches;
    int left = static_cast<int>(std::clamp(120000.0 / actions, 4.0, 12.0));
    Grid<int> owner(units.ranks);
    for (int s = 0; s < units.ranks; ++s) owner[s] = s;
    for (FillRule const& rule : stage_rules()) {
      if (done() || left-- == 0) break;
      take_better(Fill(units, owner, times_, limits, rule, slices).table(best_.makespan_s));
    }
    for (unsigned ways = 0; slices == 1 && ways < 8 && !done(); ++ways) {
      RoundRule const rule{(ways & 1U) != 0, (ways & 2U) != 0, (ways & 4U) != 0};
      keep(Rounds(units, times_, limits, rule, best_.makespan_s).table());
    }
    if (!done()) take(warm_ups.shortest(best_.makespan_s));
    if (!done() && units.ranks <= 3 && units.microbatches <= 4)
      take_better(exact(units, times_, owner, limits, best_.makespan_s, slices));
    best_.table = slice(std::move(best_.table));
  }

  /// Several chunks, or two directions: the schedules of the mapping, each as it is and with its
  /// weight gradients placed anew, and the order in which forwards and backwards of all chunks run
  /// as soon as they can.
  void search_chunks() {
    int const P = shape_.ranks, M = shape_.microbatches, V = shape_.chunks, S = shape_.stages();
    auto const add = [&](Table const& table) { consider(table); };
    // Windows down to one microbatch in flight, which fits if any window does.
    for (int window = M; window >= 1; window = window > 2 * P ? 2 * P
                                               : window > P   ? P
                                                              : window / 2) {
      auto const key = [](Candidate const& c) {
        int const rank = c.kind == Kind::backward_input ? 0 : c.kind == Kind::forward ? 1 : 2;
        return std::tuple(rank, c.microbatch - c.part->first, -c.part->stage, c.part->first);
      };
      int const each = two_ways() ? (window + 1) / 2 : window;
      consider(greedy(stage_parts(wanted_.mapping, shape_, each), shape_, wanted_.costs,
                      Backwards::split, key));
    }
    Grid<int> owner(two_ways() ? 2 * P : S);
    for (int s = 0; s < S; ++s) owner[s] = rank_of(wanted_.mapping, P, s);
    for (int s = S; s < owner.size(); ++s) owner[s] = 2 * P - 1 - s;
    for (FillRule const& rule : chunk_rules(P, two_ways() ? 2 : V, wanted_.limits)) {
      if (done()) break;
      double enough = best_.makespan_s;
      Table const table = Fill(shape_, owner, times_, wanted_.limits, rule).table(enough);
      if (table.stages > 0) consider(table);
    }
    each_published(shape_, add);
    bool const on_a_v = wanted_.mapping == Mapping::zigzag || (P == 1 && !two_ways());
    if (on_a_v && V == 2) each_rounds_v(shape_, times_, wanted_.limits, add);
    if (!two_ways() && S <= 6 && M <= (S <= 4 ? 4 : 3) && !done()) {
      // An exact search of six stages and three microbatches would take seconds.
      std::size_t const most = M == 3 && S > 4 ? 300 : 0;
      take_better(exact(shape_, times_, owner, wanted_.limits, best_.makespan_s, 1, most));
    }
  }

  [[nodiscard]] bool two_ways() const { return wanted_.mapping == Mapping::bidirectional; }
  [[nodiscard]] bool done() const { return best_.makespan_s <= best_.lower_bound_s * (1 + 1e-12); }

  /// Keeps a table that fits and is shorter.
  void keep(Table table) {
    if (table.stages == 0 || !fits(table)) return;
    LatestEnd latest;
    play(table, times_, wanted_.costs.overlap_s, latest);
    if (latest.end_s >= best_.makespan_s) return;
    best_.makespan_s = latest.end_s;
    best_.table = std::move(table);
  }
  /// Keeps the result of a search that has lowered the makespan itself.
  void take_better(Table table) {
    if (table.stages > 0) best_.table = std::move(table);
  }
  void keep_refilled(Table const& table) {
    for (double const part : {1.0, 0.5, 0.0}) keep(refill(table, times_, wanted_.limits, part));
  }

  /// Considers a table of several chunks, as it is and with its weight gradients placed anew.
  void consider(Table table) {
    // An overlapped pair that costs the sum of its actions saves no time.
    for (Action& a : table.actions)
      a.overlaps_next = a.overlaps_next && wanted_.costs.overlap_s >= 0;
    table = split_backwards(table);
    bool const pairs = std::any_of(table.actions.begin(), table.actions.end(),
                                   [](Action const& a) { return a.overlaps_next; });
    if (times_.empty()) {
      times_ = stage_times(table, wanted_.costs);
      best_.lower_bound_s = lower_bound(table, wanted_.costs, wanted_.limits);
    }
    if (pairs)
      best_.lower_bound_s =
          std::min(best_.lower_bound_s, lower_bound(table, wanted_.costs, wanted_.limits));
    else
      keep_refilled(table);
    keep(std::move(table));
  }

  /// Calls `with(table)` for each schedule of the catalog with this mapping, for each group size
  /// that makes a difference.
  template <class With> void each_published(Shape shape, With const& with) const {
    catalog_lines.for_each([&]<class P>(CatalogLine<P> const& line) {
      if constexpr (P::flushes && !requires(P policy) { policy.slices; }) {
        bool const alike = shape.ranks == 1 && !two_ways();  // looped and zigzag
        bool const here =
            line.mapping == wanted_.mapping || (alike && line.mapping != Mapping::bidirectional);
        P policy = with_chunks<P>(shape.chunks);
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

  /// Units as slices of microbatches.
  [[nodiscard]] Table slice(Table table) const {
    int const slices = wanted_.slices;
    if (slices == 1) return table;
    table.microbatches = shape_.microbatches;
    table.slices = slices;
    for (Action& a : table.actions) {
      int const slice = a.microbatch % slices;
      a.microbatch /= slices;
      a.slice = static_cast<std::int16_t>(a.kind == Kind::forward ? slice : slices - 1 - slice);
    }
    return table;
  }

  /// In an overlapped pair the forward takes its memory before the backward releases its own.
  [[nodiscard]] bool fits(Table const& table) const {
    Limits const& limits = wanted_.limits;
    if (limits.in_flight == 0 && limits.memory == 0) return true;
    for (int r = 0; r < table.ranks(); ++r) {
      Occupancy occupancy;
      Action const* held = nullptr;  // first of a pair
      for (Action const& a : table.row(r)) {
        if (a.overlaps_next && a.kind != Kind::forward) {
          held = &a;
          continue;
        }
        if (a.kind == Kind::forward && !occupancy.takes(limits)) return false;
        occupancy.run(a.kind, limits);
        if (held != nullptr) occupancy.run(held->kind, limits);
        held = nullptr;
      }
    }
    return true;
  }

  Auto const& wanted_;
  Shape shape_;
  Times times_{};
  Found best_{};
};

}  // namespace detail

inline Found Auto::search(Shape shape) const {
  check(shape);
  return detail::Search(*this, shape).run();
}

}  // namespace stagger::schedule
