// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages of a table while it is played: which wait for each other on a shared
///         channel, and when each is transferred.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/proof/detail/entries.hpp>
#include <stagger/schedule/proof/detail/stage_times.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

/// Which messages wait for each other.
enum class Channels : std::uint8_t {
  independent,  ///< none do
  per_peer,     ///< those between the same two ranks, in each rank's row order
  per_rank,     ///< all of a rank's, in its row order
};

/// The other end of a message: `1SEND_F0` and `2RECV_F0`, `2SEND_B0` and `1RECV_B0`.
/// @pre a sends or receives
[[nodiscard]] constexpr Action partner(Action a) noexcept {
  bool const forward = a.kind == Kind::send_forward || a.kind == Kind::recv_forward;
  bool const send = is_send(a.kind);
  a.stage += send == forward ? 1 : -1;
  if (forward)
    a.kind = send ? Kind::recv_forward : Kind::send_forward;
  else
    a.kind = send ? Kind::recv_backward : Kind::send_backward;
  return a;
}

namespace detail {

/// The send of the value that an action makes.
[[nodiscard]] constexpr Action send_of(Action const& a) noexcept {
  return {.kind = a.kind == Kind::forward ? Kind::send_forward : Kind::send_backward,
          .stage = a.stage,
          .microbatch = a.microbatch,
          .slice = a.slice};
}

/// Something that never ran, and the one for which it waits.
struct Held {
  static constexpr std::size_t nowhere = ~std::size_t{0};
  Wait wait{};
  std::size_t next = nowhere;  ///< nowhere: the table does not have what is waited for
};

/// Index of an action in `Table::actions`.
using ActionIndex = std::uint32_t;

/// Which message waits behind which: one queue for each end of each channel, in row order.
struct MessageQueues {
  constexpr MessageQueues(Table const& table, Channels channels, Grid<int> const& rank_of,
                          Grid<ActionIndex> const& partner_of, ActionIndex none)
      : next(none, none), queue_of(none) {
    std::vector<ActionIndex> tail;
    ActionIndex i = 0;
    for (int r = 0; r < table.ranks(); ++r) {
      std::vector<int> peers;           // seen so far on this rank,
      std::vector<ActionIndex> queues;  // and their queues
      for (Action const& a : table.row(r)) {
        ActionIndex const at = i++;
        if (!is_message(a.kind)) continue;
        int const peer = channels == Channels::per_rank ? 0 : rank_of[partner_of[at]];
        std::size_t p = 0;
        while (p < peers.size() && peers[p] != peer) ++p;
        if (p == peers.size()) {
          peers.push_back(peer);
          queues.push_back(static_cast<ActionIndex>(head.size()));
          head.push_back(at);
          tail.push_back(at);
        } else {
          next[tail[queues[p]]] = at;
          tail[queues[p]] = at;
        }
        queue_of[at] = queues[p];
      }
    }
    free_s = Grid<double>(head.size());
  }

  /// True for a message that no other of its channel is in front of.
  [[nodiscard]] constexpr bool is_head(ActionIndex message) const noexcept {
    return head[queue_of[message]] == message;
  }

  Grid<ActionIndex> next;           // [actions] the message after it
  Grid<ActionIndex> queue_of;       // [actions]
  std::vector<ActionIndex> head{};  // [queues] the next message to be transferred
  Grid<double> free_s{};            // [queues] when the channel is free
};

/// How values reach their readers by messages, for `play`. The rendezvous model: computes run in
/// the order of their rows; beside them each channel works through its queue. A transfer starts
/// when its value exists and its SEND and its RECV are both first in their channel's queue, and
/// occupies both for the edge's transfer time. Computes wait for what they receive and never for
/// what their rank sends.
class ChannelTransfers {
 public:
  static constexpr bool has_messages = true;

  /// @param table  every send has its receive on another rank, every index is in range
  constexpr ChannelTransfers(Table const& table, Times const& times, Channels channels)
      : table_(table),
        times_(times),
        stride_(entries_of_stage(table)),
        gradients_(entries(table)),
        none_(static_cast<ActionIndex>(table.actions.size())),
        shared_(channels != Channels::independent),
        rank_of_(none_),
        partner_(none_, none_),
        send_of_(2 * entries(table), none_),
        queues_(table, channels, index_messages(), partner_, none_),
        made_(2 * entries(table), -1.0),
        arrived_(2 * entries(table), -1.0),
        start_s_(2 * entries(table)),
        waits_for_(table.ranks()),
        done_(none_) {}

  constexpr double arrives(int rank, Action const& a, double& given) {
    auto const [own, other] = inputs(a);
    if (own >= 0 && made_[own] < 0) return -1.0;
    if (other < 0) return 0.0;
    if (arrived_[other] < 0) waits_for_[rank] = other;
    if (made_[other] > given) given = made_[other];
    return arrived_[other];
  }

  constexpr void ended(std::size_t index, Action const& a, double end, std::vector<int>&) {
    done_[index] = 1;
    if (a.kind == Kind::backward_weight || a.kind == Kind::reduce_gradient) return;
    std::ptrdiff_t const v = value(a);
    made_[v] = end;
    if (send_of_[v] == none_) {
      arrived_[v] = end;  // read on this rank
    } else {
      offered_.push_back(send_of_[v]);
    }
  }

  /// Transfers what can be, and wakes the ranks that wait for it.
  constexpr void transfer(std::vector<int>& runnable) {
    while (!offered_.empty()) {
      ActionIndex send = offered_.back();
      offered_.pop_back();
      if (!is_send(table_.actions[send].kind)) send = partner_[send];
      ActionIndex const receive = partner_[send];
      std::ptrdiff_t const v = value(table_.actions[send]);
      double start = made_[v];
      if (done_[send] != 0 || start < 0) continue;
      if (shared_) {
        if (!queues_.is_head(send) || !queues_.is_head(receive)) continue;
        for (ActionIndex const m : {send, receive})
          start = std::max(start, queues_.free_s[queues_.queue_of[m]]);
      }
      Action const& b = table_.actions[receive];
      StageTimes const& into = times_[b.stage];
      double const end =
          start + (b.kind == Kind::recv_forward ? into.link_forward : into.link_backward);
      done_[send] = done_[receive] = 1;
      start_s_[v] = start;
      arrived_[v] = end;
      int const reader = rank_of_[receive];
      if (waits_for_[reader] == v) runnable.push_back(reader);
      if (!shared_) continue;
      for (ActionIndex const m : {send, receive}) {
        ActionIndex const behind = queues_.next[m];
        queues_.free_s[queues_.queue_of[m]] = end;
        queues_.head[queues_.queue_of[m]] = behind;
        if (behind != none_) offered_.push_back(behind);
      }
    }
  }

  /// The times between which a message was transferred.
  constexpr void get_times(Action const& a, double& start_s, double& end_s) const {
    std::ptrdiff_t const v = value(is_send(a.kind) ? a : partner(a));
    start_s = start_s_[v];
    end_s = arrived_[v];
  }

  /// The first action of a rank that never ran, with or without its messages; the number of actions
  /// where all did.
  [[nodiscard]] constexpr std::size_t first_left(int rank, bool messages) const noexcept {
    auto const row = table_.row(rank);
    std::size_t const begin = table_.row_begin.data()[rank];
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (done_[begin + at] == 0 && (messages || !is_message(row[at].kind))) return begin + at;
    }
    return none_;
  }

  /// What holds up an action that never ran, or the second of its pair where it is that one's
  /// input.
  /// @pre the table was played to a standstill; `index` is the first action of its rank or of its
  /// channel that never ran
  [[nodiscard]] constexpr Held hold(std::size_t index) const {
    Action const& a = table_.actions[index];
    if (is_message(a.kind)) {
      std::size_t const send = is_send(a.kind) ? index : partner_[index];
      std::ptrdiff_t const v = value(table_.actions[send]);
      return made_[v] < 0 ? not_made(index, v) : not_moved(index, send);
    }
    if (a.kind == Kind::reduce_gradient) {
      for (std::size_t other = 0; other < none_; ++other) {
        Action const& b = table_.actions[other];
        if (b.kind != a.kind || b.stage != a.stage) continue;
        std::size_t const first = first_left(rank_of_[other], false);
        if (first != other) return held(index, other, first);
      }
    }
    for (std::size_t at = index; at < index + (a.overlaps_next ? 2 : 1); ++at) {
      auto const [own, other] = inputs(table_.actions[at]);
      if (own >= 0 && made_[own] < 0) return not_made(at, own);
      if (other < 0) continue;
      if (made_[other] < 0) return not_made(at, other);
      if (arrived_[other] < 0) return not_moved(at, send_of_[other]);
    }
    return held(index, index, index);
  }

 private:
  /// The values that a compute action needs; -1: none.
  struct Inputs {
    std::ptrdiff_t own = -1;    // of its own stage
    std::ptrdiff_t other = -1;  // of the stage before or after
  };
  [[nodiscard]] constexpr Inputs inputs(Action const& a) const noexcept {
    std::ptrdiff_t const here = entry(table_, a);
    if (a.kind == Kind::forward) return {-1, a.stage == 0 ? -1 : here - stride_};
    if (a.kind == Kind::backward_weight) return {here + gradients_, -1};
    return {here, a.stage + 1 == table_.stages ? -1 : here + gradients_ + stride_};
  }

  /// Index of what an action makes or sends: forwards first, gradients after them.
  [[nodiscard]] constexpr std::ptrdiff_t value(Action const& a) const noexcept {
    return entry(table_, a) +
           (a.kind == Kind::forward || a.kind == Kind::send_forward ? 0 : gradients_);
  }

  /// Finds each action's rank, each value's send, and each message's other end.
  constexpr Grid<int> const& index_messages() {
    ActionIndex i = 0;
    for (int r = 0; r < table_.ranks(); ++r) {
      for (Action const& a : table_.row(r)) {
        rank_of_[i] = r;
        if (is_send(a.kind)) send_of_[value(a)] = i;
        ++i;
      }
    }
    for (i = 0; i < none_; ++i) {
      Action const& a = table_.actions[i];
      if (!is_message(a.kind) || is_send(a.kind)) continue;
      partner_[i] = send_of_[value(partner(a))];
      partner_[partner_[i]] = i;
    }
    return rank_of_;
  }

  /// @param next  what never ran and stands before what is needed, on its rank or channel
  [[nodiscard]] constexpr Held held(std::size_t at, std::size_t needs, std::size_t next) const {
    int const rank = rank_of_[at];
    return {.wait = {.rank = rank,
                     .index = static_cast<int>(at - table_.row_begin.data()[rank]),
                     .action = table_.actions[at],
                     .needs = table_.actions[needs]},
            .next = next};
  }
  [[nodiscard]] constexpr Held not_made(std::size_t at, std::ptrdiff_t v) const {
    std::size_t maker = 0;
    for (;; ++maker) {
      Action const& a = table_.actions[maker];
      if (is_compute(a.kind) && a.kind != Kind::backward_weight && value(a) == v) break;
    }
    return held(at, maker, first_left(rank_of_[maker], false));
  }
  /// A message whose value is there and which is not the first of both its channels.
  [[nodiscard]] constexpr Held not_moved(std::size_t at, std::size_t send) const {
    auto const own = static_cast<ActionIndex>(send);
    ActionIndex const end = queues_.is_head(own) ? partner_[own] : own;
    return held(at, end, queues_.head[queues_.queue_of[end]]);
  }

  Table const& table_;
  Times const& times_;
  std::ptrdiff_t stride_;
  std::ptrdiff_t gradients_;  // index of the first, in arrays of values
  ActionIndex none_;          // no action
  bool shared_;
  Grid<int> rank_of_;          // [actions]
  Grid<ActionIndex> partner_;  // [actions] other end of a message
  Grid<ActionIndex> send_of_;  // [2 * entries] of a value; none_ where it stays on its rank
  MessageQueues queues_;       // unused where channels are independent
  std::vector<ActionIndex> offered_{};  // messages that may have become ready
  Grid<double> made_, arrived_;         // [2 * entries]
  Grid<double> start_s_;                // [2 * entries] of the transfer
  Grid<std::ptrdiff_t> waits_for_;      // [ranks] the value that a rank waits for
  Grid<char> done_;                     // [actions]
};

}  // namespace detail
}  // namespace stagger::schedule
