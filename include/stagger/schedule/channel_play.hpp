// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plays a table with messages: computes in row order, messages in the order of their channels.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/schedule/play.hpp>

namespace stagger::schedule {

/// Which messages wait for each other.
enum class Channels : std::uint8_t {
  independent,  ///< none do
  per_peer,     ///< those between the same two ranks, in each rank's row order
  per_rank,     ///< all of a rank's, in its row order
};

/// The other end of a message: `1SEND_F0` and `2RECV_F0`, `2SEND_B0` and `1RECV_B0`.
[[nodiscard]] constexpr Action partner(Action a) noexcept {
  switch (a.kind) {
    case Kind::send_forward: a.kind = Kind::recv_forward; ++a.stage; break;
    case Kind::recv_forward: a.kind = Kind::send_forward; --a.stage; break;
    case Kind::send_backward: a.kind = Kind::recv_backward; --a.stage; break;
    case Kind::recv_backward: a.kind = Kind::send_backward; ++a.stage; break;
    default: break;
  }
  return a;
}

namespace detail {

/// The rendezvous model: a transfer starts when its value exists and its SEND and its RECV both head their
/// channel's queue, and occupies both for the edge's transfer time. Computes never wait for sends.
class ChannelPlay {
 public:
  /// @param table  every send has its receive on another rank, every index is in range
  constexpr ChannelPlay(Table const& table, Channels channels) : table_(table), shared_(channels != Channels::independent) {
    std::size_t const n = table.actions.size();
    std::vector<std::uint32_t> send_f(cells(table), 0), send_b(cells(table), 0);
    rank_of_.assign(n, 0);
    for (int r = 0; r < table.ranks(); ++r) {
      std::size_t i = table.row_begin[static_cast<std::size_t>(r)];
      for (Action const& a : table.row(r)) {
        rank_of_[i] = r;
        if (a.kind == Kind::send_forward) send_f[cell(table, a)] = static_cast<std::uint32_t>(i);
        if (a.kind == Kind::send_backward) send_b[cell(table, a)] = static_cast<std::uint32_t>(i);
        ++i;
      }
    }
    partner_.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      Action const& a = table.actions[i];
      if (a.kind != Kind::recv_forward && a.kind != Kind::recv_backward) continue;
      std::size_t const sent = (a.kind == Kind::recv_forward ? send_f : send_b)[cell(table, partner(a))];
      partner_[i] = static_cast<std::uint32_t>(sent);
      partner_[sent] = static_cast<std::uint32_t>(i);
    }
    if (shared_) queue(channels);
  }

  /// Plays to the end or to a standstill.
  /// `visit` as in `play`, for computes; `moved(send, receive, start, end)` for each transfer, with indices into
  /// `table.actions`.
  /// @return per rank, the position of its first action that never ran; the row's length where all did
  template <class Visit, class Moved>
  [[nodiscard]] constexpr std::vector<std::size_t> run(std::vector<StageTimes> const& times, double overlap_s,
                                                       Visit&& visit, Moved&& moved) {
    std::size_t const ranks = table_.row_begin.size();
    made_.assign(2 * cells(table_), -1.0);
    arrived_.assign(2 * cells(table_), -1.0);
    done_.assign(table_.actions.size(), 0);
    std::vector<std::size_t> cursor(ranks, 0);
    std::vector<double> free(ranks, 0.0);
    std::vector<std::size_t> runnable;
    for (std::size_t r = ranks; r-- > 0;) runnable.push_back(r);
    while (!runnable.empty()) {
      std::size_t const rank = runnable.back();
      runnable.pop_back();
      advance(rank, cursor[rank], free[rank], times, overlap_s, visit);
      transfer(times, moved, runnable);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      auto const row = table_.row(static_cast<int>(r));
      cursor[r] = 0;
      while (cursor[r] < row.size() && done_[table_.row_begin[r] + cursor[r]] != 0) ++cursor[r];
    }
    return cursor;
  }

 private:
  /// Strings each channel's messages together: one queue for each end of each channel.
  constexpr void queue(Channels channels) {
    std::size_t const none = table_.actions.size();
    next_.assign(none, static_cast<std::uint32_t>(none));
    lane_.assign(none, 0);
    std::vector<std::uint32_t> tail;
    for (int r = 0; r < table_.ranks(); ++r) {
      std::vector<std::uint32_t> lane_to;  // of this rank: peers met so far, and their lanes
      std::vector<int> peers;
      std::size_t i = table_.row_begin[static_cast<std::size_t>(r)];
      for (Action const& a : table_.row(r)) {
        if (!is_compute(a.kind)) {
          int const peer = channels == Channels::per_rank ? -1 : rank_of_[partner_[i]];
          std::size_t p = 0;
          while (p < peers.size() && peers[p] != peer) ++p;
          if (p == peers.size()) {
            peers.push_back(peer);
            lane_to.push_back(static_cast<std::uint32_t>(head_.size()));
            head_.push_back(static_cast<std::uint32_t>(i));
            tail.push_back(static_cast<std::uint32_t>(none));
          }
          std::uint32_t const lane = lane_to[p];
          lane_[i] = lane;
          if (tail[lane] != none) next_[tail[lane]] = static_cast<std::uint32_t>(i);
          tail[lane] = static_cast<std::uint32_t>(i);
        }
        ++i;
      }
    }
    lane_free_.assign(head_.size(), 0.0);
  }

  /// Index of an action's value: forwards first, gradients behind them.
  [[nodiscard]] constexpr std::size_t value(Action const& a) const noexcept {
    bool const forward = a.kind == Kind::forward || a.kind == Kind::send_forward || a.kind == Kind::recv_forward;
    return cell(table_, a) + (forward ? 0 : cells(table_));
  }

  /// When the input of an action is on its rank; negative while it is not.
  [[nodiscard]] constexpr double arrives(Action const& a, int rank, double& given) const {
    Action from = a;
    if (a.kind == Kind::backward_weight) return made_[value(a)] < 0 ? -1.0 : 0.0;
    if (a.kind == Kind::forward) {
      if (a.stage == 0) return 0.0;
      --from.stage;
    } else {
      if (made_[cell(table_, a)] < 0) return -1.0;
      if (a.stage + 1 == table_.stages) return 0.0;
      ++from.stage;
    }
    std::size_t const v = value(from);
    double const here = arrived_[v] >= 0 ? arrived_[v] : (made_by(v) == rank ? made_[v] : -1.0);
    if (here >= 0 && made_[v] > given) given = made_[v];
    return here;
  }
  [[nodiscard]] constexpr int made_by(std::size_t v) const { return maker_.empty() ? -1 : maker_[v]; }

  template <class Visit>
  constexpr void advance(std::size_t rank, std::size_t& at, double& now, std::vector<StageTimes> const& times,
                         double overlap_s, Visit& visit) {
    if (maker_.empty()) maker_.assign(2 * cells(table_), -1);
    auto const row = table_.row(static_cast<int>(rank));
    std::size_t const base = table_.row_begin[rank];
    while (at < row.size()) {
      Action const& a = row[at];
      if (!is_compute(a.kind)) {
        if (a.kind == Kind::send_forward || a.kind == Kind::send_backward) offer(base + at);
        ++at;
        continue;
      }
      std::size_t const count = a.overlaps_next && at + 1 < row.size() ? 2 : 1;
      double given = 0, ready = 0, cost = 0;
      for (std::size_t k = 0; k < count; ++k) {
        double const t = arrives(row[at + k], static_cast<int>(rank), given);
        if (t < 0) return;
        if (t > ready) ready = t;
        cost += times[static_cast<std::size_t>(row[at + k].stage)].of(row[at + k].kind);
      }
      double const start = ready > now ? ready : now;
      now = start + (count == 2 && overlap_s >= 0 ? overlap_s : cost);
      for (std::size_t k = 0; k < count; ++k) {
        Action const& b = row[at + k];
        visit(rank, at + k, start, now, given);
        done_[base + at + k] = 1;
        if (b.kind != Kind::backward_weight) {
          made_[value(b)] = now;
          maker_[value(b)] = static_cast<int>(rank);
        }
      }
      at += count;
    }
  }

  /// A send whose value exists, or any message that may have come to the head of its queue.
  constexpr void offer(std::size_t message) { offered_.push_back(static_cast<std::uint32_t>(message)); }

  template <class Moved>
  constexpr void transfer(std::vector<StageTimes> const& times, Moved& moved, std::vector<std::size_t>& runnable) {
    while (!offered_.empty()) {
      std::size_t send = offered_.back();
      offered_.pop_back();
      if (table_.actions[send].kind != Kind::send_forward && table_.actions[send].kind != Kind::send_backward) {
        send = partner_[send];
      }
      std::size_t const receive = partner_[send];
      Action const& a = table_.actions[send];
      double start = made_[value(a)];
      if (done_[send] != 0 || start < 0) continue;
      if (shared_) {
        if (head_[lane_[send]] != send || head_[lane_[receive]] != receive) continue;
        if (lane_free_[lane_[send]] > start) start = lane_free_[lane_[send]];
        if (lane_free_[lane_[receive]] > start) start = lane_free_[lane_[receive]];
      }
      Action const& b = table_.actions[receive];
      StageTimes const& into = times[static_cast<std::size_t>(b.stage)];
      double const end = start + (b.kind == Kind::recv_forward ? into.link_forward : into.link_backward);
      done_[send] = done_[receive] = 1;
      arrived_[value(a)] = end;
      moved(send, receive, start, end);
      runnable.push_back(static_cast<std::size_t>(rank_of_[receive]));
      if (shared_) {
        for (std::size_t const m : {send, receive}) {
          lane_free_[lane_[m]] = end;
          head_[lane_[m]] = next_[m];
          if (next_[m] != table_.actions.size()) offer(next_[m]);
        }
      }
    }
  }

  Table const& table_;
  bool shared_;
  std::vector<int> rank_of_;              // [actions]
  std::vector<std::uint32_t> partner_;    // [actions] other end of a message
  std::vector<std::uint32_t> next_;       // [actions] next message in the same queue
  std::vector<std::uint32_t> lane_;       // [actions] queue of a message
  std::vector<std::uint32_t> head_;       // [queues]
  std::vector<double> lane_free_;         // [queues]
  std::vector<std::uint32_t> offered_;    // messages to look at again
  std::vector<double> made_, arrived_;    // [2 * cells]
  std::vector<int> maker_;                // [2 * cells] rank
  std::vector<char> done_;                // [actions]
};

}  // namespace detail
}  // namespace stagger::schedule
