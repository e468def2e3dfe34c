// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The first fault of a table, as a value and as a sentence.

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/schedule/action.hpp>

namespace stagger::schedule {

/// Kinds of fault, in the order in which `verify` looks for them.
enum class FaultKind : std::uint8_t {
  none,               ///< the table is legal
  out_of_range,       ///< a stage, microbatch or slice that the table does not have
  parse,              ///< a malformed pair, or an action where its kind cannot stand
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

namespace detail {

struct FaultWords {
  char const* name;
  char const* meaning;  ///< for the action that shows the fault, and what to do
};
inline constexpr FaultWords fault_words[] = {
    {"none", ""},
    {"out-of-range",
     " names a stage, microbatch or slice that the table does not have; they count from 0 and stay "
     "below the table's stages, microbatches and slices"},
    {"parse",
     " cannot stand here: an overlapped pair is one forward and one backward, next to each other"},
    {"missing", " is missing; every action must stand in the table exactly once"},
    {"duplicate", " is in the table twice; remove one of the two"},
    {"placement", " runs on another rank than the rest of its stage; give each stage one rank"},
    {"order", " stands before an action of the same rank that it needs; move it down"},
    {"unmatched-message",
     " has no partner; each value that changes rank needs one send and one receive"},
    {"message-order",
     " takes its microbatch out of turn; a consumer must follow its producer's order, on the same "
     "rank too"},
    {"deadlock", " waits for ever"},
    {"memory", " starts one more microbatch than the in-flight limit allows"}};

/// What reads a table in the letters of PyTorch up to 2.5, as `message` names it.
inline constexpr char const* old_letters = "Letters::torch_2_5";

}  // namespace detail

[[nodiscard]] constexpr char const* name(FaultKind kind) noexcept {
  return detail::fault_words[static_cast<int>(kind)].name;
}

/// One rank of a deadlock: the action that it cannot run, and the action for which it waits.
struct Wait {
  int rank = -1;
  int index = -1;   ///< index in the row
  Action action{};  ///< the action at that index
  Action needs{};   ///< what it waits for, which stands after the next wait's action
  friend constexpr bool operator==(Wait const&, Wait const&) = default;
};

/// A fault and its place in the table. Converts to true if there is a fault.
struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = -1;    ///< row of the table; -1 if no row is to blame
  int index = -1;   ///< index in the row; the row's length for something missing at its end
  Action action{};  ///< the action at that index, or the one that is missing
  int waits = 0;    ///< of a deadlock: how many waits make up its cycle
  /// The first of them; the last wait of a cycle is for the rank of the first.
  std::array<Wait, 6> cycle{};
  /// Of a deadlock: the wait in `cycle` of which only an overlapped pair is the reason, since the
  /// first action of the pair is what the wait before it needs; -1 if there is none.
  int pair = -1;
  /// Of a duplicate backward: which backward of the same stage and microbatch is there already. It
  /// differs from the action's kind where a whole backward (B) stands beside a half (I or W).
  Kind beside = Kind::forward;
  /// How many waits of the cycle are held.
  [[nodiscard]] constexpr int held() const noexcept {
    return waits < static_cast<int>(cycle.size()) ? waits : static_cast<int>(cycle.size());
  }
  /// Whether a rank has no actions at all, or the table no rows. `action` then means nothing.
  [[nodiscard]] constexpr bool no_actions() const noexcept {
    return kind == FaultKind::missing && index == 0;
  }
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

/// ": rank 0 waits at 0B0 for 1B0 of rank 1, which waits at 1F1 for 0F1 of rank 0".
[[nodiscard]] [[gnu::cold]] inline std::string cycle_of(Fault const& fault) {
  std::string sentence;
  for (Wait const& wait : std::span{fault.cycle.data(), fault.cycle.data() + fault.held()}) {
    sentence +=
        sentence.empty() ? text(": rank ", wait.rank) : text(" of rank ", wait.rank, ", which");
    sentence += text(" waits at ", to_string(wait.action), " for ", to_string(wait.needs));
  }
  if (fault.waits > fault.held())
    sentence += text(", and so on through ", fault.waits - fault.held(), " more waits, the last");
  if (fault.pair >= 0) {
    int const before = (fault.pair + fault.waits - 1) % fault.waits;
    Action const& first = fault.cycle.data()[before].needs;
    return sentence + text(fault.waits == 1 ? "; " : text(" of rank ", fault.cycle[0].rank, "; "),
                           to_string(first), " and ",
                           to_string(fault.cycle.data()[fault.pair].action),
                           " are one overlapped pair, whose actions start together: unpair them");
  }
  if (fault.waits == 1) return sentence + ", which cannot run before it; move that up";
  if (fault.waits > 1)
    sentence += text(fault.waits > fault.held() ? " for rank " : " of rank ", fault.cycle[0].rank,
                     "; move up an action that is waited for");
  return sentence;
}

}  // namespace detail

/// The fault in one sentence; empty if there is none.
[[nodiscard]] [[gnu::cold]] inline std::string message(Fault const& fault) {
  if (!fault) return {};
  std::string const what = to_string(fault.action);
  if (is_backward(fault.beside) && fault.beside != fault.action.kind) {
    Action other = fault.action;
    other.kind = fault.beside;
    return text(what, " (rank ", fault.rank, ", action ", fault.index, ") stands beside ",
                to_string(other),
                ", but B is a whole backward and I and W are its halves; remove what is too much, "
                "or, if PyTorch up to 2.5 wrote the table, with B for I, read it by ",
                detail::old_letters);
  }
  if (fault.kind != FaultKind::missing)
    return text(what, " (rank ", fault.rank, ", action ", fault.index, ")",
                detail::fault_words[static_cast<int>(fault.kind)].meaning, detail::cycle_of(fault));
  if (fault.no_actions())
    return fault.rank < 0
               ? "the table has no rows; give it one for each rank"
               : text("rank ", fault.rank, " has no actions; give it some, or remove its row");
  return what + detail::fault_words[static_cast<int>(fault.kind)].meaning;
}

}  // namespace stagger::schedule
