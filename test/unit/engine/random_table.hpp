// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Random legal tables: any owner for each stage, any order that the data allow.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <stagger/schedule/table.hpp>

namespace random_table {

using stagger::schedule::Action;
using stagger::schedule::Kind;
using stagger::schedule::Table;

using Random = std::mt19937;

inline int below(Random& random, int n) {
  return static_cast<int>(random() % static_cast<unsigned>(n));
}

/// [stages] a rank for each stage, each rank at least one stage.
inline std::vector<int> owners(Random& random, int ranks, int stages) {
  std::vector<int> owner;
  for (int s = 0; s < stages; ++s) owner.push_back(s < ranks ? s : below(random, ranks));
  std::shuffle(owner.begin(), owner.end(), random);
  return owner;
}

struct Plan {
  std::vector<int> owner;  // [stages]
  int microbatches = 1;
  bool backward = true;
  int split_percent = 50;     // how many (stage, microbatch) have I and W instead of B
  int backward_percent = 50;  // how eagerly a rank prefers a backward to a forward
};

/// A legal table: all actions drawn one by one among those whose inputs are there. Forwards have
/// one order of microbatches at all stages, and so have gradients, as messages demand; W stands
/// anywhere behind its I.
inline Table make(Random& random, Plan const& plan) {
  auto const S = plan.owner.size();
  auto const M = static_cast<std::size_t>(plan.microbatches);
  auto const ranks =
      static_cast<std::size_t>(*std::max_element(plan.owner.begin(), plan.owner.end())) + 1;
  std::vector<int> up(M);
  std::iota(up.begin(), up.end(), 0);
  std::vector<int> down = up;
  if (below(random, 2) == 0) std::shuffle(up.begin(), up.end(), random);
  if (int const kind = below(random, 3); kind == 0)
    std::shuffle(down.begin(), down.end(), random);
  else if (kind == 1)
    std::reverse(down.begin(), down.end());
  else
    down = up;
  std::vector<std::size_t> forwards(S), gradients(S);  // done, by stage
  std::vector<std::vector<bool>> forward_done(S, std::vector<bool>(M));
  std::vector<std::vector<Action>> rows(ranks);
  std::vector<Action> weights;  // allowed W
  std::size_t left = S * M;     // gradients
  if (!plan.backward) left = 0;
  std::size_t forwards_left = S * M;
  while (left + forwards_left + weights.size() != 0) {
    std::vector<Action> can_forward, can_backward;
    for (std::size_t s = 0; s < S; ++s) {
      int const stage = static_cast<int>(s);
      if (forwards[s] < M && (s == 0 || forwards[s - 1] > forwards[s]))
        can_forward.push_back(
            {.kind = Kind::forward, .stage = stage, .microbatch = up[forwards[s]]});
      if (plan.backward && gradients[s] < M &&
          forward_done[s][static_cast<std::size_t>(down[gradients[s]])] &&
          (s + 1 == S || gradients[s + 1] > gradients[s])) {
        bool const splits = below(random, 100) < plan.split_percent;
        can_backward.push_back({.kind = splits ? Kind::backward_input : Kind::backward,
                                .stage = stage,
                                .microbatch = down[gradients[s]]});
      }
    }
    can_backward.insert(can_backward.end(), weights.begin(), weights.end());
    bool const backward = !can_backward.empty() &&
                          (can_forward.empty() || below(random, 100) < plan.backward_percent);
    auto const& from = backward ? can_backward : can_forward;
    Action const a = from[static_cast<std::size_t>(below(random, static_cast<int>(from.size())))];
    auto const s = static_cast<std::size_t>(a.stage);
    rows[static_cast<std::size_t>(plan.owner[s])].push_back(a);
    if (a.kind == Kind::forward) {
      ++forwards[s];
      --forwards_left;
      forward_done[s][static_cast<std::size_t>(a.microbatch)] = true;
    } else if (a.kind == Kind::backward_weight) {
      weights.erase(std::find(weights.begin(), weights.end(), a));
    } else {
      ++gradients[s];
      --left;
      if (a.kind == Kind::backward_input)
        weights.push_back(
            {.kind = Kind::backward_weight, .stage = a.stage, .microbatch = a.microbatch});
    }
  }
  Table table;
  table.stages = static_cast<int>(S);
  table.microbatches = plan.microbatches;
  for (auto const& row : rows) {
    table.begin_row();
    for (auto const& action : row) table.add(action);
  }
  return table;
}

/// A table with everything drawn: P <= 4 ranks, up to 2 stages for each, M <= 6.
inline Table any(Random& random, int most_ranks = 4, int most_microbatches = 6) {
  Plan plan;
  int const ranks = 1 + below(random, most_ranks);
  plan.owner = owners(random, ranks, ranks + below(random, ranks + 1));
  plan.microbatches = 1 + below(random, most_microbatches);
  plan.split_percent = 50 * below(random, 3);
  plan.backward_percent = 10 + 20 * below(random, 5);
  return make(random, plan);
}

}  // namespace random_table
