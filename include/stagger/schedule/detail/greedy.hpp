// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling: each rank, whenever it is free, runs the action that a rule prefers
///         among those whose inputs have arrived. Several policies and the search build on it.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/detail/wakeups.hpp>
#include <stagger/schedule/mapping.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// A stage on a rank, for a range of microbatches. Bidirectional tables have two of each stage, all
/// others one.
struct StagePart {
  int rank = 0, stage = 0;
  int first = 0, count = 0;  ///< microbatches first <= m < first + count
  int window = 0;            ///< at the first stage: most of them in flight; 0: no limit
  bool last = false;         ///< of its chain
  StageCosts cost{};
  int forwards = 0, backwards = 0, weights = 0;  ///< how many of each have been started
  Grid<double> forward_at{}, backward_at{};      ///< [count] when inputs arrive; -1: not known
};

/// A ready action, with the properties by which rules choose.
struct Candidate {
  Kind kind = Kind::forward;
  StagePart* part = nullptr;
  int microbatch = 0;
  double ready_s = 0;  ///< when its input arrived
};

/// The stages of a mapping with all their microbatches, each chain from its first stage to its
/// last.
/// @param window  most microbatches of a chain in flight; 0: no limit
[[nodiscard]] constexpr std::vector<StagePart> stage_parts(Mapping mapping, Shape shape,
                                                           int window) {
  std::vector<StagePart> parts;
  int const chains = mapping == Mapping::bidirectional ? 2 : 1;
  int const count = shape.microbatches / chains;
  for (int chain = 0; chain < chains; ++chain) {
    for (int s = 0; s < shape.stages(); ++s) {
      int const rank = rank_of(mapping, shape.ranks, s);
      parts.push_back({.rank = chain == 0 ? rank : shape.ranks - 1 - rank,
                       .stage = s,
                       .first = chain * count,
                       .count = count,
                       .window = std::min(window, count),
                       .last = s + 1 == shape.stages()});
    }
  }
  return parts;
}

/// The actions that a list contains: only forwards, or also whole (B) or split (I and W) backwards.
enum class Backwards { none, whole, split };

/// The gate with which forwards wait only for their inputs. Other gates return when a forward may
/// begin, -1 if that is not known yet; they are notified of what begins and ends; and they have
/// events of their own, which wake ranks.
struct NoGate {
  constexpr double opens(StagePart const&, int, double input_s) const noexcept { return input_s; }
};

/// Lists all actions of all parts, each chain's from its first stage to its last one after the
/// other.
/// @param ranks  of all parts
/// @param key    of a Candidate: of the ready actions the one with the lowest key runs
/// @param gate   what forwards wait for beside their inputs
/// @return       [ranks]
/// Complexity: O(log P) per action, and O(V) to choose it.
template <class Key, class Gate>
[[nodiscard]] constexpr Grid<std::vector<Action>> greedy_rows(std::vector<StagePart>& parts,
                                                              int ranks, Backwards backwards,
                                                              Key key, Gate& gate) {
  constexpr bool gated = !std::same_as<Gate, NoGate>;
  bool const split = backwards == Backwards::split;
  Grid<std::vector<StagePart*>> mine(ranks);
  Grid<std::vector<Action>> rows(ranks);
  Grid<double> free(ranks);
  Wakeups wakeups(ranks);
  for (StagePart& part : parts) {
    mine[part.rank].push_back(&part);
    part.forward_at = part.backward_at = Grid<double>(part.count, -1.0);
    if (part.stage > 0) continue;
    bool const limited = part.window > 0 && backwards != Backwards::none;
    int const at_once = limited ? part.window : part.count;
    for (int n = 0; n < at_once; ++n) part.forward_at[n] = 0;
  }

  for (;;) {
    if constexpr (gated)
      if (double const at = gate.next_s(); at <= wakeups.next_s() && !std::isinf(at)) {
        gate.advance(at, [&](int rank) { wakeups.push(at, rank); });
        continue;
      }
    if (wakeups.empty()) break;
    auto const [now, rank] = wakeups.pop();
    if (free[rank] > now) continue;
    Candidate best{};
    auto const offer = [&](Candidate const& c) {
      if (best.part == nullptr || key(c) < key(best)) best = c;
    };
    for (StagePart* const part : mine[rank]) {
      if (part->backwards < part->forwards) {
        double const at = part->backward_at[part->backwards];
        Kind const kind = split ? Kind::backward_input : Kind::backward;
        if (at >= 0 && at <= now) offer({kind, part, part->first + part->backwards, at});
      }
      if (split && part->weights < part->backwards)
        offer({Kind::backward_weight, part, part->first + part->weights, 0});
      if (part->forwards < part->count) {
        double const at = gate.opens(*part, part->forwards, part->forward_at[part->forwards]);
        if (at >= 0 && at <= now) offer({Kind::forward, part, part->first + part->forwards, at});
      }
    }
    if (best.part == nullptr) continue;
    StagePart& part = *best.part;
    int const n = best.microbatch - part.first;
    rows[rank].push_back({.kind = best.kind, .stage = part.stage, .microbatch = best.microbatch});
    double end = now;
    // The parts of a chain lie one after the other.
    auto const give = [&](StagePart const& to, Grid<double>& arrival, double link) {
      arrival[n] = end + (to.rank == part.rank ? 0 : link);
      if (to.rank != part.rank) wakeups.push(arrival[n], to.rank);
    };
    if (best.kind == Kind::forward) {
      end += part.cost.forward_s;
      ++part.forwards;
      if (!part.last)
        give((&part)[1], (&part)[1].forward_at, part.cost.transfer_s);
      else if (backwards != Backwards::none)
        part.backward_at[n] = end;
    } else if (best.kind == Kind::backward_weight) {
      end += part.cost.backward_weight_s;
      ++part.weights;
    } else {
      end += part.cost.backward_input_s + (split ? 0 : part.cost.backward_weight_s);
      ++part.backwards;
      if (part.stage > 0)
        give((&part)[-1], (&part)[-1].backward_at, (&part)[-1].cost.transfer_s);
      else if (part.window > 0 && n + part.window < part.count)
        part.forward_at[n + part.window] = end;
    }
    if constexpr (gated) gate.ran(part, best.kind, n, now, end);
    free[rank] = end;
    wakeups.push(end, rank);
  }
  return rows;
}

/// The table of all actions of all parts, of one pipeline, which wait for nothing but their inputs.
template <class Key>
[[nodiscard]] constexpr Table greedy(std::vector<StagePart> parts, Shape shape, Costs const& costs,
                                     Backwards backwards, Key key) {
  for (StagePart& part : parts) part.cost = costs.of(part.stage);
  NoGate none;
  auto const rows = greedy_rows(parts, shape.ranks, backwards, key, none);
  Table table{.stages = shape.stages(), .microbatches = shape.microbatches};
  for (auto const& row : rows) table.add_row(row);
  return table;
}

}  // namespace stagger::schedule::detail
