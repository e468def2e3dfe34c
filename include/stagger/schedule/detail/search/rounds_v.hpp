// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The published heuristic for a V, as rules that the search tries beside its own.
/// @source Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, and the
///         authors' generator of ZB-V. Limits and costs are each stage's own here.

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Lays a table on a V in rounds: in each, every rank runs the gradient that is next on one of its
/// two chunks, then a forward on one of them. Rank r runs stages r and 2P - 1 - r.
class RoundsV {
 public:
  /// Where a microbatch is on its way: down and up the ranks with its forwards, then its gradients.
  enum Pass : unsigned char { forward_down, forward_up, gradient_down, gradient_up };

  /// @param fill_gradient, fill_forward  whether a weight gradient fills the gap before a late
  ///        gradient or forward even if the rank may still idle
  /// @param spare  [ranks] idle seconds of the previous run, which this one may use again; or empty
  RoundsV(Shape shape, Times const& times, Limits const& limits, bool fill_gradient,
          bool fill_forward, Grid<double> spare = {})
      : P_(shape.ranks),
        M_(shape.microbatches),
        times_(times),
        limits_(limits),
        fill_gradient_(fill_gradient),
        fill_forward_(fill_forward),
        spare_(std::move(spare)),
        ranks_(P_),
        made_(4 * P_, M_, -1.0) {
    for (double const s : spare_) most_spare_ = std::max(most_spare_, s);
    if (limits_.in_flight == 0 && limits_.memory == 0) limits_.in_flight = 2 * shape.ranks;
  }

  /// @return an empty table where the rule cannot keep the limits
  [[nodiscard]] Table table() {
    begin();
    for (int round = 0; round < 2 * M_ && good_; ++round) {
      gradients();
      for (int r = 0; r < P_ && good_; ++r) one_forward(r);
    }
    for (int r = 0; r < P_ && good_; ++r) {
      while (owes(r)) weight(r);
      good_ = static_cast<int>(ranks_[r].row.size()) == 6 * M_;
    }
    if (!good_) return {};
    Table out = Table{.stages = 2 * P_, .microbatches = M_}.like(6 * P_ * M_);
    for (Rank const& rank : ranks_) out.add_row(rank.row);
    return out;
  }

  /// Idle seconds of each rank since its first forward.
  [[nodiscard]] Grid<double> idle() const {
    Grid<double> all(P_);
    for (int r = 0; r < P_; ++r) all[r] = ranks_[r].idle;
    return all;
  }

 private:
  struct Rank {
    double free = 0, idle = 0;
    Occupancy occupancy{};
    std::array<int, 4> done{};      // by pass
    std::vector<Action> pending{};  // weight gradients, oldest first
    std::size_t weighed = 0;
    std::vector<Action> row{};
  };

  [[nodiscard]] int stage(int r, Pass pass) const {
    return pass == forward_down || pass == gradient_up ? r : 2 * P_ - 1 - r;
  }
  [[nodiscard]] double& made(Pass pass, int r, int m) { return made_(pass * P_ + r, m); }

  /// When the input of the next action of a pass comes from another rank; 0 where it does not come
  /// from one, negative where it is not made.
  [[nodiscard]] double comes(int r, Pass pass) {
    bool const down = pass == forward_down || pass == gradient_down;
    if (down ? r == 0 : r + 1 == P_) return 0;
    double const input = made(pass, down ? r - 1 : r + 1, ranks_[r].done[pass]);
    StageTimes const& t = times_[stage(r, pass)];
    return input < 0 ? -1
                     : input + (pass == forward_down || pass == forward_up ? t.link_forward
                                                                           : t.link_backward);
  }

  void run(int r, Pass pass) {
    Rank& rank = ranks_[r];
    int const m = rank.done[pass];
    double const ready = m < M_ ? comes(r, pass) : -1;
    bool const before = pass == forward_down || (m < M_ && made(Pass(pass - 1), r, m) >= 0);
    bool const forward = pass == forward_down || pass == forward_up;
    if (ready < 0 || !before || (forward && !rank.occupancy.takes(limits_))) {
      good_ = false;
      return;
    }
    Action a{.kind = forward ? Kind::forward : Kind::backward_input,
             .stage = stage(r, pass),
             .microbatch = m};
    double const start = std::max(rank.free, ready);
    if (rank.done[forward_down] > 0) rank.idle += start - rank.free;
    most_idle_ = std::max(most_idle_, rank.idle);
    rank.free = start + times_[stage(r, pass)].of(a.kind);
    made(pass, r, m) = rank.free;
    ++rank.done[pass];
    rank.row.push_back(a);
    rank.occupancy.run(a.kind, limits_);
    if (!forward) {
      a.kind = Kind::backward_weight;
      rank.pending.push_back(a);
    }
  }

  [[nodiscard]] bool owes(int r) const { return ranks_[r].weighed < ranks_[r].pending.size(); }
  void weight(int r) {
    Rank& rank = ranks_[r];
    Action const a = rank.pending[rank.weighed++];
    rank.free += times_[a.stage].weight;
    rank.occupancy.run(a.kind, limits_);
    rank.row.push_back(a);
  }

  /// Idle time that this rank can still have without being the worst.
  [[nodiscard]] double to_spare(int r) const {
    double most = most_idle_;
    if (!spare_.empty()) most = std::max(most, most_spare_ - spare_[r]);
    return most - ranks_[r].idle;
  }

  void fill(int r, double arrival, bool also_spare) {
    Rank& rank = ranks_[r];
    while (owes(r) && arrival >= rank.free + times_[rank.pending[rank.weighed].stage].weight)
      weight(r);
    if (owes(r) && arrival - rank.free > to_spare(r) && also_spare) weight(r);
  }

  void begin() {
    for (int r = 0; r < P_ && good_; ++r) run(r, forward_down);
    for (int r = P_; r-- > 0 && good_;) {
      if (r + 1 < P_) {
        double const up = comes(r, forward_up);
        while (good_ && has_room(r, 2 + 2 * r) && ranks_[r].free + times_[r].forward <= up &&
               ranks_[r].done[forward_down] < M_) {
          for (int q = 0; q <= r && good_; ++q) run(q, forward_down);
        }
      }
      if (good_) run(r, forward_up);
    }
    Pass next = forward_down;
    for (int r = 1; r < P_ && good_; ++r) {
      auto const& here = ranks_[r].done;
      auto const& above = ranks_[r - 1].done;
      int rounds = 0;
      while (good_ && rounds++ <= 2 * M_ &&
             (here[forward_down] + here[forward_up] < above[forward_down] + above[forward_up] ||
              (here[forward_up] <= above[forward_up] && above[forward_up] < M_))) {
        for (int q = P_; q-- > r && good_;) {
          if (ranks_[q].done[next] < M_) run(q, next);
        }
        next = next == forward_down ? forward_up : forward_down;
      }
    }
  }
  [[nodiscard]] bool has_room(int r, int more) const {
    Occupancy occupancy = ranks_[r].occupancy;
    occupancy.held += more - 1;
    occupancy.live += more - 1;
    return occupancy.takes(limits_);
  }

  void gradients() {
    std::vector<int> up, down;
    for (int r = 0; r < P_; ++r) {
      auto const& done = ranks_[r].done;
      bool const second = done[gradient_up] < done[gradient_down] &&
                          (r + 1 == P_ || done[gradient_down] >= M_ || comes(r, gradient_up) >= 0);
      (second ? up : down).push_back(r);
    }
    std::reverse(up.begin(), up.end());
    for (int const r : up)
      if (good_) one_gradient(r, gradient_up);
    for (int const r : down)
      if (good_) one_gradient(r, gradient_down);
  }
  void one_gradient(int r, Pass pass) {
    if (ranks_[r].done[pass] >= M_) {
      good_ = false;
      return;
    }
    double const arrival = comes(r, pass);
    fill(r, arrival, pass == gradient_up || fill_gradient_);
    run(r, pass);
  }

  void one_forward(int r) {
    Rank& rank = ranks_[r];
    auto const& done = rank.done;
    if (done[forward_up] >= M_) return;
    Pass pass = forward_down;
    if (done[forward_up] < done[forward_down] && comes(r, forward_up) >= 0) {
      pass = forward_up;
    } else if (done[forward_down] >= M_ || comes(r, forward_down) < 0) {
      return;
    }
    while (!rank.occupancy.takes(limits_)) {
      if (!owes(r)) {
        good_ = false;
        return;
      }
      weight(r);
    }
    fill(r, comes(r, pass), fill_forward_);
    run(r, pass);
  }

  int P_, M_;
  Times const& times_;
  Limits limits_;
  bool fill_gradient_, fill_forward_;
  Grid<double> spare_;
  double most_spare_ = 0, most_idle_ = 0;
  Grid<Rank> ranks_;
  Grid<double> made_;  // [4 * P][M] ends of passes; -1: not run
  bool good_ = true;
};

/// Calls `with(table)` for each table that the rules make. The published rules know one cost for
/// all stages: here the mean, and each its own.
template <class With>
void each_rounds_v(Shape shape, Times const& times, Limits const& limits, With&& with) {
  StageTimes mean;
  for (StageTimes const& t : times) {
    mean.forward += t.forward / times.size();
    mean.input += t.input / times.size();
    mean.weight += t.weight / times.size();
  }
  Times alike(times.size(), mean);
  for (int s = 0; s < times.size(); ++s) {
    alike[s].link_forward = times[s].link_forward;
    alike[s].link_backward = times[s].link_backward;
  }
  for (unsigned ways = 0; ways < 8; ++ways) {
    Grid<double> spare;
    double least = std::numeric_limits<double>::infinity();
    for (;;) {  // again with the idle time of the run before, as long as that falls
      RoundsV rounds(shape, (ways & 4U) != 0 ? times : alike, limits, (ways & 1U) != 0,
                     (ways & 2U) != 0, spare);
      Table const table = rounds.table();
      if (table.stages == 0) break;
      with(table);
      spare = rounds.idle();
      double const most = *std::max_element(spare.begin(), spare.end());
      if (most >= least) break;
      least = most;
    }
  }
}

}  // namespace stagger::schedule::detail
