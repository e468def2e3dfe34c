// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Instructions and ranks as text, and how far every rank of a program has come, for error
///         messages.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// An instruction as text: "0F1" for actions, "its last gradient" and "the update" at the end of a
/// step.
[[nodiscard]] [[gnu::cold]] inline std::string describe(Instruction const& in) {
  std::string described;
  bool const awaits_others = in.op == Op::pass && in.waits != 0;  // behind a part of an update
  for (char const* at = wording(awaits_others ? Op::apply : in.op); *at != '\0'; ++at)
    described += *at == '%'   ? text(in.stage)
                 : *at == '$' ? text(schedule::name(kind_of(in.op)))
                 : *at == '#' ? text(in.microbatch)
                              : std::string(1, *at);
  return described;
}

/// Likewise with the stage of the table, also where groups of ranks share layers, and a stage of
/// the table is several of the program: "1F0 (part 2 of 3)", the parts in the order of their
/// layers.
[[nodiscard]] [[gnu::cold]] inline std::string describe(Program const& program, Instruction in) {
  if (std::string_view(wording(in.op)).find('%') == std::string_view::npos) return describe(in);
  int depth = 0;
  for (Cell const& cell : program.cells)
    if (cell.stage == in.stage) depth = cell.depth;
  int stage = -1, part = 0, parts = 0;
  for (std::size_t c = 0; c < program.cells.size(); ++c) {
    Cell const& cell = program.cells[c];
    if (cell.member != 0 || !is_first_holder(program.cells, c)) continue;
    if (cell.opens && cell.depth > depth) break;
    if (cell.opens) parts = 0;
    if (cell.opens) ++stage;
    ++parts;
    if (cell.depth == depth) part = parts;
  }
  in.stage = static_cast<std::uint16_t>(stage);
  return parts < 2 ? describe(in) : text(describe(in), " (part ", part, " of ", parts, ")");
}

/// "rank 0"; for a reducer "the reducer of rank 0".
[[nodiscard]] [[gnu::cold]] inline std::string name_of(Program const& program,
                                                       std::integral auto rank) {
  int const reducer_for = program.ranks[rank].reducer_for;
  return reducer_for < 0 ? text("rank ", rank) : text("the reducer of rank ", reducer_for);
}

/// One clause for each rank that has not finished.
/// @param at       [ranks] index of each rank's current instruction
/// @param given    [signals] how often each signal was given
/// @param outside  name of the giver of signals that no rank gives
[[nodiscard]] [[gnu::cold]] inline std::string describe_stall(Program const& program,
                                                              std::span<std::size_t const> at,
                                                              std::span<std::uint32_t const> given,
                                                              std::string_view outside = {}) {
  static constexpr int none = -1;
  std::string clauses;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    auto const& rank = program.ranks[r];
    if (at[r] >= rank.code.size()) continue;
    std::size_t first_wait = 0;
    for (std::size_t i = 0; i < at[r]; ++i) first_wait += rank.code[i].waits;
    auto const& in = rank.code[at[r]];
    int sender = none;
    for (std::size_t w = first_wait; w < first_wait + in.waits && sender == none; ++w)
      if (given[rank.waits[w].signal] < rank.waits[w].count)
        sender = program.signals[rank.waits[w].signal].sender;
    std::string clause =
        text(name_of(program, r), sender == none ? " is still at " : " waits before ",
             describe(program, in));
    if (sender == SignalEnds::outside) {
      clause = text(clause, " for ", outside);
    } else if (sender != none) {
      auto const stands = at[static_cast<std::size_t>(sender)];
      std::string const last =
          stands == 0 ? std::string() : describe(program, program.ranks[sender].code[stands - 1]);
      clause = text(clause, " for ", name_of(program, sender), ", which ",
                    stands == 0 ? "has done nothing yet" : "last finished ", last);
    }
    clauses = text(clauses, clauses.empty() ? "" : "; ", clause);
  }
  return clauses;
}

}  // namespace stagger::detail
