// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The published zero-bubble heuristics, written down plainly: what the search is held
/// against.
/// @source Qi et al., arXiv 2401.10241, section 3.1, and the authors' generator.

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/schedule/proof/bound.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "grid.hpp"

namespace published {

using namespace stagger;
using namespace stagger::schedule;

/// One stage on each rank; one cost of transfer. A rank's row is a word of the letters f, b, w.
class Heuristic {
 public:
  Heuristic(int ranks, int microbatches, Costs costs, double memory, double share,
            std::array<bool, 3> switches)
      : P_(ranks),
        M_(microbatches),
        costs_(std::move(costs)),
        memory_(memory),
        share_(share),
        bubble_first_(switches[0]),
        prefer_b_(switches[1]),
        greedy_(switches[2]),
        row_(static_cast<std::size_t>(ranks)),
        now_(row_.size(), 0),
        used_(row_.size(), 0),
        lost_(row_.size(), 0) {}

  /// Nothing where the memory_ does not suffice.
  std::optional<Table> table() {
    for (int j = 0; j < P_; ++j) put(j, 'f');
    std::vector<int> extra(row_.size(), 0);
    double back = 0;
    for (int j = P_ - 1; j >= 0; --j) {
      if (j == P_ - 1) {
        back = end_.at({'f', j, 0}) + cost('b', j);
        continue;
      }
      double m = used_[at(j)], t = now_[at(j)];
      double const come = back + link(j);
      while (1 + extra[at(j)] < M_ && m + 1 <= memory_ + 1e-9) {
        if (bubble_first_ ? t + cost('f', j) > come : t >= come) break;
        m += 1;
        t += cost('f', j);
        ++extra[at(j)];
      }
      back = std::max(t, come) + cost('b', j);
    }
    for (int j = 1; j < P_; ++j) {
      while (extra[at(j)] > 0 && extra[at(j)] >= extra[at(j - 1)] && 1 + extra[at(j)] < M_)
        --extra[at(j)];
      if (extra[at(j)] > extra[at(j - 1)]) return {};
    }
    for (int j = 0; j < P_; ++j) {
      for (int n = 0; n < extra[at(j)]; ++n) put(j, 'f');
    }
    for (int j = P_ - 1; j >= 0; --j) put(j, 'b');
    for (int i = 1; i < M_; ++i) {
      std::vector<bool> go(row_.size(), false);
      for (int j = 0; j < P_; ++j) go[at(j)] = asks(j);
      for (int j = P_ - 2; j >= 0; --j) go[at(j)] = go[at(j)] && go[at(j + 1)];
      for (int j = 0; j < P_; ++j) {
        if (!go[at(j)]) continue;
        while (used_[at(j)] + 1 > memory_ + 1e-9) {
          if (count('w', j) == count('b', j)) return {};
          put(j, 'w');
        }
        if (j > 0) plug(j, end_.at({'f', j - 1, count('f', j)}) + link(j - 1));
        put(j, 'f');
      }
      for (int j = P_ - 1; j >= 0; --j) {
        if (end_.count({'f', j, i}) == 0) return {};
        if (j + 1 < P_) plug(j, end_.at({'b', j + 1, i}) + link(j));
        while (j == 0 && count('f', 0) == M_ && count('w', 0) < count('b', 0)) put(0, 'w');
        put(j, 'b');
      }
    }
    Table t{.stages = P_, .microbatches = M_};
    for (int j = 0; j < P_; ++j) {
      while (count('w', j) < M_) put(j, 'w');
      t.begin_row();
      std::map<char, int> next;
      for (char const c : row_[at(j)]) {
        t.add({.kind = c == 'f'   ? Kind::forward
                       : c == 'b' ? Kind::backward_input
                                  : Kind::backward_weight,
               .stage = j,
               .microbatch = next[c]++});
      }
    }
    return t;
  }

 private:
  static std::size_t at(int j) { return static_cast<std::size_t>(j); }
  double link(int j) const { return costs_.of(j).transfer_s; }
  double cost(char c, int j) const {
    StageCosts const& s = costs_.of(j);
    return c == 'f' ? s.forward_s : c == 'b' ? s.backward_input_s : s.backward_weight_s;
  }
  int count(char c, int j) const {
    return static_cast<int>(std::count(row_[at(j)].begin(), row_[at(j)].end(), c));
  }
  double most_lost() const { return *std::max_element(lost_.begin(), lost_.end()); }

  void put(int j, char c) {
    int const m = count(c, j);
    double start = now_[at(j)];
    if (c == 'f' && j > 0) start = std::max(start, end_.at({'f', j - 1, m}) + link(j - 1));
    if (c == 'b' && j + 1 < P_) start = std::max(start, end_.at({'b', j + 1, m}) + link(j));
    if (count('f', j) > 0) lost_[at(j)] += start - now_[at(j)];
    now_[at(j)] = end_[{c, j, m}] = start + cost(c, j);
    used_[at(j)] += c == 'f' ? 1 : c == 'b' ? share_ - 1 : -share_;
    row_[at(j)] += c;
  }

  void plug(int j, double come) {
    while (count('w', j) < count('b', j) && now_[at(j)] + cost('w', j) <= come) put(j, 'w');
    if (count('w', j) == count('b', j) || now_[at(j)] >= come) return;
    if (come - now_[at(j)] > most_lost() - lost_[at(j)] || greedy_) put(j, 'w');
  }

  bool asks(int j) const {
    if (count('f', j) >= M_) return false;
    if (j + 1 == P_ || !prefer_b_ || count('f', j) < count('f', j + 1) + 2) return true;
    double const next = now_[at(j + 1)] + cost('f', j + 1) + cost('b', j + 1) + link(j);
    if (now_[at(j)] >= next) return false;
    double need = 0, m = used_[at(j)] + 1;
    for (int w = count('w', j); m > memory_ + 1e-9 && w < count('b', j); ++w) {
      need += cost('w', j);
      m -= share_;
    }
    if (now_[at(j)] + cost('f', j) + need <= next) return true;
    return next - now_[at(j)] > most_lost() - lost_[at(j)];
  }

  int P_, M_;
  Costs costs_;
  double memory_, share_;
  bool bubble_first_, prefer_b_, greedy_;
  std::vector<std::string> row_;
  std::vector<double> now_, used_, lost_;
  std::map<std::tuple<char, int, int>, double> end_;
};

/// The tables of all settings of the three switches.
inline std::vector<Table> zero_bubble(int P, int M, Costs const& costs, double memory,
                                      double share) {
  std::vector<Table> all;
  for (int s = 0; s < 8; ++s) {
    Heuristic h(P, M, costs, memory > 0 ? memory : 3.0 * M, share,
                {(s & 1) != 0, (s & 2) != 0, (s & 4) != 0});
    if (auto t = h.table()) all.push_back(*t);
  }
  return all;
}

/// Makespans at F = I = W = 1 (B = 2) that the authors' generators of the V schedules (arXiv
/// 2405.15362; sail-sg's zbv_greedy.py with reordering, v1f1b.py) print for P = 2 to 12 and, in
/// each row, M = 2, 3, P, P + 1, 2P, 3P.
using Makespans = std::array<std::array<double, 6>, 11>;

inline constexpr Makespans v_half{{
    {{15, 19, 15, 19, 25, 37}},
    {{19, 23, 23, 29, 41, 59}},
    {{22, 27, 34, 38, 53, 77}},
    {{26, 31, 44, 47, 71, 101}},
    {{30, 35, 48, 56, 83, 119}},
    {{34, 39, 66, 65, 101, 143}},
    {{38, 43, 65, 71, 113, 161}},
    {{42, 47, 82, 83, 131, 185}},
    {{46, 51, 83, 89, 143, 203}},
    {{50, 55, 104, 101, 161, 227}},
    {{54, 59, 101, 107, 173, 245}},
}};
inline constexpr Makespans v_min{{
    {{15, 21, 15, 21, 27, 39}},
    {{19, 26, 26, 29, 41, 59}},
    {{23, 29, 35, 41, 59, 83}},
    {{26, 33, 45, 51, 75, 105}},
    {{30, 37, 53, 59, 89, 125}},
    {{34, 41, 65, 71, 107, 149}},
    {{38, 44, 75, 81, 123, 171}},
    {{42, 48, 83, 89, 137, 191}},
    {{46, 52, 95, 101, 155, 215}},
    {{50, 55, 105, 111, 171, 237}},
    {{54, 58, 113, 119, 185, 257}},
}};
inline constexpr Makespans v_1f1b{{
    {{16, 22, 16, 22, 28, 40}},
    {{22, 26, 26, 32, 44, 62}},
    {{28, 32, 39, 45, 63, 87}},
    {{34, 38, 48, 54, 78, 108}},
    {{40, 44, 58, 64, 94, 130}},
    {{46, 50, 72, 78, 114, 156}},
    {{52, 56, 81, 87, 129, 177}},
    {{58, 62, 90, 96, 144, 198}},
    {{64, 68, 105, 111, 165, 225}},
    {{70, 74, 114, 120, 180, 246}},
    {{76, 80, 123, 129, 196, 268}},
}};

/// How often a policy's table is shorter than the published one.
/// @param longer  called with P, M and both makespans where it is longer
template <class Policy, class Longer>
int shorter_than(Makespans const& published, Policy const& policy, Longer longer) {
  int shorter = 0;
  for (int P = 2; P <= 12; ++P) {
    std::size_t column = 0;
    for (int const M : {2, 3, P, P + 1, 2 * P, 3 * P}) {
      double const theirs = published[static_cast<std::size_t>(P - 2)][column++];
      double const ours = grid::evaluated(policy.table({P, M, 2})).makespan_s;
      if (ours > theirs) longer(P, M, ours, theirs);
      if (ours < theirs) ++shorter;
    }
  }
  return shorter;
}

}  // namespace published
