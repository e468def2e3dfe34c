// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   In words: where every rank stands, when none of them moves.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <stagger/engine/program.hpp>

namespace stagger::detail {

/// An instruction as the action grammar writes it: "0F1"; "its gradients are complete" and "the update" at the end.
[[nodiscard]] inline std::string describe(Instruction const& in) {
  if (in.op == Op::finish) return "its last gradient";
  if (in.op == Op::update) return "the update";
  std::string const what = in.op == Op::recompute ? "F (again)" : schedule::name(kind_of(in.op));
  return std::to_string(in.stage) + what + std::to_string(in.microbatch);
}

/// One clause for each rank that is not done.
/// @param at     [ranks] index of the instruction each rank stands at
/// @param given  (signal) -> how often it was given
template <class Given>
[[nodiscard]] std::string describe_stall(Program const& program, std::span<std::size_t const> at, Given given) {
  std::string text;
  auto const last_done = [&](std::size_t rank) -> std::string {
    return at[rank] == 0 ? "has done nothing yet" : "last finished " + describe(program.ranks[rank].code[at[rank] - 1]);
  };
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    auto const& rank = program.ranks[r];
    if (at[r] >= rank.code.size()) continue;
    std::size_t first_wait = 0;
    for (std::size_t i = 0; i < at[r]; ++i) first_wait += rank.code[i].waits;
    auto const& in = rank.code[at[r]];
    int giver = -1;
    for (std::size_t w = first_wait; w < first_wait + in.waits && giver < 0; ++w)
      if (given(rank.waits[w].signal) < rank.waits[w].count) giver = program.signals[rank.waits[w].signal].giver;
    text += text.empty() ? "" : "; ";
    text += "rank " + std::to_string(r);
    if (giver < 0)
      text += " is in " + describe(in);
    else
      text += " waits before " + describe(in) + " for rank " + std::to_string(giver) + ", which " +
              last_done(static_cast<std::size_t>(giver));
  }
  return text;
}

/// Seconds in a message: "0.3".
[[nodiscard]] inline std::string format_deadline(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace stagger::detail
