// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A slow, independent reading of the rules: what the schedule tests hold the library against.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/table.hpp>

namespace oracle {

using stagger::schedule::Action;
using stagger::schedule::Costs;
using stagger::schedule::Kind;
using stagger::schedule::Table;

/// (letter, stage, microbatch, slice)
using Name = std::tuple<char, int, int, int>;

inline char letter(Kind k) { return k == Kind::forward ? 'F' : k == Kind::backward ? 'B' : k == Kind::backward_input ? 'I' : 'W'; }

/// A unit that a rank runs at once: one action, or the two of a pair.
struct Unit {
  std::vector<Name> parts;
};

struct Answer {
  bool ok = false;
  std::string why;
  double makespan = 0;
  std::vector<double> work;
  std::vector<int> peak;
  double longest_span = 0;
};

/// Plays a compute table by sweeping over all ranks until nothing moves, in exact rational-free doubles.
inline Answer play(Table const& t, Costs const& costs = {}) {
  Answer out;
  auto const no = [&](std::string why) {
    out.ok = false;
    out.why = std::move(why);
    return out;
  };
  int const P = t.ranks(), S = t.stages, M = t.microbatches, L = t.slices;
  std::map<Name, int> rank_of;
  std::vector<std::vector<Unit>> rows(static_cast<std::size_t>(P));
  bool backward = false;
  for (int r = 0; r < P; ++r) {
    bool joined = false;
    if (t.row(r).empty()) return no("missing");
    for (Action const& a : t.row(r)) {
      Name const n{letter(a.kind), a.stage, a.microbatch, a.slice};
      if (a.stage < 0 || a.stage >= S || a.microbatch < 0 || a.microbatch >= M || a.slice < 0 || a.slice >= L) {
        return no("parse");
      }
      if (!rank_of.emplace(n, r).second) return no("duplicate");
      backward = backward || a.kind != Kind::forward;
      auto& row = rows[static_cast<std::size_t>(r)];
      if (joined) {
        row.back().parts.push_back(n);
      } else {
        row.push_back({{n}});
      }
      joined = a.overlaps_next;
    }
  }
  for (auto const& row : rows) {
    for (Unit const& u : row) {
      if (u.parts.size() > 2) return no("parse");
      if (u.parts.size() == 2 && (std::get<0>(u.parts[0]) == 'F') == (std::get<0>(u.parts[1]) == 'F')) return no("parse");
    }
  }
  auto const has = [&](char k, int s, int m, int j) { return rank_of.count({k, s, m, j}) != 0; };
  for (int s = 0; s < S; ++s) {
    for (int m = 0; m < M; ++m) {
      for (int j = 0; j < L; ++j) {
        bool const B = has('B', s, m, j), I = has('I', s, m, j), W = has('W', s, m, j);
        if (B && (I || W)) return no("duplicate");
        if (!has('F', s, m, j)) return no("missing");
        if (backward && !B && !(I && W)) return no("missing");
      }
    }
  }
  // Placement: one home for each stage, or the bidirectional form for all.
  bool single = true, two = S == P && M % 2 == 0;
  std::map<int, int> home;
  for (auto const& [n, r] : rank_of) {
    int const s = std::get<1>(n), m = std::get<2>(n);
    single = single && home.emplace(s, r).first->second == r;
    two = two && r == (m < M / 2 ? s : P - 1 - s);
  }
  if (!single && !two) return no("placement");
  auto const gradient = [&](int s, int m, int j) { return Name{has('B', s, m, j) ? 'B' : 'I', s, m, j}; };
  // Inputs by name.
  auto const inputs = [&](Name const& n) {
    auto const [k, s, m, j] = n;
    std::vector<Name> in;
    if (k == 'F') {
      if (s > 0) in.push_back({'F', s - 1, m, j});
      if (j > 0) in.push_back({'F', s, m, j - 1});
    } else if (k == 'W') {
      in.push_back({'I', s, m, j});
    } else {
      in.push_back({'F', s, m, j});
      if (s + 1 < S) in.push_back(gradient(s + 1, m, j));
      if (j + 1 < L) in.push_back(gradient(s, m, j + 1));
    }
    return in;
  };
  // Edge order.
  for (int s = 0; s + 1 < S; ++s) {
    for (int half = 0; half < 2; ++half) {
      for (bool const up : {true, false}) {
        int const from = up ? s : s + 1, to = up ? s + 1 : s;
        std::vector<std::pair<int, int>> give, take;
        for (auto const& row : rows) {
          for (Unit const& u : row) {
            for (Name const& n : u.parts) {
              auto const [k, st, m, j] = n;
              if (!single && (m < M / 2) != (half == 0)) continue;
              if (up ? k != 'F' : (k != 'B' && k != 'I')) continue;
              if (st == from) give.push_back({m, j});
              if (st == to) take.push_back({m, j});
            }
          }
        }
        if (give != take) return no("message-order");
      }
    }
  }
  auto const cost = [&](Name const& n) {
    auto const& c = costs.of(std::get<1>(n));
    double const f = c.forward_s / L, i = c.backward_input_s / L, w = c.backward_weight_s / L;
    switch (std::get<0>(n)) {
      case 'F': return f;
      case 'I': return i;
      case 'W': return w;
      default: return i + w;
    }
  };
  std::map<Name, double> end;
  std::vector<std::size_t> at(rows.size(), 0);
  std::vector<double> now(rows.size(), 0), first(rows.size(), -1);
  out.work.assign(rows.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (at[r] == rows[r].size()) continue;
      Unit const& u = rows[r][at[r]];
      double start = now[r], busy = 0;
      bool ready = true;
      for (Name const& n : u.parts) {
        busy += cost(n);
        for (Name const& in : inputs(n)) {
          auto const e = end.find(in);
          if (e == end.end()) {
            ready = false;
            continue;
          }
          int const a = std::get<1>(in), b = std::get<1>(n);
          double const link = rank_of[in] == static_cast<int>(r) ? 0 : costs.of(std::min(a, b)).transfer_s / L;
          start = std::max(start, e->second + link);
        }
      }
      if (!ready) continue;
      if (u.parts.size() == 2 && costs.overlap_s >= 0) busy = costs.overlap_s;
      if (first[r] < 0) first[r] = start;
      now[r] = start + busy;
      out.work[r] += busy;
      for (Name const& n : u.parts) end[n] = now[r];
      ++at[r];
      moved = true;
    }
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (at[r] != rows[r].size()) return no("stuck");
    out.makespan = std::max(out.makespan, now[r]);
    out.longest_span = std::max(out.longest_span, now[r] - first[r]);
    std::set<Name> live;
    std::size_t most = 0;
    for (Unit const& u : rows[r]) {
      for (Name const& n : u.parts) {
        if (std::get<0>(n) == 'F') live.insert({'x', std::get<1>(n), std::get<2>(n), std::get<3>(n)});
      }
      most = std::max(most, live.size());
      for (Name const& n : u.parts) {
        if (std::get<0>(n) == 'B' || std::get<0>(n) == 'W') live.erase({'x', std::get<1>(n), std::get<2>(n), std::get<3>(n)});
      }
    }
    out.peak.push_back(static_cast<int>(most));
  }
  out.makespan -= *std::min_element(first.begin(), first.end());
  out.ok = true;
  return out;
}

/// Rows written as in the tables of the tests: separated by " / ".
inline Table table(std::string text) {
  for (std::size_t at = text.find(" / "); at != std::string::npos; at = text.find(" / ", at)) text.replace(at, 3, "\n");
  return stagger::schedule::read_csv(text);
}

}  // namespace oracle
