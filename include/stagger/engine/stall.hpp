// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   When nothing has moved for as long as it may, and in words: where every rank stands
/// then.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <stagger/core/text.hpp>
#include <stagger/engine/program.hpp>

namespace stagger::detail {

/// Tells from looks at a counter whether it has stood still for a whole deadline. Counts looks
/// instead of reading a clock: to a process that was stopped for hours, that is one look.
class StallDetector {
 public:
  /// @param deadline_s  > 0
  explicit StallDetector(double deadline_s) noexcept
      : interval_s_(std::min(deadline_s / 8, 3600.0)), looks_(deadline_s / interval_s_) {}

  /// How long to wait between two looks.
  [[nodiscard]] std::chrono::duration<double> interval() const noexcept {
    return std::chrono::duration<double>(interval_s_);
  }
  /// Looks at something that runs. Expired, it begins anew.
  /// @return  whether it has not moved for the deadline
  [[nodiscard]] bool expired(std::uint64_t progress) noexcept {
    quiet_ = seen_ && progress == progress_ ? quiet_ + 1 : 0;
    seen_ = true;
    progress_ = progress;
    if (static_cast<double>(quiet_) < looks_) return false;
    seen_ = false;
    return true;
  }
  /// Nothing runs.
  void idle() noexcept { seen_ = false; }

 private:
  double interval_s_;
  double looks_;  // as many intervals as make the deadline
  std::uint64_t progress_ = 0;
  std::uint64_t quiet_ = 0;  // looks that found it where it had been
  bool seen_ = false;
};

/// An instruction as the action grammar writes it: "0F1"; "its last gradient" and "the update" at
/// the end.
[[nodiscard]] [[gnu::cold]] inline std::string describe(Instruction const& in) {
  switch (in.op) {
    case Op::hand_in:
    case Op::finish:
      return "its last gradient";
    case Op::update:
    case Op::apply:
      return "the update";
    case Op::reduce:
      return text("the sum of stage ", in.stage, "'s gradients");
    case Op::pass:
      return text("handing on stage ", in.stage, "'s rows of ", in.microbatch);
    case Op::gather_input:
    case Op::gather_gradient:
    case Op::gather_target:
      return text("gathering rows for ", in.stage, in.op == Op::gather_gradient ? "B" : "F",
                  in.microbatch);
    default:
      return text(in.stage, in.op == Op::recompute ? "F (again)" : schedule::name(kind_of(in.op)),
                  in.microbatch);
  }
}

/// "rank 0"; of one that only adds up gradients: "the adder of rank 0".
[[nodiscard]] [[gnu::cold]] inline std::string name_of(Program const& program, std::size_t rank) {
  int const beside = program.ranks[rank].beside;
  return beside < 0 ? text("rank ", rank) : text("the adder of rank ", beside);
}

/// One clause for each rank that is not done.
/// @param at     [ranks] index of the instruction each rank stands at
/// @param given  [signals] how often each was given
[[nodiscard]] [[gnu::cold]] inline std::string describe_stall(
    Program const& program, std::span<std::size_t const> at, std::span<std::uint32_t const> given) {
  std::string clauses;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    auto const& rank = program.ranks[r];
    if (at[r] >= rank.code.size()) continue;
    std::size_t first_wait = 0;
    for (std::size_t i = 0; i < at[r]; ++i) first_wait += rank.code[i].waits;
    auto const& in = rank.code[at[r]];
    std::string const name = describe(in);
    int giver = -1;
    for (std::size_t w = first_wait; w < first_wait + in.waits && giver < 0; ++w)
      if (given[rank.waits[w].signal] < rank.waits[w].count)
        giver = program.signals[rank.waits[w].signal].giver;
    if (!clauses.empty()) clauses += "; ";
    if (giver < 0) {
      clauses += name_of(program, r) + " is in " + name;
      continue;
    }
    auto const stands = at[static_cast<std::size_t>(giver)];
    auto const& other = program.ranks[static_cast<std::size_t>(giver)].code;
    clauses += name_of(program, r) + " waits before " + name + " for " +
               name_of(program, static_cast<std::size_t>(giver)) + ", which ";
    clauses +=
        stands == 0 ? "has done nothing yet" : "last finished " + describe(other[stands - 1]);
  }
  return clauses;
}

}  // namespace stagger::detail
