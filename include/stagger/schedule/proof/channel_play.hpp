// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plays a table with messages: computes in row order, messages in the order of their
/// channels.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/schedule/proof/play.hpp>

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
    case Kind::send_forward:
      a.kind = Kind::recv_forward;
      ++a.stage;
      break;
    case Kind::recv_forward:
      a.kind = Kind::send_forward;
      --a.stage;
      break;
    case Kind::send_backward:
      a.kind = Kind::recv_backward;
      --a.stage;
      break;
    case Kind::recv_backward:
      a.kind = Kind::send_backward;
      ++a.stage;
      break;
    default:
      break;
  }
  return a;
}

namespace detail {

/// The rendezvous model: computes run in the order of their rows; beside them each channel works
/// through its queue. A transfer starts when its value exists and its SEND and its RECV both head
/// their channel's queue, and occupies both for the edge's transfer time. Computes wait for what
/// they receive and never for what their rank sends.
class ChannelPlay {
 public:
  /// @param table  every send has its receive on another rank, every index is in range
  constexpr ChannelPlay(Table const& table, Channels channels)
      : table_(table),
        meetings_(table),
        none_(static_cast<std::uint32_t>(table.actions.size())),
        shared_(channels != Channels::independent) {
    send_of_.assign(2 * cells(table), none_);
    rank_of_.assign(none_, 0);
    for (std::size_t r = 0; r < table.row_begin.size(); ++r) {
      std::size_t i = table.row_begin[r];
      for (Action const& a : table.row(static_cast<int>(r))) {
        rank_of_[i] = static_cast<std::uint32_t>(r);
        if (sends(a)) send_of_[value(a)] = static_cast<std::uint32_t>(i);
        ++i;
      }
    }
    partner_.assign(none_, none_);
    for (std::uint32_t i = 0; i < none_; ++i) {
      Action const& a = table.actions[i];
      if (!is_message(a.kind) || sends(a)) continue;
      partner_[i] = send_of_[value(partner(a))];
      partner_[partner_[i]] = i;
    }
    if (shared_) queue(channels);
  }

  /// Plays to the end or to a standstill.
  /// `visit` as in `play`, for computes; `moved(send, receive, start, end)` for each transfer, with
  /// indices into `table.actions`.
  /// @return per rank, the position of its first action that never ran; the row's length where all
  /// did
  template <class Visit, class Moved>
  [[nodiscard]] constexpr std::vector<std::size_t> run(std::vector<StageTimes> const& times,
                                                       double overlap_s, Visit&& visit,
                                                       Moved&& moved) {
    std::size_t const ranks = table_.row_begin.size();
    made_.assign(2 * cells(table_), -1.0);
    arrived_.assign(2 * cells(table_), -1.0);
    done_.assign(none_, 0);
    waits_for_.assign(ranks, 0);
    std::vector<std::size_t> cursor(ranks, 0);
    std::vector<double> free(ranks, 0.0);
    std::vector<std::size_t> runnable;
    for (std::size_t r = ranks; r-- > 0;) runnable.push_back(r);
    while (!runnable.empty()) {
      std::size_t const rank = runnable.back();
      runnable.pop_back();
      advance(rank, cursor, free, times, overlap_s, visit, runnable);
      transfer(times, moved, runnable);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      std::size_t const length = table_.row(static_cast<int>(r)).size();
      cursor[r] = 0;
      while (cursor[r] < length && done_[table_.row_begin[r] + cursor[r]] != 0) ++cursor[r];
    }
    return cursor;
  }

  /// What holds up an action that never ran.
  struct Hold {
    std::size_t at = 0;     ///< the action; the second of a pair where it is that one's input
    std::size_t needs = 0;  ///< what it waits for
    std::size_t next = 0;   ///< what never ran and stands before that, on its rank or channel
  };

  /// @pre `run` came to a standstill; `index` is the first action of its rank or of its channel
  /// that never ran
  [[nodiscard]] constexpr Hold hold(std::size_t index) const {
    Action const& a = table_.actions[index];
    if (is_message(a.kind)) {
      std::size_t const send = sends(a) ? index : partner_[index];
      std::size_t const v = value(table_.actions[send]);
      return made_[v] < 0 ? not_made(index, v) : not_moved(index, send);
    }
    if (a.kind == Kind::reduce_gradient) {
      for (std::size_t other = 0; other < none_; ++other) {
        Action const& b = table_.actions[other];
        if (b.kind != a.kind || b.stage != a.stage || stands(rank_of_[other]) == other) continue;
        return {index, other, stands(rank_of_[other])};
      }
    }
    std::size_t const half = cells(table_), stride = half / static_cast<std::size_t>(table_.stages);
    for (std::size_t at = index; at < index + (a.overlaps_next ? 2 : 1); ++at) {
      Action const& b = table_.actions[at];
      std::size_t const here = cell(table_, b);
      if (b.kind == Kind::backward_weight) {
        if (made_[half + here] < 0) return not_made(at, half + here);
        continue;
      }
      bool const forward = b.kind == Kind::forward;
      if (!forward && made_[here] < 0) return not_made(at, here);
      if (b.stage == (forward ? 0 : table_.stages - 1)) continue;
      std::size_t const v = forward ? here - stride : half + here + stride;
      if (made_[v] < 0) return not_made(at, v);
      if (arrived_[v] < 0) return not_moved(at, send_of_[v]);
    }
    return {index, index, index};
  }

  /// Row of an action.
  [[nodiscard]] constexpr std::size_t rank_of(std::size_t index) const noexcept {
    return rank_of_[index];
  }

 private:
  [[nodiscard]] static constexpr bool sends(Action const& a) noexcept {
    return a.kind == Kind::send_forward || a.kind == Kind::send_backward;
  }

  /// The first action of a rank, messages aside, that never ran.
  [[nodiscard]] constexpr std::size_t stands(std::size_t rank) const noexcept {
    std::size_t at = table_.row_begin[rank];
    while (done_[at] != 0 || is_message(table_.actions[at].kind)) ++at;
    return at;
  }
  [[nodiscard]] constexpr Hold not_made(std::size_t at, std::size_t v) const noexcept {
    std::size_t maker = 0;
    for (;; ++maker) {
      Action const& a = table_.actions[maker];
      if (is_compute(a.kind) && a.kind != Kind::backward_weight && value(a) == v) break;
    }
    return {at, maker, stands(rank_of_[maker])};
  }
  /// A message whose value is there and which is not the first of both its channels.
  [[nodiscard]] constexpr Hold not_moved(std::size_t at, std::size_t send) const noexcept {
    std::size_t const end = head_[lane_[send]] != send ? send : partner_[send];
    return {at, end, head_[lane_[end]]};
  }

  /// Index of what an action makes or sends: forwards first, gradients behind them.
  [[nodiscard]] constexpr std::size_t value(Action const& a) const noexcept {
    return cell(table_, a) +
           (a.kind == Kind::forward || a.kind == Kind::send_forward ? 0 : cells(table_));
  }

  /// Strings each channel's messages together: one queue for each end of each channel.
  constexpr void queue(Channels channels) {
    next_.assign(none_, none_);
    lane_.assign(none_, 0);
    std::vector<std::uint32_t> tail;
    for (std::size_t r = 0; r < table_.row_begin.size(); ++r) {
      std::vector<std::uint32_t> peers, lane_to;  // met so far on this rank, and their lanes
      std::size_t const end = table_.row_begin[r] + table_.row(static_cast<int>(r)).size();
      for (std::size_t i = table_.row_begin[r]; i < end; ++i) {
        if (!is_message(table_.actions[i].kind)) continue;
        std::uint32_t const peer = channels == Channels::per_rank ? 0 : rank_of_[partner_[i]];
        std::size_t p = 0;
        while (p < peers.size() && peers[p] != peer) ++p;
        if (p == peers.size()) {
          peers.push_back(peer);
          lane_to.push_back(static_cast<std::uint32_t>(head_.size()));
          head_.push_back(static_cast<std::uint32_t>(i));
          tail.push_back(none_);
        }
        std::uint32_t const lane = lane_to[p];
        lane_[i] = lane;
        if (tail[lane] != none_) next_[tail[lane]] = static_cast<std::uint32_t>(i);
        tail[lane] = static_cast<std::uint32_t>(i);
      }
    }
    lane_free_.assign(head_.size(), 0.0);
  }

  /// When the input of an action is on its rank; negative while it is not.
  [[nodiscard]] constexpr double arrives(std::size_t rank, Action const& a, double& given) {
    std::size_t const here = cell(table_, a),
                      stride = cells(table_) / static_cast<std::size_t>(table_.stages);
    std::size_t from = here;
    if (a.kind == Kind::forward) {
      if (a.stage == 0) return 0.0;
      from -= stride;
    } else if (a.kind == Kind::backward_weight) {
      return made_[here + cells(table_)] < 0 ? -1.0 : 0.0;
    } else {
      if (made_[here] < 0) return -1.0;
      if (a.stage + 1 == table_.stages) return 0.0;
      from += cells(table_) + stride;
    }
    if (arrived_[from] < 0) waits_for_[rank] = from;
    if (made_[from] > given) given = made_[from];
    return arrived_[from];
  }

  template <class Visit>
  constexpr void advance(std::size_t rank, std::vector<std::size_t>& cursor,
                         std::vector<double>& free, std::vector<StageTimes> const& times,
                         double overlap_s, Visit& visit, std::vector<std::size_t>& runnable) {
    auto const row = table_.row(static_cast<int>(rank));
    std::size_t& at = cursor[rank];
    double& now = free[rank];
    while (at < row.size()) {
      Action const& a = row[at];
      if (a.kind == Kind::reduce_gradient) {
        if (!meetings_.come(a.stage, rank, now)) return;
        double const start = meetings_.start_s(a.stage);
        double const end = start + times[static_cast<std::size_t>(a.stage)].reduce;
        for (std::size_t const other : meetings_.ranks(a.stage)) {
          visit(other, cursor[other], start, end, 0.0);
          done_[table_.row_begin[other] + cursor[other]] = 1;
          ++cursor[other];
          free[other] = end;
          if (other != rank) runnable.push_back(other);
        }
        continue;
      }
      if (!is_compute(a.kind)) {
        ++at;
        continue;
      }
      std::size_t const count = a.overlaps_next && at + 1 < row.size() ? 2 : 1;
      double given = 0, ready = 0, cost = 0;
      for (std::size_t k = 0; k < count; ++k) {
        double const t = arrives(rank, row[at + k], given);
        if (t < 0) return;
        if (t > ready) ready = t;
        cost += times[static_cast<std::size_t>(row[at + k].stage)].of(row[at + k].kind);
      }
      double const start = ready > now ? ready : now;
      now = start + (count == 2 && overlap_s >= 0 ? overlap_s : cost);
      for (std::size_t k = 0; k < count; ++k) {
        visit(rank, at + k, start, now, given);
        done_[table_.row_begin[rank] + at + k] = 1;
        if (row[at + k].kind == Kind::backward_weight) continue;
        std::size_t const v = value(row[at + k]);
        made_[v] = now;
        if (send_of_[v] == none_) {
          arrived_[v] = now;  // read on this rank
        } else {
          offered_.push_back(send_of_[v]);
        }
      }
      at += count;
    }
  }

  template <class Moved>
  constexpr void transfer(std::vector<StageTimes> const& times, Moved& moved,
                          std::vector<std::size_t>& runnable) {
    while (!offered_.empty()) {
      std::uint32_t send = offered_.back();
      offered_.pop_back();
      if (!sends(table_.actions[send])) send = partner_[send];
      std::uint32_t const receive = partner_[send];
      std::size_t const v = value(table_.actions[send]);
      double start = made_[v];
      if (done_[send] != 0 || start < 0) continue;
      if (shared_) {
        if (head_[lane_[send]] != send || head_[lane_[receive]] != receive) continue;
        if (lane_free_[lane_[send]] > start) start = lane_free_[lane_[send]];
        if (lane_free_[lane_[receive]] > start) start = lane_free_[lane_[receive]];
      }
      Action const& b = table_.actions[receive];
      StageTimes const& into = times[static_cast<std::size_t>(b.stage)];
      double const end =
          start + (b.kind == Kind::recv_forward ? into.link_forward : into.link_backward);
      done_[send] = done_[receive] = 1;
      arrived_[v] = end;
      moved(send, receive, start, end);
      std::uint32_t const reader = rank_of_[receive];
      if (waits_for_[reader] == v) runnable.push_back(reader);
      if (!shared_) continue;
      for (std::uint32_t const m : {send, receive}) {
        lane_free_[lane_[m]] = end;
        head_[lane_[m]] = next_[m];
        if (next_[m] != none_) offered_.push_back(next_[m]);
      }
    }
  }

  Table const& table_;
  Meetings meetings_;
  std::uint32_t none_;  // no action
  bool shared_;
  std::vector<std::uint32_t>
      send_of_{};  // [2 * cells] the SEND of a value; none_ where it stays on its rank
  std::vector<std::uint32_t> rank_of_{};    // [actions]
  std::vector<std::uint32_t> partner_{};    // [actions] other end of a message
  std::vector<std::uint32_t> next_{};       // [actions] next message in the same queue
  std::vector<std::uint32_t> lane_{};       // [actions] queue of a message
  std::vector<std::uint32_t> head_{};       // [queues]
  std::vector<double> lane_free_{};         // [queues]
  std::vector<std::uint32_t> offered_{};    // messages to look at again
  std::vector<double> made_{}, arrived_{};  // [2 * cells]
  std::vector<std::size_t> waits_for_{};    // [ranks] the value a rank stands at
  std::vector<char> done_{};                // [actions]
};

}  // namespace detail
}  // namespace stagger::schedule
