// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The checks of a table that read its rows one after the other: everything that `verify`
///         proves except the absence of deadlocks.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <stagger/core/grid.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/proof/channels.hpp>
#include <stagger/schedule/proof/detail/entries.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// What is known of one (stage, microbatch, slice) while a table is checked.
struct Seen {
  unsigned kinds = 0;   ///< bit per Kind
  int rank = -1;        ///< where its first compute action stands
  int forward_at = 0;   ///< index of its F
  int gradient_at = 0;  ///< index of its B or I

  [[nodiscard]] static constexpr unsigned bit(Kind kind) noexcept {
    return 1U << static_cast<unsigned>(kind);
  }
  [[nodiscard]] constexpr bool has(Kind kind) const noexcept { return (kinds & bit(kind)) != 0; }
};

/// A table that is checked, and what the checks so far have found out about it.
struct Checked {
  Table const& table;
  Grid<Seen> seen{};    // [entries]
  bool trains = false;  ///< has a backward, or a reduction, which adds up what backwards give
  bool has_messages = false;
  bool has_reductions = false;
  bool bidirectional = false;
};

/// The fault of the first action, row by row, for which `check(rank, index, action)` gives one.
template <class Check>
[[nodiscard]] constexpr Fault first_fault(Table const& table, Check&& check) {
  for (int rank = 0; rank < table.ranks(); ++rank) {
    int at = 0;
    for (Action const& a : table.row(rank)) {
      FaultKind const kind = check(rank, at, a);
      if (kind != FaultKind::none) return {.kind = kind, .rank = rank, .index = at, .action = a};
      ++at;
    }
  }
  return {};
}

[[nodiscard]] constexpr Fault check_rows(Table const& table) {
  for (int rank = 0; rank < table.ranks(); ++rank) {
    if (table.row(rank).empty()) return {.kind = FaultKind::missing, .rank = rank, .index = 0};
  }
  return {};
}

/// What is missing in a table with fewer actions than there are stages times microbatches times
/// slices, found without memory for each of these: of the first n + 1 of them, n forwards leave one
/// out.
[[nodiscard]] [[gnu::cold]] constexpr Fault first_gap(Table const& table) {
  auto const beyond = static_cast<std::ptrdiff_t>(table.actions.size()) + 1;
  Grid<char> there(beyond);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    auto const row = table.row(rank);
    if (row.empty()) return check_rows(table);
    for (std::size_t at = 0; at < row.size(); ++at) {
      Action const& a = row[at];
      if (!in_range(table, a)) return fault_at(table, FaultKind::out_of_range, rank, at);
      if (a.kind != Kind::forward) continue;
      std::ptrdiff_t here = a.stage;  // its entry, or some number beyond
      here = std::min(here, beyond) * table.microbatches + a.microbatch;
      here = std::min(here, beyond) * table.slices + a.slice;
      if (here < beyond) there[here] = 1;
    }
  }
  std::ptrdiff_t gap = 0;
  while (there[gap] != 0) ++gap;
  return {.kind = FaultKind::missing,
          .action = {.stage = static_cast<int>(gap / table.slices / table.microbatches),
                     .microbatch = static_cast<int>(gap / table.slices % table.microbatches),
                     .slice = static_cast<std::int16_t>(gap % table.slices)}};
}

/// Indices are in range, pairs are pairs, and no action is there twice.
[[nodiscard]] constexpr Fault check_actions(Checked& checked) {
  constexpr unsigned backwards = Seen::bit(Kind::backward) | Seen::bit(Kind::backward_input) |
                                 Seen::bit(Kind::backward_weight);
  Table const& table = checked.table;
  checked.seen = Grid<Seen>(entries(table));
  for (int rank = 0; rank < table.ranks(); ++rank) {
    auto const row = table.row(rank);
    bool second = false;  // of a pair
    for (std::size_t at = 0; at < row.size(); ++at) {
      Action const& a = row[at];
      if (!in_range(table, a)) return fault_at(table, FaultKind::out_of_range, rank, at);
      if (a.overlaps_next) {
        bool const pairs = !second && at + 1 < row.size() && can_overlap(a, row[at + 1]);
        if (!pairs) return fault_at(table, FaultKind::parse, rank, at);
      }
      second = a.overlaps_next;
      if (a.kind == Kind::reduce_gradient) {
        checked.has_reductions = checked.trains = true;
        continue;
      }
      Seen& s = checked.seen[entry(table, a)];
      unsigned clash = Seen::bit(a.kind);
      if (a.kind == Kind::backward) clash = backwards;
      if (a.kind == Kind::backward_input || a.kind == Kind::backward_weight)
        clash |= Seen::bit(Kind::backward);
      if ((s.kinds & clash) != 0) {
        Fault fault = fault_at(table, FaultKind::duplicate, rank, at);
        fault.beside = s.has(a.kind)                 ? a.kind
                       : s.has(Kind::backward)       ? Kind::backward
                       : s.has(Kind::backward_input) ? Kind::backward_input
                                                     : Kind::backward_weight;
        return fault;
      }
      s.kinds |= Seen::bit(a.kind);
      if (is_compute(a.kind)) {
        if (s.rank < 0) s.rank = rank;
        if (a.kind == Kind::forward) s.forward_at = static_cast<int>(at);
        if (gives_input_gradient(a.kind)) s.gradient_at = static_cast<int>(at);
        checked.trains = checked.trains || is_backward(a.kind);
      } else {
        checked.has_messages = true;
      }
    }
  }
  return {};
}

/// Nothing is left out. A table without any backward or reduction is forward-only, and complete
/// with its forwards.
[[nodiscard]] constexpr Fault check_complete(Checked const& checked) {
  Table const& table = checked.table;
  if (Fault const f = check_rows(table)) return f;
  std::ptrdiff_t const stride = entries_of_stage(table);
  for (std::ptrdiff_t c = 0; c < checked.seen.size(); ++c) {
    Seen const& s = checked.seen[c];
    Kind missing = Kind::forward;
    if (s.has(Kind::forward)) {
      bool const input = s.has(Kind::backward_input), weight = s.has(Kind::backward_weight);
      if (!checked.trains || s.has(Kind::backward) || (input && weight)) continue;
      missing = input ? Kind::backward_weight : weight ? Kind::backward_input : Kind::backward;
    }
    int const end = s.rank < 0 ? -1 : static_cast<int>(table.row(s.rank).size());
    return {.kind = FaultKind::missing,
            .rank = s.rank,
            .index = end,
            .action = {.kind = missing,
                       .stage = static_cast<int>(c / stride),
                       .microbatch = static_cast<int>(c % stride / table.slices),
                       .slice = static_cast<std::int16_t>(c % table.slices)}};
  }
  return {};
}

/// Each stage is on one rank; or all of them in the bidirectional form, where microbatches of the
/// first half run stage s on rank s and the others on rank P - 1 - s.
[[nodiscard]] constexpr Fault check_placement(Checked& checked) {
  Table const& table = checked.table;
  Grid<int> owner(table.stages, -1);
  Fault const first = first_fault(table, [&](int rank, int, Action const& a) {
    if (!is_compute(a.kind)) return FaultKind::none;
    int& o = owner[a.stage];
    if (o < 0) o = rank;
    return o == rank ? FaultKind::none : FaultKind::placement;
  });
  if (!first || table.stages != table.ranks() || table.microbatches % 2 != 0) return first;
  checked.bidirectional = true;
  return first_fault(table, [&](int rank, int, Action const& a) {
    if (!is_compute(a.kind)) return FaultKind::none;
    int const expected =
        a.microbatch < table.microbatches / 2 ? a.stage : table.ranks() - 1 - a.stage;
    return expected == rank ? FaultKind::none : FaultKind::placement;
  });
}

/// On each rank a microbatch passes its stages upwards, then downwards; slices rise forwards and
/// fall backwards.
[[nodiscard]] constexpr Fault check_order(Checked& checked) {
  Table const& table = checked.table;
  struct Last {
    int rank = -1, step = -1;
  };
  Grid<Last> last(entries_of_stage(table));  // of each slice of each microbatch
  return first_fault(table, [&](int rank, int at, Action const& a) {
    if (!is_compute(a.kind)) return FaultKind::none;
    bool const forward = a.kind == Kind::forward;
    std::ptrdiff_t const here = entry(table, a);
    Seen const& seen = checked.seen[here];
    if (a.kind == Kind::backward_weight)
      return seen.gradient_at > at ? FaultKind::order : FaultKind::none;
    Last& before = last[static_cast<std::ptrdiff_t>(a.microbatch) * table.slices + a.slice];
    int const step = forward ? a.stage : 2 * table.stages - 1 - a.stage;
    if (before.rank == rank && before.step >= step) return FaultKind::order;
    if (!forward && seen.forward_at > at) return FaultKind::order;
    before = {rank, step};
    int const slice = a.slice + (forward ? -1 : 1);
    if (slice < 0 || slice >= table.slices) return FaultKind::none;
    Seen const& beside = checked.seen[here + (forward ? -1 : 1)];
    return (forward ? beside.forward_at : beside.gradient_at) > at ? FaultKind::order
                                                                   : FaultKind::none;
  });
}

/// The gradients of a stage are added once on every rank that holds it, or on none, after the last
/// of them.
[[nodiscard]] constexpr Fault check_reductions(Table const& table) {
  struct Stage {
    int holders = 0, reductions = 0;
    int rank = -1, last = -1;  // of the row that is read
    bool reduced = false;
  };
  Grid<Stage> stages(table.stages);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    auto const row = table.row(rank);
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (!is_compute(row[at].kind)) continue;
      Stage& s = stages[row[at].stage];
      if (s.rank != rank) ++s.holders;
      s.rank = rank;
      s.last = static_cast<int>(at);
      s.reduced = false;
    }
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (row[at].kind != Kind::reduce_gradient) continue;
      Stage& s = stages[row[at].stage];
      if (s.rank != rank) return fault_at(table, FaultKind::placement, rank, at);
      if (s.reduced) return fault_at(table, FaultKind::duplicate, rank, at);
      if (s.last > static_cast<int>(at)) return fault_at(table, FaultKind::order, rank, at);
      s.reduced = true;
      ++s.reductions;
    }
  }
  for (int s = 0; s < table.stages; ++s) {
    if (stages[s].reductions != 0 && stages[s].reductions != stages[s].holders)
      return {.kind = FaultKind::missing, .action = {.kind = Kind::reduce_gradient, .stage = s}};
  }
  return {};
}

/// Each value that changes rank has one send after its action and one receive before its reader.
[[nodiscard]] constexpr Fault check_messages(Checked& checked) {
  Table const& table = checked.table;
  std::ptrdiff_t const stride = entries_of_stage(table);
  // The other end's entry of a message; null unless its value changes rank.
  auto const other_end = [&](Kind kind, int stage, std::ptrdiff_t here) -> Seen const* {
    int const by = kind == Kind::send_forward || kind == Kind::recv_backward ? 1 : -1;
    if (stage + by < 0 || stage + by >= table.stages) return nullptr;
    Seen const& other = checked.seen[here + by * stride];
    return other.rank == checked.seen[here].rank ? nullptr : &other;
  };
  Action lacks{};
  Fault fault = first_fault(table, [&](int rank, int at, Action const& a) {
    if (a.kind == Kind::reduce_gradient || a.kind == Kind::backward_weight) return FaultKind::none;
    std::ptrdiff_t const at_entry = entry(table, a);
    Seen const& here = checked.seen[at_entry];
    if (is_compute(a.kind)) {
      bool const up = a.kind == Kind::forward;
      for (Kind const kind : {up ? Kind::send_forward : Kind::send_backward,
                              up ? Kind::recv_forward : Kind::recv_backward}) {
        if (here.has(kind) || other_end(kind, a.stage, at_entry) == nullptr) continue;
        lacks = {.kind = kind, .stage = a.stage, .microbatch = a.microbatch, .slice = a.slice};
        return FaultKind::unmatched_message;
      }
      return FaultKind::none;
    }
    lacks = a;
    bool const forward = a.kind == Kind::send_forward || a.kind == Kind::recv_forward;
    bool const send = is_send(a.kind);
    if (here.rank != rank) return FaultKind::placement;
    Seen const* const other = other_end(a.kind, a.stage, at_entry);
    if (other == nullptr || !other->has(partner(a).kind) || (!forward && !checked.trains))
      return FaultKind::unmatched_message;
    int const compute_at = forward ? here.forward_at : here.gradient_at;
    return (compute_at < at) == send ? FaultKind::none : FaultKind::order;
  });
  if (fault) fault.action = lacks;
  return fault;
}

/// Consumers follow their producer's order, and receives the order of the sends, on every edge.
[[nodiscard]] constexpr Fault check_edges(Checked& checked) {
  Table const& table = checked.table;
  std::ptrdiff_t const stride = entries_of_stage(table);
  Grid<int> sent(checked.has_messages ? 2 * entries(table) : 0, -1);  // indices
  for (int rank = 0; checked.has_messages && rank < table.ranks(); ++rank) {
    int at = 0;
    for (Action const& a : table.row(rank)) {
      if (a.kind == Kind::send_forward) sent[entry(table, a)] = at;
      if (a.kind == Kind::send_backward) sent[entries(table) + entry(table, a)] = at;
      ++at;
    }
  }
  // Where the producer's row stands, by what consumes, its stage, and the half of the microbatches.
  Grid<int> last(8 * table.stages, -1);
  return first_fault(table, [&](int, int, Action const& a) {
    int consumer = 0, given = 0;
    if (a.kind == Kind::forward && a.stage > 0) {
      given = checked.seen[entry(table, a) - stride].forward_at;
    } else if (gives_input_gradient(a.kind) && a.stage + 1 < table.stages) {
      consumer = 1;
      given = checked.seen[entry(table, a) + stride].gradient_at;
    } else if (a.kind == Kind::recv_forward) {
      consumer = 2;
      given = sent[entry(table, a) - stride];
    } else if (a.kind == Kind::recv_backward) {
      consumer = 3;
      given = sent[entries(table) + entry(table, a) + stride];
    } else {
      return FaultKind::none;
    }
    bool const other_half = checked.bidirectional && a.microbatch >= table.microbatches / 2;
    int& latest = last[8 * a.stage + 2 * consumer + (other_half ? 1 : 0)];
    if (given < latest) return FaultKind::message_order;
    latest = given;
    return FaultKind::none;
  });
}

/// No rank holds more (stage, microbatch) pairs than the limit.
[[nodiscard]] constexpr Fault check_in_flight(Table const& table, int limit) {
  LiveCount count;
  return first_fault(table, [&](int, int at, Action const& a) {
    if (at == 0) count = {};
    return count.run(a) > limit ? FaultKind::memory : FaultKind::none;
  });
}

/// All of the checks, but for the in-flight limit.
[[nodiscard]] constexpr Fault check(Checked& checked) {
  Table const& table = checked.table;
  if (table.ranks() < 1) return {.kind = FaultKind::missing, .rank = -1, .index = 0};
  if (table.stages < 1 || table.microbatches < 1 || table.slices < 1) {
    Fault const empty = check_rows(table);
    return empty ? empty : fault_at(table, FaultKind::out_of_range, 0, 0);
  }
  if (sparse(table)) return first_gap(table);
  if (Fault const f = check_actions(checked)) return f;
  if (Fault const f = check_complete(checked)) return f;
  if (Fault const f = check_placement(checked)) return f;
  if (Fault const f = check_order(checked)) return f;
  if (checked.has_reductions)
    if (Fault const f = check_reductions(table)) return f;
  if (checked.has_messages)
    if (Fault const f = check_messages(checked)) return f;
  return check_edges(checked);
}

}  // namespace stagger::schedule::detail
