// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The first thing wrong with a table, as a value and as a sentence.

#include <cstdint>
#include <string>

#include <stagger/core/text.hpp>
#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// Kinds of fault, in the order in which `verify` looks for them.
enum class FaultKind : std::uint8_t {
  none,               ///< the table is legal
  parse,              ///< an index that is not in the table's range, or a malformed pair
  missing,            ///< an action, or all of a row, is not there
  duplicate,          ///< an action is there twice
  placement,          ///< a stage on two ranks
  order,              ///< an action before one that it needs, on the same rank
  unmatched_message,  ///< a send without a receive, or the reverse
  message_order,  ///< an edge whose consumer takes microbatches in another order than its producer
                  ///< gives
  deadlock,       ///< ranks wait for each other for ever
  memory,         ///< more in flight than the limit
};

/// The word for a kind of fault.
[[nodiscard]] constexpr char const* name(FaultKind kind) noexcept {
  switch (kind) {
    case FaultKind::none:
      return "none";
    case FaultKind::parse:
      return "parse";
    case FaultKind::missing:
      return "missing";
    case FaultKind::duplicate:
      return "duplicate";
    case FaultKind::placement:
      return "placement";
    case FaultKind::order:
      return "order";
    case FaultKind::unmatched_message:
      return "unmatched-message";
    case FaultKind::message_order:
      return "message-order";
    case FaultKind::deadlock:
      return "deadlock";
    case FaultKind::memory:
      return "memory";
  }
  return "?";
}

/// Where a table is wrong. Converts to true when there is a fault.
struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = -1;      ///< row of the table; -1 where no row is to blame
  int position = -1;  ///< index in the row; the row's length for something missing at its end
  Action action{};    ///< the action at that position, or the one that is missing
  [[nodiscard]] constexpr explicit operator bool() const noexcept {
    return kind != FaultKind::none;
  }
  friend constexpr bool operator==(Fault const&, Fault const&) = default;
};

/// An action in the grammar of the tables: `3I2`, `1SEND_F0`, `0REDUCE_GRAD`, `0F1s2` where
/// microbatches are cut into slices.
[[nodiscard]] [[gnu::cold]] inline std::string to_string(Action const& action,
                                                         bool sliced = false) {
  if (action.kind == Kind::reduce_gradient) return text(action.stage, name(action.kind));
  if (sliced || action.slice != 0)
    return text(action.stage, name(action.kind), action.microbatch, "s", action.slice);
  return text(action.stage, name(action.kind), action.microbatch);
}

namespace detail {

/// What a kind of fault means for the action that shows it, and what to do.
[[nodiscard]] constexpr char const* meaning(FaultKind kind) noexcept {
  switch (kind) {
    case FaultKind::none:
      return "";
    case FaultKind::parse:
      return " is not an action of this table: an index is out of range, or a pair is not one "
             "forward and one backward";
    case FaultKind::missing:
      return " is missing; every action must stand in the table exactly once";
    case FaultKind::duplicate:
      return " is in the table twice; remove one of the two";
    case FaultKind::placement:
      return " runs on another rank than the rest of its stage; give each stage one rank";
    case FaultKind::order:
      return " stands before an action of the same rank that it needs; move it down";
    case FaultKind::unmatched_message:
      return " has no partner; each value that changes rank needs one send and one receive";
    case FaultKind::message_order:
      return " takes its microbatch out of turn; a consumer must follow its producer's order";
    case FaultKind::deadlock:
      return " waits for ever: every rank that could help it is waiting too";
    case FaultKind::memory:
      return " starts one more microbatch than the in-flight limit allows";
  }
  return "";
}

}  // namespace detail

/// The fault in one sentence; empty when there is none.
[[nodiscard]] [[gnu::cold]] inline std::string message(Fault const& fault) {
  if (!fault) return {};
  std::string const what = to_string(fault.action);
  if (fault.kind != FaultKind::missing)
    return text(what, " (rank ", fault.rank, ", position ", fault.position, ")",
                detail::meaning(fault.kind));
  if (fault.position == 0)
    return text("rank ", fault.rank, " has no actions; ", what, " is missing");
  return what + detail::meaning(fault.kind);
}

}  // namespace stagger::schedule
