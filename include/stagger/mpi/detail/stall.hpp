// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The error message for a step in which no rank moves: the progress of the ranks of all
///         processes.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

/// Finds which rank waits for which, as far as one process knows, and which processes have fallen
/// silent.
class Stall {
 public:
  /// @param at     [ranks] instructions that are known to be done
  /// @param given  [signals] that are known to be given
  Stall(Program const& program, Placement const& placement, std::vector<std::size_t> at,
        List<std::uint32_t> const& given)
      : program_(program), placement_(placement), at_(std::move(at)), given_(given.size(), 0) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      std::vector<std::uint32_t> gives(given.size(), 0);
      for (std::size_t i = 0; i < code.size(); ++i)  // a rank has passed each signal that it gave
        for (std::size_t g = 0; g < code[i].signal_count; ++g)
          if (++gives[code[i].signal[g]] <= given[code[i].signal[g]])
            at_[r] = std::max(at_[r], i + 1);
      for (std::size_t i = 0; i < at_[r]; ++i)
        for (std::size_t g = 0; g < code[i].signal_count; ++g) ++given_[code[i].signal[g]];
    }
  }

  /// @param quiet_s  [processes] since each was heard from
  /// @param outside  who gives signals that no rank gives
  [[nodiscard]] std::string describe(std::vector<double> const& quiet_s, double deadline_s,
                                     std::string const& outside) const {
    return text("no rank moved for ", deadline_s,
                " s: ", stagger::detail::describe_stall(program_, at_, given_, outside),
                silent(quiet_s, deadline_s),
                "; raise Options::deadline_s if an action may take that long");
  }
  /// The message if the ranks of this process have ended, but not every process has all updated
  /// parameters.
  [[nodiscard]] std::string describe_handover(std::vector<double> const& quiet_s,
                                              double deadline_s) const {
    return text("for ", deadline_s, " s no process said that it has all updated parameters",
                silent(quiet_s, deadline_s));
  }

 private:
  [[nodiscard]] std::string silent(std::vector<double> const& quiet_s, double deadline_s) const {
    std::string silent;
    for (std::size_t p = 0; p < quiet_s.size(); ++p) {
      if (quiet_s[p] < deadline_s / 2) continue;
      silent += text("; process ", p, " has not been heard of for ",
                     std::round(quiet_s[p] * 10) / 10, " s");
      for (std::size_t r = 0; r < program_.ranks.size(); ++r)
        if (placement_.runs(static_cast<int>(p))[r] && at_[r] < program_.ranks[r].code.size())
          silent += text(", its rank ", r, " owes ",
                         stagger::detail::describe(program_, program_.ranks[r].code[owed(r)]));
    }
    return silent;
  }

  /// The first instruction of a rank that another rank waits for; if none does, the next one.
  [[nodiscard]] std::size_t owed(std::size_t rank) const {
    auto const& code = program_.ranks[rank].code;
    std::size_t first = code.size();
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      auto const& other = program_.ranks[r];
      if (at_[r] >= other.code.size()) continue;
      std::size_t w = 0;
      for (std::size_t i = 0; i < at_[r]; ++i) w += other.code[i].waits;
      for (std::size_t const end = w + other.code[at_[r]].waits; w < end; ++w)
        if (given_[other.waits[w].signal] < other.waits[w].count)
          first = std::min(first, sender_of(code, other.waits[w]));
    }
    return first < code.size() ? first : at_[rank];
  }

  /// The instruction whose signal ends a wait; the end of the code if it is on another rank.
  [[nodiscard]] static std::size_t sender_of(List<Instruction> const& code, Wait const& wait) {
    std::uint32_t left = wait.count;
    for (std::size_t i = 0; i < code.size(); ++i)
      for (std::size_t g = 0; g < code[i].signal_count; ++g)
        if (code[i].signal[g] == wait.signal && --left == 0) return i;
    return code.size();
  }

  Program const& program_;
  Placement const& placement_;
  std::vector<std::size_t> at_;       // [ranks]
  std::vector<std::uint32_t> given_;  // [signals]
};

}  // namespace stagger::mpi::detail
