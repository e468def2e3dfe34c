// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A slow, independent reading of the rules: what the schedule tests hold the library
/// against.

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

inline char letter(Kind k) {
  return k == Kind::forward          ? 'F'
         : k == Kind::backward       ? 'B'
         : k == Kind::backward_input ? 'I'
                                     : 'W';
}

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

/// Plays a compute table by sweeping over all ranks until nothing moves, in exact rational-free
/// doubles.
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
      if (a.stage < 0 || a.stage >= S || a.microbatch < 0 || a.microbatch >= M || a.slice < 0 ||
          a.slice >= L) {
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
      if (u.parts.size() == 2 &&
          (std::get<0>(u.parts[0]) == 'F') == (std::get<0>(u.parts[1]) == 'F'))
        return no("parse");
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
  // Placement: one owner for each stage, or the bidirectional form for all.
  bool single = true, two = S == P && M % 2 == 0;
  std::map<int, int> owner;
  for (auto const& [n, r] : rank_of) {
    int const s = std::get<1>(n), m = std::get<2>(n);
    single = single && owner.emplace(s, r).first->second == r;
    two = two && r == (m < M / 2 ? s : P - 1 - s);
  }
  if (!single && !two) return no("placement");
  auto const gradient = [&](int s, int m, int j) {
    return Name{has('B', s, m, j) ? 'B' : 'I', s, m, j};
  };
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
      case 'F':
        return f;
      case 'I':
        return i;
      case 'W':
        return w;
      default:
        return i + w;
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
          double const link =
              rank_of[in] == static_cast<int>(r) ? 0 : costs.of(std::min(a, b)).transfer_s / L;
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
        if (std::get<0>(n) == 'F')
          live.insert({'x', std::get<1>(n), std::get<2>(n), std::get<3>(n)});
      }
      most = std::max(most, live.size());
      for (Name const& n : u.parts) {
        if (std::get<0>(n) == 'B' || std::get<0>(n) == 'W')
          live.erase({'x', std::get<1>(n), std::get<2>(n), std::get<3>(n)});
      }
    }
    out.peak.push_back(static_cast<int>(most));
  }
  out.makespan -= *std::min_element(first.begin(), first.end());
  out.ok = true;
  return out;
}

/// Plays a table with messages under rendezvous, again by sweeping. `mode`: 0 independent, 1 one
/// channel per peer, 2 one per rank. Tells the makespan, or why not.
inline Answer play_messages(Table const& t, int mode, Costs const& costs = {}) {
  Table bare{.stages = t.stages, .microbatches = t.microbatches, .slices = t.slices};
  Answer out;
  auto const no = [&](std::string why) {
    out.ok = false;
    out.why = std::move(why);
    return out;
  };
  for (int r = 0; r < t.ranks(); ++r) {
    bare.begin_row();
    bool first_of_pair = false;
    for (Action const& a : t.row(r)) {
      if (!is_compute(a.kind) && (first_of_pair || a.overlaps_next)) return no("parse");
      first_of_pair = a.overlaps_next;
      if (is_compute(a.kind)) bare.add(a);
    }
  }
  out = play(bare);
  if (!out.ok) return out;
  struct Value {
    int from = -1, to = -1;          // ranks
    int sends = 0, receives = 0;     // how many
    int sent_at = -1, made_at = -1;  // positions on the producer
    int received_at = -1, used_at = -1;
    double made = -1, arrived = -1;
  };
  using Key = std::tuple<bool, int, int, int>;  // forward?, producing stage, microbatch, slice
  std::map<Key, Value> values;
  for (int r = 0; r < t.ranks(); ++r) {
    for (int i = 0; i < static_cast<int>(t.row(r).size()); ++i) {
      Action const& a = t.row(r)[static_cast<std::size_t>(i)];
      if (a.kind == Kind::forward || a.kind == Kind::backward || a.kind == Kind::backward_input) {
        bool const f = a.kind == Kind::forward;
        Value& mine = values[{f, a.stage, a.microbatch, a.slice}];
        mine.from = r;
        mine.made_at = i;
        Value& input = values[{f, a.stage + (f ? -1 : 1), a.microbatch, a.slice}];
        input.to = r;
        input.used_at = i;
      }
    }
  }
  struct Item {
    Key key;
    bool send;
  };
  std::map<std::pair<int, int>, std::vector<Item>>
      queues;  // (rank, peer or -1, or a number of its own)
  int own = 1000000;
  for (int r = 0; r < t.ranks(); ++r) {
    for (int i = 0; i < static_cast<int>(t.row(r).size()); ++i) {
      Action const& a = t.row(r)[static_cast<std::size_t>(i)];
      if (is_compute(a.kind)) continue;
      bool const f = a.kind == Kind::send_forward || a.kind == Kind::recv_forward;
      bool const send = a.kind == Kind::send_forward || a.kind == Kind::send_backward;
      Key const key{f, a.stage + (send ? 0 : f ? -1 : 1), a.microbatch, a.slice};
      auto const v = values.find(key);
      if (v == values.end() || v->second.from < 0 || v->second.to < 0 ||
          v->second.from == v->second.to)
        return no("unmatched");
      if ((send ? v->second.from : v->second.to) != r) return no("placement");
      (send ? v->second.sent_at : v->second.received_at) = i;
      ++(send ? v->second.sends : v->second.receives);
      int const peer = mode == 0 ? own++ : mode == 1 ? (send ? v->second.to : v->second.from) : -1;
      queues[{r, peer}].push_back({key, send});
    }
  }
  std::map<std::tuple<bool, int, int>, std::vector<std::pair<int, int>>>
      edges;  // (forward?, stage, rank): sent at, received at
  for (auto const& [key, v] : values) {
    if (v.from < 0 || v.to < 0 || v.from == v.to) {
      if (v.sends + v.receives > 0) return no("unmatched");
      continue;
    }
    if (v.sends > 1 || v.receives > 1) return no("duplicate");
    if (v.sends == 0 || v.receives == 0) return no("unmatched");
    if (v.sent_at < v.made_at || v.received_at > v.used_at) return no("order");
    edges[{std::get<0>(key), std::get<1>(key), v.from}].push_back({v.sent_at, v.received_at});
  }
  for (auto& [edge, places] : edges) {
    std::sort(places.begin(), places.end());
    for (std::size_t i = 1; i < places.size(); ++i) {
      if (places[i].second < places[i - 1].second) return no("message-order");
    }
  }
  auto const cost = [&](Action const& a) {
    auto const& c = costs.of(a.stage);
    double const L = t.slices;
    switch (a.kind) {
      case Kind::forward:
        return c.forward_s / L;
      case Kind::backward_input:
        return c.backward_input_s / L;
      case Kind::backward_weight:
        return c.backward_weight_s / L;
      default:
        return (c.backward_input_s + c.backward_weight_s) / L;
    }
  };
  std::vector<int> at(static_cast<std::size_t>(t.ranks()), 0);
  std::vector<double> now(at.size(), 0);
  std::map<std::pair<int, int>, double> channel_free;
  std::map<std::pair<int, int>, std::size_t> head;
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < bare.ranks(); ++r) {
      auto const row = bare.row(r);
      int& i = at[static_cast<std::size_t>(r)];
      if (i == static_cast<int>(row.size())) continue;
      int const n = row[static_cast<std::size_t>(i)].overlaps_next ? 2 : 1;
      double start = now[static_cast<std::size_t>(r)], busy = 0;
      bool ready = true;
      for (int k = 0; k < n; ++k) {
        Action const& a = row[static_cast<std::size_t>(i + k)];
        busy += cost(a);
        bool const f = a.kind == Kind::forward;
        if (a.kind == Kind::backward_weight) continue;
        auto const v = values.find({f, a.stage + (f ? -1 : 1), a.microbatch, a.slice});
        if (v == values.end() || v->second.from < 0) continue;
        double const t_in = v->second.from == r ? v->second.made : v->second.arrived;
        ready = ready && t_in >= 0;
        start = std::max(start, t_in);
      }
      if (!ready) continue;
      now[static_cast<std::size_t>(r)] = start + busy;
      for (int k = 0; k < n; ++k) {
        Action const& a = row[static_cast<std::size_t>(i + k)];
        if (a.kind != Kind::backward_weight)
          values[{a.kind == Kind::forward, a.stage, a.microbatch, a.slice}].made = start + busy;
      }
      i += n;
      moved = true;
    }
    for (auto& [id, queue] : queues) {
      std::size_t& h = head[id];
      if (h == queue.size()) continue;
      Item const& item = queue[h];
      Value& v = values[item.key];
      if (!item.send || v.made < 0) continue;
      for (auto& [other, far] : queues) {
        if (other.first != v.to || head[other] == far.size() || far[head[other]].key != item.key ||
            far[head[other]].send)
          continue;
        double const link =
            costs
                .of(std::min(std::get<1>(item.key),
                             std::get<1>(item.key) - (std::get<0>(item.key) ? 0 : 1)))
                .transfer_s /
            t.slices;
        v.arrived = std::max({v.made, channel_free[id], channel_free[other]}) + link;
        channel_free[id] = channel_free[other] = v.arrived;
        ++h;
        ++head[other];
        moved = true;
        break;
      }
    }
  }
  for (auto const& [id, queue] : queues) {
    if (head[id] != queue.size()) return no("deadlock");
  }
  out.makespan = 0;
  for (int r = 0; r < bare.ranks(); ++r) {
    if (at[static_cast<std::size_t>(r)] != static_cast<int>(bare.row(r).size()))
      return no("deadlock");
    out.makespan = std::max(out.makespan, now[static_cast<std::size_t>(r)]);
  }
  return out;
}

/// Rows written as in the tables of the tests: separated by " / ".
inline Table table(std::string text) {
  for (std::size_t at = text.find(" / "); at != std::string::npos; at = text.find(" / ", at)) {
    text[at] = '\n';
    text.erase(at + 1, 2);
  }
  return stagger::schedule::read_csv(text);
}

}  // namespace oracle
