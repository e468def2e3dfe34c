// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling under a memory limit, with weight gradients as what fills the gaps.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/play.hpp>

namespace stagger::schedule::detail {

/// How one run of `fill` decides.
struct FillRule {
  int warm_up =
      0;  ///< most forwards without their I on rank r: 0 no limit, else gap * (P - 1 - r) + S
  double wait_policy =
      0;  ///< a weight gradient does not start when a known input comes within this part of it
  bool alternate =
      false;  ///< after a gradient a forward first, where both are ready; else always the gradient
};

/// Fills rows of P ranks with one stage each, rank by rank as time goes on. Room is kept by
/// construction.
/// @param slices  S: M counts slices, and the gradients of a microbatch's S come from the last rank
/// when it has run the forwards of all
/// @return an empty table when it ends later than `best_s`
[[nodiscard]] constexpr Table fill(Shape shape, std::vector<StageTimes> const& times,
                                   Limits const& limits, FillRule const& rule, double& best_s,
                                   int slices = 1) {
  auto const P = static_cast<std::size_t>(shape.ranks),
             M = static_cast<std::size_t>(shape.microbatches), S = static_cast<std::size_t>(slices);
  struct Rank {
    double free = 0;
    Room room{};
    std::size_t f = 0, i = 0, w = 0;
    bool after_gradient = false;
  };
  std::vector<Rank> ranks(P, Rank{});
  std::vector<double> forward_at(P * M, -1.0), gradient_at(P * M, -1.0);  // arrival of inputs
  for (std::size_t m = 0; m < M; ++m) forward_at[m] = 0;
  std::vector<std::vector<Action>> rows(P, std::vector<Action>{});
  for (auto& row : rows) row.reserve(3 * M);

  struct Wake {
    double at;
    std::size_t rank;
  };
  std::vector<Wake> heap;
  heap.reserve(4 * P);
  auto const later = [](Wake const& a, Wake const& b) {
    return a.at > b.at || (a.at == b.at && a.rank > b.rank);
  };
  auto const wake = [&](double at, std::size_t rank) {
    heap.push_back({at, rank});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::size_t r = 0; r < P; ++r) wake(0, r);
  double last = 0;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    double const now = heap.back().at;
    std::size_t const r = heap.back().rank;
    heap.pop_back();
    Rank& rank = ranks[r];
    if (rank.free > now) continue;
    StageTimes const& t = times[r];
    double const f_at = rank.f < M ? forward_at[r * M + rank.f] : -1;
    double const i_at = rank.i < rank.f ? gradient_at[r * M + rank.i] : -1;
    std::size_t const ahead = rank.f - rank.i;
    auto const gap = static_cast<std::size_t>(rule.warm_up);
    bool const wants = rule.warm_up == 0 || ahead < gap * (P - 1 - r) + S;
    bool const takes = rank.room.takes(limits);
    bool const f_ready = f_at >= 0 && f_at <= now && wants && takes;
    bool const i_ready = i_at >= 0 && i_at <= now;
    bool const has_w = rank.w < rank.i;
    Kind kind{};
    if (i_ready && !(rule.alternate && rank.after_gradient && f_ready)) {
      kind = Kind::backward_input;
    } else if (f_ready) {
      kind = Kind::forward;
    } else if (has_w) {
      double soon = -1;  // the next input that is on its way
      if (i_at > now) soon = i_at;
      if (f_at > now && wants && takes && (soon < 0 || f_at < soon)) soon = f_at;
      bool const full = f_at >= 0 && wants && !takes;
      if (soon > 0 && !full && soon < now + rule.wait_policy * t.weight)
        continue;  // woken when it comes
      kind = Kind::backward_weight;
    } else {
      continue;
    }
    double const end = now + t.of(kind);
    int m = 0;
    if (kind == Kind::forward) {
      m = static_cast<int>(rank.f++);
      auto const n = static_cast<std::size_t>(m);
      rank.after_gradient = false;
      if (r + 1 < P) {
        forward_at[(r + 1) * M + n] = end + times[r + 1].link_forward;
        wake(forward_at[(r + 1) * M + n], r + 1);
      } else if ((n + 1) % S == 0) {
        for (std::size_t back = 0; back < S; ++back) gradient_at[r * M + n - back] = end;
      }
    } else if (kind == Kind::backward_input) {
      m = static_cast<int>(rank.i++);
      rank.after_gradient = true;
      if (r > 0) {
        auto const n = static_cast<std::size_t>(m);
        gradient_at[(r - 1) * M + n] = end + times[r - 1].link_backward;
        wake(gradient_at[(r - 1) * M + n], r - 1);
      }
    } else {
      m = static_cast<int>(rank.w++);
    }
    rank.room.run(kind, limits);
    rows[r].push_back({.kind = kind, .stage = static_cast<int>(r), .microbatch = m});
    rank.free = end;
    last = std::max(last, end);
    if (last >= best_s) return {};
    wake(end, r);
  }
  Table table{.stages = shape.ranks, .microbatches = shape.microbatches};
  table.actions.reserve(3 * P * M);
  for (auto const& row : rows) {
    if (row.size() != 3 * M) return {};
    table.begin_row();
    for (Action const& a : row) table.add(a);
  }
  best_s = last;
  return table;
}

/// Keeps a table's order of F and I and lays its weight gradients anew: each where its rank would
/// idle for at least `part` of it, or where room for a forward is needed; what is left over at the
/// end.
/// @param table  split backwards, no pairs, accepted by `verify`
/// @return an empty table where the limits cannot be kept in this order
[[nodiscard]] constexpr Table refill(Table const& table, std::vector<StageTimes> const& times,
                                     Limits const& limits, double part) {
  std::size_t const P = table.row_begin.size(),
                    stride = cells(table) / static_cast<std::size_t>(table.stages);
  std::vector<double> forward(cells(table), -1.0),
      gradient(cells(table), -1.0);  // ends; below -1: rank -2 - v waits
  std::vector<std::vector<Action>> rows(P, std::vector<Action>{}),
      pending(P, std::vector<Action>{});
  std::vector<std::size_t> cursor(P, 0), weighed(P, 0), runnable;
  std::vector<double> free(P, 0.0);
  std::vector<Room> room(P, Room{});
  for (std::size_t r = P; r-- > 0;) runnable.push_back(r);
  while (!runnable.empty()) {
    std::size_t const r = runnable.back();
    runnable.pop_back();
    auto const row = table.row(static_cast<int>(r));
    auto const weigh = [&] {
      Action const a = pending[r][weighed[r]++];
      rows[r].push_back(a);
      free[r] += times[static_cast<std::size_t>(a.stage)].weight;
      room[r].run(Kind::backward_weight, limits);
    };
    for (; cursor[r] < row.size(); ++cursor[r]) {
      Action a = row[cursor[r]];
      if (a.kind == Kind::backward_weight) continue;
      StageTimes const& t = times[static_cast<std::size_t>(a.stage)];
      bool const up = a.kind == Kind::forward;
      std::size_t const here = cell(table, a);
      double ready = 0;
      if (up ? a.stage > 0 : a.stage + 1 < table.stages) {
        double& input = up ? forward[here - stride] : gradient[here + stride];
        if (input < 0) {
          input = -2.0 - static_cast<double>(r);
          break;
        }
        ready = input + (up ? t.link_forward : t.link_backward);
      }
      while (weighed[r] < pending[r].size()) {
        double const next = times[static_cast<std::size_t>(pending[r][weighed[r]].stage)].weight;
        if (free[r] + part * next > ready && !(up && !room[r].takes(limits))) break;
        weigh();
      }
      if (up && !room[r].takes(limits)) return {};
      rows[r].push_back(a);
      free[r] = std::max(free[r], ready) + t.of(a.kind);
      double& made = up ? forward[here] : gradient[here];
      if (made <= -2) runnable.push_back(static_cast<std::size_t>(-2.0 - made));
      made = free[r];
      room[r].run(a.kind, limits);
      if (!up) {
        a.kind = Kind::backward_weight;
        pending[r].push_back(a);
      }
    }
  }
  Table out{.stages = table.stages, .microbatches = table.microbatches, .slices = table.slices};
  out.actions.reserve(table.actions.size());
  for (std::size_t r = 0; r < P; ++r) {
    out.begin_row();
    for (Action const& a : rows[r]) out.add(a);
    for (; weighed[r] < pending[r].size(); ++weighed[r]) out.add(pending[r][weighed[r]]);
  }
  return out;
}

/// The same table with every backward as I and W side by side: its gradients leave earlier, nothing
/// else changes. Pairs stay as they are.
[[nodiscard]] constexpr Table split_backwards(Table const& table) {
  Table out{.stages = table.stages, .microbatches = table.microbatches, .slices = table.slices};
  out.actions.reserve(table.actions.size() * 3 / 2);
  for (int r = 0; r < table.ranks(); ++r) {
    out.begin_row();
    bool paired = false;  // with the action before
    for (Action a : table.row(r)) {
      bool const alone = !paired && !a.overlaps_next;
      paired = a.overlaps_next;
      if (a.kind == Kind::backward && alone) {
        a.kind = Kind::backward_input;
        out.add(a);
        a.kind = Kind::backward_weight;
      }
      out.add(a);
    }
  }
  return out;
}

}  // namespace stagger::schedule::detail
