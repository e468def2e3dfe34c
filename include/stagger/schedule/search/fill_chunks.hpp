// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   List scheduling of several stages on each rank, within limits that are used to the last
/// half of an activation.
/// @source What makes a forward safe is the banker's algorithm of Dijkstra, EWD 108.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/shape.hpp>
#include <stagger/schedule/limits.hpp>
#include <stagger/schedule/proof/play.hpp>

namespace stagger::schedule::detail {

/// How one run of `FillChunks` decides.
struct ChunkRule {
  bool alternate = false;  ///< after a gradient a forward first; else always the gradient
  bool deepest = false;    ///< of forwards that of the oldest microbatch; else of the first stage
  double wait_policy =
      0;           ///< a weight gradient does not start when an input comes within this part
                   ///< of it
  int window = 0;  ///< most microbatches between first forward and last gradient; 0: no limit
};

/// Each rank, whenever it is free, runs a gradient, a forward or a weight gradient of one of its
/// stages. A forward runs only where the microbatches begun can still come to their end one after
/// the other, so that no rank is left without the room that its later stages need.
class FillChunks {
 public:
  /// @param owner  [D][stages] the rank of each stage for each of D equal parts of the microbatches
  FillChunks(Shape shape, std::vector<std::size_t> const& owner,
             std::vector<StageTimes> const& times, Limits const& limits, ChunkRule rule)
      : S_(times.size()),
        D_(owner.size() / S_),
        N_(static_cast<std::size_t>(shape.microbatches) / D_),
        owner_(owner),
        times_(times),
        limits_(limits),
        limited_(limits.in_flight > 0 || limits.memory > 0),
        rule_(rule),
        ranks_(static_cast<std::size_t>(shape.ranks)),
        forward_at_(D_ * S_ * N_, -1.0),
        gradient_at_(D_ * S_ * N_, -1.0),
        done_(D_ * S_, Done{}) {
    for (std::size_t l = 0; l < owner.size(); ++l) ranks_[owner[l]].lanes.push_back(l);
    for (std::size_t d = 0; d < D_; ++d) {
      for (std::size_t n = 0; n < N_; ++n) forward_at_[d * S_ * N_ + n] = 0;
    }
  }

  /// @return an empty table where it ends no sooner than `enough`
  [[nodiscard]] Table table(double enough) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) wake(0, r);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      Wake const next = heap_.back();
      heap_.pop_back();
      if (ranks_[next.rank].free > next.at) continue;
      if (step(next.rank, next.at) && ranks_[next.rank].free >= enough) return {};
    }
    Table out{.stages = static_cast<int>(S_), .microbatches = static_cast<int>(D_ * N_)};
    out.actions.reserve(3 * S_ * D_ * N_);
    for (Rank const& rank : ranks_) {
      if (rank.row.size() != 3 * rank.lanes.size() * N_) return {};
      out.begin_row();
      for (Action const& a : rank.row) out.add(a);
    }
    return out;
  }

 private:
  struct Done {  // how many of each have been started
    std::size_t forwards = 0, gradients = 0, weights = 0;
  };
  struct Rank {
    double free = 0;
    Room room{};
    std::vector<std::size_t> lanes{};    // a stage for one part of the microbatches: d * S + stage
    std::vector<std::size_t> pending{};  // lanes of weight gradients, oldest first
    std::size_t weighed = 0;
    bool after_gradient = false;
    std::vector<Action> row{};
  };
  struct Wake {
    double at;
    std::size_t rank;
  };
  static bool later(Wake const& a, Wake const& b) {
    return a.at > b.at || (a.at == b.at && a.rank > b.rank);
  }
  void wake(double at, std::size_t rank) {
    heap_.push_back({at, rank});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  /// With one more forward of a lane, can all microbatches begun on this rank run their forwards,
  /// the oldest first, each with the room that those before it give back? All ranks ask in the same
  /// order, so that the oldest of all is never stuck.
  [[nodiscard]] bool safe(Rank const& rank, std::size_t more) const {
    auto const weights = static_cast<int>(rank.pending.size() - rank.weighed);
    double free = limits_.memory - rank.room.held - 1 + limits_.weight_share * weights;
    int places = limits_.in_flight - rank.room.live - 1 + weights;
    std::size_t oldest = N_, newest = 0;
    for (std::size_t const l : rank.lanes) {
      oldest = std::min(oldest, done_[l].gradients);
      newest = std::max(newest, done_[l].forwards + (l == more ? 1 : 0));
    }
    for (std::size_t n = oldest; n < newest; ++n) {
      for (std::size_t d = 0; d < D_; ++d) {
        int needs = 0, gives = 0;
        for (std::size_t const l : rank.lanes) {
          if (l / S_ != d || done_[l].gradients > n) continue;
          ++(done_[l].forwards + (l == more ? 1 : 0) <= n ? needs : gives);
        }
        if (limits_.memory > 0 && needs > free + 1e-9) return false;
        if (limits_.in_flight > 0 && needs > places) return false;
        free += gives;
        places += gives;
      }
    }
    return true;
  }

  /// Is the next action of a lane, on its n-th microbatch, better than that of another?
  [[nodiscard]] bool before(std::size_t l, std::size_t n, std::size_t other, bool forward) const {
    std::size_t const m = forward ? done_[other].forwards : done_[other].gradients;
    if (forward && !rule_.deepest) return l % S_ < other % S_;
    return n < m || (n == m && l % S_ > other % S_);
  }

  /// Starts what is best now.
  /// @return false where the rank waits for an input
  bool step(std::size_t r, double now) {
    Rank& rank = ranks_[r];
    std::size_t const none = done_.size();
    std::size_t forward = none, gradient = none;
    double soon = -1;  // the next input on its way
    bool full = false;
    auto const comes = [&](double at) { soon = soon < 0 ? at : std::min(soon, at); };
    std::size_t const window = (static_cast<std::size_t>(rule_.window) + D_ - 1) / D_;
    for (std::size_t const l : rank.lanes) {
      auto const& [f, i, w] = done_[l];
      if (i < f) {
        double const at = gradient_at_[l * N_ + i];
        if (at > now) comes(at);
        if (at >= 0 && at <= now && (gradient == none || before(l, i, gradient, false)))
          gradient = l;
      }
      if (f == N_ || (l % S_ == 0 && window > 0 && f >= i + window)) continue;
      double const at = forward_at_[l * N_ + f];
      if (at < 0) continue;
      if (limited_ && !(rank.room.takes(limits_) && safe(rank, l))) {
        full = true;
      } else if (at > now) {
        comes(at);
      } else if (forward == none || before(l, f, forward, true)) {
        forward = l;
      }
    }
    if (gradient != none && !(rule_.alternate && rank.after_gradient && forward != none)) {
      run(r, gradient, Kind::backward_input, now);
    } else if (forward != none) {
      run(r, forward, Kind::forward, now);
    } else if (rank.weighed < rank.pending.size()) {
      std::size_t const l = rank.pending[rank.weighed];
      if (soon > 0 && !full && soon < now + rule_.wait_policy * times_[l % S_].weight) return false;
      ++rank.weighed;
      run(r, l, Kind::backward_weight, now);
    } else {
      return false;
    }
    return true;
  }

  void run(std::size_t r, std::size_t l, Kind kind, double now) {
    Rank& rank = ranks_[r];
    std::size_t const s = l % S_;
    Done& done = done_[l];
    double const end = now + times_[s].of(kind);
    std::size_t const n = kind == Kind::forward          ? done.forwards++
                          : kind == Kind::backward_input ? done.gradients++
                                                         : done.weights++;
    auto const give = [&](std::size_t to, std::vector<double>& arrival, double link) {
      arrival[to * N_ + n] = end + link;
      if (owner_[to] != r) wake(end + link, owner_[to]);
    };
    rank.after_gradient =
        kind == Kind::backward_input || (kind == Kind::backward_weight && rank.after_gradient);
    if (kind == Kind::forward) {
      if (s + 1 < S_)
        give(l + 1, forward_at_, times_[s + 1].link_forward);
      else
        gradient_at_[l * N_ + n] = end;
    } else if (kind == Kind::backward_input) {
      rank.pending.push_back(l);
      if (s > 0) give(l - 1, gradient_at_, times_[s - 1].link_backward);
    }
    rank.room.run(kind, limits_);
    rank.row.push_back({.kind = kind,
                        .stage = static_cast<int>(s),
                        .microbatch = static_cast<int>(l / S_ * N_ + n)});
    rank.free = end;
    wake(end, r);
  }

  std::size_t S_, D_, N_;  // stages, parts, microbatches of a part
  std::vector<std::size_t> const& owner_;
  std::vector<StageTimes> const& times_;
  Limits limits_;
  bool limited_;
  ChunkRule rule_;
  std::vector<Rank> ranks_;
  std::vector<double> forward_at_, gradient_at_;  // [D * S * N] when inputs arrive; -1: not made
  std::vector<Done> done_;                        // [D * S]
  std::vector<Wake> heap_{};
};

}  // namespace stagger::schedule::detail
