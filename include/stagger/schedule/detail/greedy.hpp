// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling: each rank, whenever it is free, runs the action that a rule prefers
///         among those whose inputs have arrived. Several policies and the search build on it.

#include <algorithm>
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
  int window = 0;            ///< at the first stage: most microbatches in flight; 0: no limit
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
                       .window = window});
    }
  }
  return parts;
}

/// Which actions a list holds: forwards alone, or with backwards whole (B) or split (I and W).
enum class Backwards { none, whole, split };

/// Forwards wait for nothing but their inputs.
struct NoGate {
  constexpr double opens(StagePart const&, int, double input_s) const noexcept { return input_s; }
  constexpr double ended(StagePart const&, int, double) const noexcept { return -1; }
};

/// Lists all actions of all parts.
/// @param key   of a Candidate: of those that are ready the one with the lowest key runs
/// @param gate  what forwards wait for beside their inputs: `opens` says when one may begin, -1 if that
///              is not known yet; `ended` is told of each backward, and says when something opens, or -1
/// Complexity: O(log P) per action, and O(V) to choose it.
template <class Key, class Gate = NoGate>
[[nodiscard]] constexpr Table greedy(std::vector<StagePart> parts, Shape shape, Costs const& costs,
                                     Backwards backwards, Key key, Gate gate = {}) {
  bool const split = backwards == Backwards::split;
  int const stages = shape.stages();
  Grid<std::vector<StagePart*>> mine(shape.ranks);
  Grid<std::vector<Action>> rows(shape.ranks);
  Grid<double> free(shape.ranks);
  Wakeups wakeups(shape.ranks);
  for (StagePart& part : parts) {
    mine[part.rank].push_back(&part);
    part.forward_at = part.backward_at = Grid<double>(part.count, -1.0);
    if (part.stage > 0) continue;
    bool const limited = part.window > 0 && backwards != Backwards::none;
    int const at_once = limited ? std::min(part.count, part.window) : part.count;
    for (int n = 0; n < at_once; ++n) part.forward_at[n] = 0;
  }

  while (!wakeups.empty()) {
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
    StageCosts const& cost = costs.of(part.stage);
    int const n = best.microbatch - part.first;
    rows[rank].push_back({.kind = best.kind, .stage = part.stage, .microbatch = best.microbatch});
    double end = now;
    // The parts of a chain lie one behind the other.
    auto const give = [&](StagePart const& to, Grid<double>& arrival, double link) {
      arrival[n] = end + (to.rank == part.rank ? 0 : link);
      if (to.rank != part.rank) wakeups.push(arrival[n], to.rank);
    };
    if (best.kind == Kind::forward) {
      end += cost.forward_s;
      ++part.forwards;
      if (part.stage + 1 < stages)
        give((&part)[1], (&part)[1].forward_at, cost.transfer_s);
      else if (backwards != Backwards::none)
        part.backward_at[n] = end;
    } else if (best.kind == Kind::backward_weight) {
      end += cost.backward_weight_s;
      ++part.weights;
    } else {
      end += cost.backward_input_s + (split ? 0 : cost.backward_weight_s);
      ++part.backwards;
      if (double const opens = gate.ended(part, n, end); opens >= 0) wakeups.push(opens, rank);
      if (part.stage > 0)
        give((&part)[-1], (&part)[-1].backward_at, costs.of(part.stage - 1).transfer_s);
      else if (part.window > 0 && n + part.window < part.count)
        part.forward_at[n + part.window] = end;
    }
    free[rank] = end;
    wakeups.push(end, rank);
  }
  Table table{.stages = stages, .microbatches = shape.microbatches};
  for (auto const& row : rows) table.add_row(row);
  return table;
}

}  // namespace stagger::schedule::detail
