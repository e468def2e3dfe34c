// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Proves or refutes a table: at compile time, in a test, or for a table that came from a
/// file.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/proof/accepted.hpp>
#include <stagger/schedule/proof/channel_play.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/proof/play.hpp>
#include <stagger/schedule/proof/standstill.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/table_of.hpp>

namespace stagger::schedule {

/// What a table is held against.
struct VerifyOptions {
  Channels channels =
      Channels::per_peer;  ///< how messages share channels; compute-only tables have none
  int in_flight = 0;       ///< most (stage, microbatch) pairs a rank may hold; 0: no limit
};

namespace detail {

/// Refuses what would make arrays by index unsafe or needlessly large: `play` asks for this.
/// @throws Error bad_schedule
constexpr void require_playable(Table const& table) {
  for (int r = 0; r < table.ranks(); ++r) {
    auto const row = table.row(r);
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (!in_range(table, row[at])) {
        raise(Errc::bad_schedule, message({.kind = FaultKind::out_of_range,
                                           .rank = r,
                                           .position = static_cast<int>(at),
                                           .action = row[at]}));
      }
    }
  }
  if (sparse(table))
    raise(Errc::bad_schedule,
          "the table has fewer actions than stages times microbatches; verify it first");
}

/// What is known of one (stage, microbatch, slice) while a table is checked.
struct Seen {
  std::uint8_t kinds = 0;  ///< bit per Kind
  int rank = -1;           ///< where its first compute action stands
  int forward_at = 0;      ///< position of its F
  int gradient_at = 0;     ///< position of its B or I
};

[[nodiscard]] constexpr unsigned bit(Kind kind) noexcept {
  return 1U << static_cast<unsigned>(kind);
}

/// Every check except deadlock and memory; those need the whole of the table to be sound.
class Checker {
 public:
  constexpr explicit Checker(Table const& table) : table_(table) {}

  [[nodiscard]] constexpr Fault run() {
    if (table_.stages < 1 || table_.microbatches < 1 || table_.slices < 1 || table_.ranks() < 1) {
      return {.kind = FaultKind::missing, .rank = 0, .position = 0, .action = {}};
    }
    if (sparse(table_)) return first_gap();
    seen_.assign(cells(table_), Seen{});
    if (Fault f = once()) return f;
    if (Fault f = complete()) return f;
    if (Fault f = place()) return f;
    if (Fault f = order()) return f;
    if (has_reductions_) {
      if (Fault f = reductions()) return f;
    }
    if (has_messages_) {
      if (Fault f = match()) return f;
    }
    return edges();
  }
  [[nodiscard]] constexpr bool has_messages() const noexcept { return has_messages_; }

 private:
  static constexpr unsigned backwards_ =
      bit(Kind::backward) | bit(Kind::backward_input) | bit(Kind::backward_weight);

  [[nodiscard]] constexpr Fault fault(FaultKind kind, int rank, std::size_t at) const {
    return {.kind = kind,
            .rank = rank,
            .position = static_cast<int>(at),
            .action = table_.row(rank)[at]};
  }
  constexpr Seen& seen(Action const& a) { return seen_[cell(table_, a)]; }

  /// Ranges, pairs, and nothing twice.
  [[nodiscard]] constexpr Fault once() {
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      bool second = false;  // of a pair
      for (std::size_t at = 0; at < row.size(); ++at) {
        Action const& a = row[at];
        if (!in_range(table_, a)) return fault(FaultKind::out_of_range, rank, at);
        if (a.overlaps_next) {
          bool const pairs = !second && at + 1 < row.size() && is_compute(a.kind) &&
                             is_compute(row[at + 1].kind) &&
                             (a.kind == Kind::forward) != (row[at + 1].kind == Kind::forward);
          if (!pairs) return fault(FaultKind::parse, rank, at);
        }
        second = a.overlaps_next;
        if (a.kind == Kind::reduce_gradient) {
          has_reductions_ = true;
          continue;
        }
        Seen& s = seen(a);
        unsigned clash = bit(a.kind);
        if (a.kind == Kind::backward) clash = backwards_;
        if (a.kind == Kind::backward_input || a.kind == Kind::backward_weight)
          clash |= bit(Kind::backward);
        if ((s.kinds & clash) != 0) return fault(FaultKind::duplicate, rank, at);
        s.kinds = static_cast<std::uint8_t>(s.kinds | bit(a.kind));
        if (is_compute(a.kind)) {
          if (s.rank < 0) s.rank = rank;
          if (a.kind == Kind::forward) s.forward_at = static_cast<int>(at);
          if (gives_input_gradient(a.kind)) s.gradient_at = static_cast<int>(at);
          has_backward_ = has_backward_ || a.kind != Kind::forward;
        } else {
          has_messages_ = true;
        }
      }
    }
    return {};
  }

  /// What is missing from a table with fewer actions than cells, found without an array of all
  /// cells: of the first n + 1 cells, n forwards leave one out.
  [[nodiscard]] [[gnu::cold]] constexpr Fault first_gap() const {
    std::size_t const beyond = table_.actions.size() + 1;
    std::vector<char> there(beyond, 0);
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      if (row.empty())
        return {
            .kind = FaultKind::missing, .rank = rank, .position = 0, .action = first_missing(rank)};
      for (std::size_t at = 0; at < row.size(); ++at) {
        Action const& a = row[at];
        if (!in_range(table_, a)) return fault(FaultKind::out_of_range, rank, at);
        if (a.kind != Kind::forward) continue;
        auto here = static_cast<std::size_t>(a.stage);  // the cell, or some number beyond
        here = std::min(here, beyond) * static_cast<std::size_t>(table_.microbatches) +
               static_cast<std::size_t>(a.microbatch);
        here = std::min(here, beyond) * static_cast<std::size_t>(table_.slices) +
               static_cast<std::size_t>(a.slice);
        if (here < beyond) there[here] = 1;
      }
    }
    std::size_t gap = 0;
    while (there[gap] != 0) ++gap;
    auto const slices = static_cast<std::size_t>(table_.slices);
    auto const microbatches = static_cast<std::size_t>(table_.microbatches);
    Action const next{.stage = static_cast<int>(gap / slices / microbatches),
                      .microbatch = static_cast<int>(gap / slices % microbatches),
                      .slice = static_cast<std::int16_t>(gap % slices)};
    return {.kind = FaultKind::missing, .rank = -1, .position = -1, .action = next};
  }

  /// Nothing left out. A table without any backward is forward-only, and complete with its
  /// forwards.
  [[nodiscard]] constexpr Fault complete() {
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      if (table_.row(rank).empty()) {
        return {
            .kind = FaultKind::missing, .rank = rank, .position = 0, .action = first_missing(rank)};
      }
    }
    for (int s = 0; s < table_.stages; ++s) {
      for (int m = 0; m < table_.microbatches; ++m) {
        for (int j = 0; j < table_.slices; ++j) {
          Action a{.kind = Kind::forward,
                   .stage = s,
                   .microbatch = m,
                   .slice = static_cast<std::int16_t>(j)};
          unsigned const kinds = seen(a).kinds;
          bool whole = (kinds & bit(Kind::forward)) != 0;
          if (whole && has_backward_ && (kinds & bit(Kind::backward)) == 0) {
            bool const input = (kinds & bit(Kind::backward_input)) != 0;
            bool const weight = (kinds & bit(Kind::backward_weight)) != 0;
            whole = input && weight;
            a.kind = input ? Kind::backward_weight : weight ? Kind::backward_input : Kind::backward;
          }
          if (!whole) {
            int const rank = seen(a).rank;
            int const end = rank < 0 ? -1 : static_cast<int>(table_.row(rank).size());
            return {.kind = FaultKind::missing, .rank = rank, .position = end, .action = a};
          }
        }
      }
    }
    return {};
  }
  [[nodiscard]] constexpr Action first_missing(int rank) const {
    return {.kind = Kind::forward, .stage = rank < table_.stages ? rank : 0};
  }

  /// A stage on one rank; or all of them in the bidirectional form, where microbatches of the first
  /// half run stage s on rank s and the others on rank P - 1 - s.
  [[nodiscard]] constexpr Fault place() {
    std::vector<int> owner(static_cast<std::size_t>(table_.stages), -1);
    Fault first{};
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      for (std::size_t at = 0; at < row.size(); ++at) {
        if (!is_compute(row[at].kind)) continue;
        int& o = owner[static_cast<std::size_t>(row[at].stage)];
        if (o < 0) o = rank;
        if (o != rank && !first) first = fault(FaultKind::placement, rank, at);
      }
    }
    if (!first) return {};
    if (table_.stages != table_.ranks() || table_.microbatches % 2 != 0) return first;
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      for (std::size_t at = 0; at < row.size(); ++at) {
        Action const& a = row[at];
        if (!is_compute(a.kind)) continue;
        int const home =
            a.microbatch < table_.microbatches / 2 ? a.stage : table_.ranks() - 1 - a.stage;
        if (home != rank) return fault(FaultKind::placement, rank, at);
      }
    }
    bidirectional_ = true;
    return {};
  }

  /// On each rank a microbatch passes its stages upwards, then downwards; slices rise forwards and
  /// fall backwards.
  [[nodiscard]] constexpr Fault order() {
    std::size_t const lines = cells(table_) / static_cast<std::size_t>(table_.stages);
    std::vector<int> done(lines, -1);
    std::vector<int> by(lines, -1);
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      for (std::size_t at = 0; at < row.size(); ++at) {
        Action const& a = row[at];
        if (a.kind != Kind::forward && !gives_input_gradient(a.kind)) {
          if (a.kind == Kind::backward_weight && seen(a).gradient_at > static_cast<int>(at)) {
            return fault(FaultKind::order, rank, at);
          }
          continue;
        }
        std::size_t const line = cell(table_, a) % lines;
        int const step = a.kind == Kind::forward ? a.stage : 2 * table_.stages - 1 - a.stage;
        if (by[line] == rank && done[line] >= step) return fault(FaultKind::order, rank, at);
        if (gives_input_gradient(a.kind) && seen(a).forward_at > static_cast<int>(at)) {
          return fault(FaultKind::order, rank, at);
        }
        by[line] = rank;
        done[line] = step;
        if (table_.slices > 1) {
          bool const up = a.kind == Kind::forward;
          Action before = a;
          before.slice = static_cast<std::int16_t>(a.slice + (up ? -1 : 1));
          if (before.slice >= 0 && before.slice < table_.slices) {
            int const then = up ? seen(before).forward_at : seen(before).gradient_at;
            if (then > static_cast<int>(at)) return fault(FaultKind::order, rank, at);
          }
        }
      }
    }
    return {};
  }

  /// The gradients of a stage are added once on every rank that holds it, or on none, behind the
  /// last of them.
  [[nodiscard]] constexpr Fault reductions() {
    auto const stages = static_cast<std::size_t>(table_.stages);
    std::vector<int> holders(stages, 0), reduced(stages, 0), last(stages, -1), at_rank(stages, -1);
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      for (std::size_t at = 0; at < row.size(); ++at) {
        auto const s = static_cast<std::size_t>(row[at].stage);
        if (!is_compute(row[at].kind)) continue;
        if (at_rank[s] != rank) ++holders[s];
        at_rank[s] = rank;
        last[s] = static_cast<int>(at);
      }
      for (std::size_t at = 0; at < row.size(); ++at) {
        auto const s = static_cast<std::size_t>(row[at].stage);
        if (row[at].kind != Kind::reduce_gradient) continue;
        if (at_rank[s] == -2 - rank) return fault(FaultKind::duplicate, rank, at);
        if (at_rank[s] != rank) return fault(FaultKind::placement, rank, at);
        if (last[s] > static_cast<int>(at)) return fault(FaultKind::order, rank, at);
        at_rank[s] = -2 - rank;
        ++reduced[s];
      }
    }
    for (std::size_t s = 0; s < stages; ++s) {
      if (reduced[s] == 0 || reduced[s] == holders[s]) continue;
      return {.kind = FaultKind::missing,
              .rank = -1,
              .position = -1,
              .action = {.kind = Kind::reduce_gradient, .stage = static_cast<int>(s)}};
    }
    return {};
  }

  /// True when the value that a message carries changes rank; `other` is the other end's action.
  [[nodiscard]] constexpr bool travels(Action const& a, Action& other) {
    other = partner(a);
    if (!in_range(table_, other)) return false;
    return seen(a).rank != seen(other).rank;
  }

  /// Each value that changes rank has one send behind its action and one receive before its reader.
  [[nodiscard]] constexpr Fault match() {
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      for (std::size_t at = 0; at < row.size(); ++at) {
        Action const& a = row[at];
        Seen& here = seen(a);
        auto const lacks = [&](Kind kind) constexpr -> Fault {
          return {
              .kind = FaultKind::unmatched_message,
              .rank = rank,
              .position = static_cast<int>(at),
              .action = {
                  .kind = kind, .stage = a.stage, .microbatch = a.microbatch, .slice = a.slice}};
        };
        Action other{};
        if (a.kind == Kind::reduce_gradient) continue;
        if (is_compute(a.kind)) {
          if (a.kind == Kind::backward_weight) continue;
          bool const up = a.kind == Kind::forward;
          Kind const out = up ? Kind::send_forward : Kind::send_backward;
          Kind const in = up ? Kind::recv_forward : Kind::recv_backward;
          Action probe = a;
          probe.kind = out;
          if (travels(probe, other) && (here.kinds & bit(out)) == 0) return lacks(out);
          probe.kind = in;
          if (travels(probe, other) && (here.kinds & bit(in)) == 0) return lacks(in);
          continue;
        }
        bool const forward = a.kind == Kind::send_forward || a.kind == Kind::recv_forward;
        bool const send = a.kind == Kind::send_forward || a.kind == Kind::send_backward;
        if (here.rank != rank) return fault(FaultKind::placement, rank, at);
        if (!travels(a, other) || (seen(other).kinds & bit(other.kind)) == 0 ||
            (!forward && !has_backward_)) {
          return fault(FaultKind::unmatched_message, rank, at);
        }
        int const compute_at = forward ? here.forward_at : here.gradient_at;
        if ((compute_at < static_cast<int>(at)) != send) return fault(FaultKind::order, rank, at);
      }
    }
    return {};
  }

  /// Consumers follow their producer's order, and receives the order of the sends, on every edge.
  [[nodiscard]] constexpr Fault edges() {
    std::size_t const lanes =
        static_cast<std::size_t>(table_.stages) * 2;  // both halves of the bidirectional form
    std::vector<int> last_forward(lanes, -1), last_gradient(lanes, -1);
    std::vector<int> last_recv_f(has_messages_ ? lanes : 0, -1),
        last_recv_b(has_messages_ ? lanes : 0, -1);
    std::vector<int> send_f(has_messages_ ? seen_.size() : 0, -1),
        send_b(has_messages_ ? seen_.size() : 0, -1);
    if (has_messages_) {
      for (int rank = 0; rank < table_.ranks(); ++rank) {
        auto const row = table_.row(rank);
        for (std::size_t at = 0; at < row.size(); ++at) {
          if (row[at].kind == Kind::send_forward)
            send_f[cell(table_, row[at])] = static_cast<int>(at);
          if (row[at].kind == Kind::send_backward)
            send_b[cell(table_, row[at])] = static_cast<int>(at);
        }
      }
    }
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      auto const row = table_.row(rank);
      for (std::size_t at = 0; at < row.size(); ++at) {
        Action const& a = row[at];
        bool const other_half = bidirectional_ && a.microbatch >= table_.microbatches / 2;
        std::size_t const lane = static_cast<std::size_t>(a.stage) * 2 + (other_half ? 1 : 0);
        int* last = nullptr;
        int given = 0;
        if (a.kind == Kind::forward && a.stage > 0) {
          last = &last_forward[lane];
          given = neighbour(a, -1).forward_at;
        } else if (gives_input_gradient(a.kind) && a.stage + 1 < table_.stages) {
          last = &last_gradient[lane];
          given = neighbour(a, +1).gradient_at;
        } else if (a.kind == Kind::recv_forward) {
          last = &last_recv_f[lane];
          given = send_f[cell(table_, partner(a))];
        } else if (a.kind == Kind::recv_backward) {
          last = &last_recv_b[lane];
          given = send_b[cell(table_, partner(a))];
        } else {
          continue;
        }
        if (given < *last) return fault(FaultKind::message_order, rank, at);
        *last = given;
      }
    }
    return {};
  }
  constexpr Seen& neighbour(Action a, int by) {
    a.stage += by;
    return seen(a);
  }

  Table const& table_;
  std::vector<Seen> seen_;
  bool has_backward_ = false;
  bool has_messages_ = false;
  bool has_reductions_ = false;
  bool bidirectional_ = false;
};

}  // namespace detail

/// Plays all ranks of a table against each other and answers with the first fault; a false `Fault`
/// is a proof that every action is there exactly once, in data order, each stage on one rank (or in
/// the bidirectional form), messages matched and in order, nothing waits for ever, and no rank
/// holds more than the limit. A stage's reduction stands behind its last gradient, on every rank
/// that holds the stage or on none.
///
/// Takes tables of compute actions and tables with messages, and either with reductions. Linear in
/// the number of actions.
[[nodiscard]] constexpr Fault verify(Table const& table, VerifyOptions options = {}) {
  detail::Checker checker(table);
  if (Fault f = checker.run()) return f;
  auto const times = detail::stage_times(table, Costs{});
  if (checker.has_messages()) {
    detail::ChannelPlay play(table, options.channels);
    auto const ran = play.run(times, -1, [](auto...) {}, [](auto...) {});
    if (Fault f = detail::standstill(table, ran, play)) return f;
  } else {
    detail::LatestEnd latest;
    if (Fault f = detail::standstill(table, detail::play(table, times, -1, latest))) return f;
  }
  if (options.in_flight > 0) {
    for (int r = 0; r < table.ranks(); ++r) {
      int live = 0;
      auto const row = table.row(r);
      for (std::size_t at = 0; at < row.size(); ++at) {
        if (row[at].kind == Kind::forward) ++live;
        bool const freed_too_late =
            at > 0 && row[at - 1].overlaps_next && ends_flight(row[at - 1].kind);
        if (live + (freed_too_late ? 1 : 0) > options.in_flight) {
          return {.kind = FaultKind::memory,
                  .rank = r,
                  .position = static_cast<int>(at),
                  .action = row[at]};
        }
        if (ends_flight(row[at].kind)) --live;
      }
    }
  }
  return {};
}

/// Verifies the table that a policy makes for a shape; the form to use in a `static_assert`.
/// @throws Error bad_configuration when the policy refuses the shape
template <SchedulePolicy Policy>
[[nodiscard]] constexpr Fault verify(Policy const& policy, Shape shape,
                                     VerifyOptions options = {}) {
  Table const table = policy.table(shape);
  return verify(table, options);
}

#ifdef STAGGER_SEPARATE_COMPILATION
extern template void detail::require_legal(Table const&);
#endif

}  // namespace stagger::schedule
